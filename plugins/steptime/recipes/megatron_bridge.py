"""How Megatron-Bridge recipes are started by name: the command of one rank, which depends on the image.

Scripts of different Megatron-Bridge releases take different arguments. `config/megatron_bridge.yaml` lists
them by release, with the source files that define them. The planned parallelism and batch sizes are passed as
arguments too, so that the run is what was planned.
"""

import functools
import itertools
import string
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from steptime.errors import BrokenFiles, UserError, unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import (
    Document,
    FieldErrors,
    Location,
    Mistake,
    broken_entries,
    file_state,
    read_entries,
)
from steptime.recipes.models import Mode, NamedRecipe, Parallelism, Recipe, Run
from steptime.recipes.workload_file import ModelParallelism
from steptime.refusals import matching
from steptime.settings import config_dir, shipped

CHECKPOINTS = "code/nemo_experiments/default/checkpoints"
"""Where a job saves its checkpoint, below its own folder: as in the recipe documents."""

_OF_ROWS = (
    *("family", "recipe", "variant", "gpu_type", "gpus", "dtype", "micro_batch_size", "global_batch_size"),
    *("tensor", "pipeline", "context", "virtual_pipeline", "expert", "expert_tensor"),
)
_OF_RUNS = (
    *("max_steps", "checkpoints", "checkpoint", "async_save"),
    *("profile_start", "profile_end", "profile_ranks"),
)
OPTIONAL = ("variant", "virtual_pipeline", "expert", "expert_tensor")
"""Properties that a recipe may lack."""


_HubRepository = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "OWNER/NAME")
]


class KnownRecipe(Frozen):
    """What is known about a recipe of Megatron-Bridge without running it."""

    parameters: PositiveFloat | None = None
    """Number of parameters in billions, as upstream states it; None if it does not."""
    active: PositiveFloat | None = None
    """Parameters active for one token, in billions; None if upstream states none."""
    seq_length: tuple[PositiveInt, ...] = Field(min_length=1)
    """Tokens per sample: one value, or one per GPU type if these differ."""
    configuration: _HubRepository | None = None
    """Repository on the Hugging Face hub of the model's configuration; None if ranks load none."""
    tokenizer: _HubRepository | None = None
    """Repository on the hub of the tokenizer; None if ranks load none."""


class BridgeRelease(Frozen):
    """An entry of `config/megatron_bridge.yaml`: how the recipes of one release are started."""

    source: str
    """Repository, tag and files in which these facts were read."""
    images: tuple[str, ...] = Field(min_length=1)
    """Name and tag of the images with this release, in any registry."""
    script: Annotated[str, matching("/.*", "a path from / on")]
    """Path of the launch script in the image."""
    gpu_types: tuple[str, ...] = Field(min_length=1)
    """GPU types of `config/gpus.yaml`; upstream has the same names."""
    dtypes: dict[str, str] = Field(min_length=1)
    """Upstream's name for each of steptime's number formats."""
    arguments: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    given: dict[str, str] = Field(default_factory=dict)
    """By property of `OPTIONAL`: the argument if a recipe has it; without an entry, none may have it."""
    missing: dict[str, str] = Field(default_factory=dict)
    """By property of `OPTIONAL`: the argument if a recipe lacks it; without an entry, upstream decides."""
    modes: dict[Mode, tuple[str, ...]] = Field(default_factory=dict)
    """Additional arguments by mode."""
    recipes: dict[str, dict[str, KnownRecipe]] = Field(min_length=1)
    """Recipes for pre-training, by family and name."""

    @model_validator(mode="after")
    def _names_what_there_is(self) -> Self:
        texts: list[tuple[Location, str]] = [
            *((("arguments", index), text) for index, text in enumerate(self.arguments)),
            *((("overrides", index), text) for index, text in enumerate(self.overrides)),
            *((("given", name), text) for name, text in self.given.items()),
            *((("missing", name), text) for name, text in self.missing.items()),
            *(((mode.value, n), text) for mode, of in self.modes.items() for n, text in enumerate(of)),
        ]
        problems = [problem for place, text in texts for problem in _unknown_words(text, place)]
        for kind in ("given", "missing"):
            unknown = [name for name in getattr(self, kind) if name not in OPTIONAL]
            problems += [Mistake.of(unknown_value("name", one, OPTIONAL), kind, one) for one in unknown]
        if problems:
            raise FieldErrors(problems)
        return self


def _unknown_words(text: str, place: Location) -> Iterator[Mistake]:
    known = (*_OF_ROWS, *_OF_RUNS)
    try:
        words = [word for _, word, _, _ in string.Formatter().parse(text) if word is not None]
    except ValueError:
        yield Mistake(f"'{text}' is no template: every {{ needs its }}, as in {{gpus}}", place)
        return
    yield from (Mistake.of(unknown_value("word", word, known), *place) for word in words if word not in known)


