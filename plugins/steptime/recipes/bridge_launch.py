"""How a rank starts a recipe of Megatron-Bridge: the script and arguments that its block `launch` gives."""

import string
from collections.abc import Collection, Iterator, Mapping

from steptime.errors import UserError
from steptime.recipes.models import BridgeLaunch, Mode, NamedRecipe, Recipe, Run

CHECKPOINTS = "code/nemo_experiments/default/checkpoints"
"""Where a job saves its checkpoint, below its own folder: as in the recipe documents."""


def bridge_command(run: Run) -> tuple[str, ...]:
    """Return the script and its arguments with which each rank starts a recipe of Megatron-Bridge.

    The script is a path from / on in the image, or else below the checkout of the commit that `bridge_commit`
    returns. Raises UserError if the run is not of Megatron-Bridge, or its `launch` does not name the image.
    """
    recipe, model = run.recipe, run.recipe.model
    if not isinstance(model, NamedRecipe):
        raise UserError(
            f"{run.label} is not started by Megatron-Bridge: in the workload's file set architecture: "
            "megatron_bridge and recipe in its model."
        )
    bridge_commit(recipe)
    launch, values = model.launch, _values(run, model)
    return (
        launch.script,
        *_fill((*launch.arguments, *launch.of_mode(run.mode)), values),
        *(f"--{name}={value}" for name, value in run.performance.arguments.items()),
    )


def bridge_commit(recipe: Recipe) -> str | None:
    """Return the commit of Megatron-Bridge whose scripts start a recipe.

    None to start the image's own scripts, or if Megatron-Bridge does not train the recipe. Raises UserError
    if the recipe's `launch` does not name its image.
    """
    if not isinstance(recipe.model, NamedRecipe):
        return None
    launch = recipe.model.launch
    if (problem := find_image_mistake(launch, recipe.image)) is not None:
        raise UserError(f"{recipe.workload} {recipe.size} cannot be started: {problem}.")
    return _commits_by_tag(launch)[_tag(recipe.image)]


def find_image_mistake(launch: BridgeLaunch, image: str | None) -> str | None:
    """Return a sentence if a `launch` is not for an image; None if it is.

    The image's name and tag must be listed; its registry may be another one.
    """
    if _tag(image) in _commits_by_tag(launch):
        return None
    return (
        f"its launch is for {', '.join(launch.commits)}, and not for {image or '(no image)'}: if the scripts "
        "there take the same arguments, add the image to launch.commits in the workload's file"
    )


def find_repeated(arguments: Collection[str], launch: BridgeLaunch) -> list[str]:
    """Return those of the argument names, without dashes, that a `launch` passes in some mode already."""
    texts = (*launch.arguments, *(text for mode in Mode for text in launch.of_mode(mode)))
    passed = {text.removeprefix("--").partition("=")[0] for text in texts}
    return [name for name in arguments if name in passed]


def placeholders(texts: Collection[str]) -> set[str]:
    """Return the placeholders in arguments, such as `gpus` in `--num_gpus={gpus}`."""
    return {word for text in texts for _, word, _, _ in string.Formatter().parse(text) if word is not None}


def _fill(texts: Collection[str], values: Mapping[str, str | int | None]) -> Iterator[str]:
    """Yield arguments with values for their placeholders, without those that have none for one of them."""
    for text in texts:
        if all(values[word] is not None for word in placeholders([text])):
            yield text.format_map(values)


def _values(run: Run, model: NamedRecipe) -> dict[str, str | int | None]:
    """Return the values of `BRIDGE_WORDS`; None for those that the run does not have."""
    recipe, profile = run.recipe, run.profile
    saves, loads = (run.mode is mode for mode in (Mode.CHECKPOINT_SAVE, Mode.CHECKPOINT_LOAD))
    return {
        **model.model_dump(include={"family", "recipe", "variant"}),
        **recipe.parallelism.model_dump(exclude={"data"}),
        "virtual_pipeline_or_None": str(recipe.parallelism.virtual_pipeline),
        "gpu_type": recipe.gpu_type,
        "gpus": recipe.gpus,
        "dtype": model.launch.dtypes.get(recipe.dtype, recipe.dtype),
        "micro_batch_size": recipe.micro_batch_size,
        "global_batch_size": recipe.global_batch_size,
        "max_steps": run.max_steps,
        "checkpoints": CHECKPOINTS if saves else None,
        "checkpoint": (run.checkpoint_path or "SAVED_CHECKPOINT") if loads else None,
        "async_save": str(run.settings.async_save).lower(),
        "profile_start": profile and profile.first_step,
        # Upstream ends with the step before.
        "profile_end": profile and min(profile.last_step + 1, run.max_steps),
        "profile_ranks": profile and ",".join(map(str, profile.ranks)),
    }


def _commits_by_tag(launch: BridgeLaunch) -> dict[str, str | None]:
    return {_tag(image): commit for image, commit in launch.commits.items()}


def _tag(image: str | None) -> str:
    """Return name and tag of an image, without its registry and digest: `nemo:26.06.01`."""
    return "" if image is None else image.partition("@")[0].rpartition("/")[2]