def bridge_release(image: str | None) -> BridgeRelease:
    """Return the Megatron-Bridge release in an image.

    Raises UserError if no release lists the image, or if the file of releases has a mistake.
    """
    path = bridge_file()
    by_tag = _by_tag(path, file_state(path))
    release = by_tag.get("" if image is None else image.partition("@")[0].rpartition("/")[2])
    if release is None:
        raise UserError(
            f"{path} lists image {image or '(none)'} under no release, so the command for its recipes "
            f"is unknown: choose one of {', '.join(by_tag)}, or add its tag there."
        )
    return release


@functools.lru_cache(maxsize=8)
def _by_tag(_path: Path, _state: tuple[int, int]) -> dict[str, BridgeRelease]:
    """Return the releases by name and tag of their images; the file is read again only when it changes."""
    document = _document()
    releases = [document.part(BridgeRelease, name) for name in document.content]
    problems = [problem for _, of_release in releases for problem in of_release]
    if problems:
        raise document.refusal(problems)
    return {tag: release for release, _ in releases if release is not None for tag in release.images}


def misnamed(model: NamedRecipe, image: str | None) -> Mistake | None:
    """Return a mistake if the Megatron-Bridge release in the image has no such recipe; None if it has.

    The recipe must have the model's family, name and sample length. If the model has its own `launch`, only
    the placeholders in its arguments are checked, such as `{gpus}`. Raises UserError if the image's release
    is unknown.
    """
    if model.launch is not None:
        texts = enumerate(model.launch.arguments)
        words = (mistake for n, text in texts for mistake in _unknown_words(text, ("launch", "arguments", n)))
        return next(words, None)
    known, of = bridge_release(image).recipes, f"Megatron-Bridge in {image}"
    if model.family not in known:
        return _unknown("family", unknown_value("family", model.family, known, of=of))
    recipes = known[model.family]
    if model.recipe not in recipes:
        of = f"{of}, family {model.family}"
        return _unknown("recipe", unknown_value("recipe", model.recipe, recipes, of=of))
    lengths = recipes[model.recipe].seq_length
    if model.seq_length not in lengths:
        return Mistake(
            f"{model.recipe} in {image} has samples of {' or '.join(map(str, lengths))} tokens, and not of "
            f"{model.seq_length}",
            ("seq_length",),
        )
    return None


def _unknown(field: str, error: UserError) -> Mistake:
    add = f"; add one that your own image pre-trains to config/{bridge_file().name}"
    return Mistake(str(error).removesuffix(".") + add, (field,))


def known_recipe(model: NamedRecipe, image: str | None) -> KnownRecipe | None:
    """Return a recipe's entry in its release; None if it has none, or if the model has its own `launch`.

    Raises UserError if the image's release is unknown.
    """
    if model.launch is not None:
        return None
    return bridge_release(image).recipes.get(model.family, {}).get(model.recipe)


def hub_files(recipe: Recipe) -> dict[str, list[str]]:
    """Return the Hugging Face repositories that each rank reads, with the files needed from each.

    Empty for what steptime's own trainer trains. Raises UserError if the image has no known release.
    """
    files: dict[str, list[str]] = {}
    if isinstance(recipe.model, NamedRecipe):
        files = {repository: [*names] for repository, names in recipe.model.hub.items()}
        known = known_recipe(recipe.model, recipe.image)
        if known is not None and known.configuration is not None:
            files.setdefault(known.configuration, []).append("config.json")
        if known is not None and known.tokenizer is not None:
            files.setdefault(known.tokenizer, []).append("tokenizer_config.json")
    return files


def set_already(arguments: Collection[str], images: Iterable[str | None]) -> list[str]:
    """Return those names in `arguments` that steptime itself passes to the launch scripts.

    `images` determine the releases of Megatron-Bridge, whose scripts get different arguments.
    """
    of_release = set()
    for image in images:
        with suppress(UserError):  # an image of no known release: its own problem
            release = bridge_release(image)
            texts = (*release.arguments, *release.given.values(), *itertools.chain(*release.modes.values()))
            of_release |= {text.removeprefix("--").partition("=")[0] for text in texts}
    return [name for name in arguments if name in of_release]


def misfit(
    model: NamedRecipe,
    *,
    image: str | None,
    gpu_type: str,
    dtype: str,
    spread: ModelParallelism | Parallelism,
) -> str | None:
    """Return why the Megatron-Bridge in an image cannot start a recipe as planned; None if it can.

    Raises UserError if the image's release is unknown.
    """
    if model.launch is not None:
        known = model.launch.commits
        return None if image in known else f"launch has no commit for {image}, only for {', '.join(known)}"
    release = bridge_release(image)
    if gpu_type not in release.gpu_types:
        return f"{image} has recipes for {', '.join(release.gpu_types)}, and not for {gpu_type}"
    if dtype not in release.dtypes:
        return f"{image} has recipes in {', '.join(release.dtypes)}, and not in {dtype}"
    optional = {name: getattr(spread, name, None) for name in OPTIONAL} | {"variant": model.variant}
    for name, value in optional.items():
        if value is not None and name not in release.given:
            return f"{image} starts no recipe with {name} {value}: leave {name} out"
    return None


def bridge_command(run: Run) -> tuple[str, ...]:
    """Return the script and its arguments with which each rank starts a recipe of Megatron-Bridge.

    The script is a path in the image; for a model with a `launch`, it is below the job's checkout of
    Megatron-Bridge. Raises UserError if the image cannot start the recipe.
    """
    recipe, model = run.recipe, run.recipe.model
    if not isinstance(model, NamedRecipe):
        raise UserError(
            f"{run.label} is not started by Megatron-Bridge: in the workload's file set architecture: "
            "megatron-bridge and recipe in its model."
        )
    row = {"gpu_type": recipe.gpu_type, "dtype": recipe.dtype}
    wrong_name = misnamed(model, recipe.image)
    problem = (
        misfit(model, image=recipe.image, **row, spread=recipe.parallelism)
        if wrong_name is None
        else wrong_name.message
    )
    if problem is not None:
        raise UserError(f"{recipe.workload} {recipe.size} cannot be started: {problem}.")
    launch = model.launch
    if launch is not None:
        dtype = launch.dtypes.get(recipe.dtype, recipe.dtype)
        script, told = launch.script, (*launch.arguments, *(launch.profile if run.profile else ()))
    else:
        release = bridge_release(recipe.image)
        dtype = release.dtypes[recipe.dtype]
        script, told = release.script, _make_arguments(release, recipe, model, run.mode)
    words = {**_words_of_row(recipe, model), "dtype": dtype, **_words_of_run(run)}
    return (
        script,
        *(text.format_map(words) for text in told),
        *(f"--{name}={value}" for name, value in run.performance.arguments.items()),
    )


def _make_arguments(
    release: BridgeRelease, recipe: Recipe, model: NamedRecipe, mode: Mode
) -> tuple[str, ...]:
    words = _words_of_row(recipe, model)
    optional = [
        said[name]
        for name in OPTIONAL
        if name in (said := release.missing if words[name] is None else release.given)
    ]
    return (*release.arguments, *optional, *release.overrides, *release.modes.get(mode, ()))


def bridge_commit(recipe: Recipe) -> str | None:
    """Return the Megatron-Bridge commit whose scripts start a recipe; None to use the image's."""
    launch = recipe.model.launch if isinstance(recipe.model, NamedRecipe) else None
    return None if launch is None or recipe.image is None else launch.commits.get(recipe.image)


def _words_of_row(recipe: Recipe, model: NamedRecipe) -> dict[str, str | int | None]:
    return {
        **model.model_dump(include={"family", "recipe", "variant"}),
        **recipe.parallelism.model_dump(exclude={"data"}),
        "gpu_type": recipe.gpu_type,
        "gpus": recipe.gpus,
        "micro_batch_size": recipe.micro_batch_size,
        "global_batch_size": recipe.global_batch_size,
    }


def _words_of_run(run: Run) -> dict[str, str | int]:
    words: dict[str, str | int] = {
        "max_steps": run.max_steps,
        "checkpoints": CHECKPOINTS,
        "checkpoint": run.checkpoint_path or "SAVED_CHECKPOINT",
        "async_save": str(run.settings.async_save).lower(),
    }
    if run.profile is not None:
        words |= {
            "profile_start": run.profile.first_step,
            # Upstream ends with the step before.
            "profile_end": min(run.profile.last_step + 1, run.max_steps),
            "profile_ranks": ",".join(map(str, run.profile.ranks)),
        }
    return words


def bridge_file() -> Path:
    """Return the path of the file of Megatron-Bridge releases: the config folder's, else the shipped one."""
    own = config_dir() / "megatron_bridge.yaml"
    return own if own.exists() else shipped("config") / "megatron_bridge.yaml"


def broken_releases() -> BrokenFiles | None:
    """Return all mistakes in the file of Megatron-Bridge releases; None if there are none."""
    return broken_entries(_document, BridgeRelease)


def _document() -> Document:
    return read_entries(bridge_file(), 'names no releases, as in "26.02": {source: …}')
