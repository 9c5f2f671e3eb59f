"""Manual tuning: a published configuration with other parallelism, batch sizes or arguments.

A tuned run is not comparable with the publication: its experiment name, label and series show the tuning.
"""

import re
from collections.abc import Iterator

from pydantic import ValidationError

from steptime.errors import UserError, one_line
from steptime.recipes.bridge_launch import find_repeated, placeholders
from steptime.recipes.models import ModelShape, NamedRecipe, Parallelism, Performance, Recipe
from steptime.recipes.request import PlanRequest
from steptime.refusals import describe_validation_error

_WAYS = ("tensor", "pipeline", "context", "expert")
_ARGUMENT = re.compile(r"[a-z][a-z0-9_.]*", re.ASCII)


def tune(recipe: Recipe, request: PlanRequest) -> tuple[Recipe, str]:
    """Return the recipe with the requested changes, and a description such as `tp4 mbs2`.

    The description is empty if nothing changed. Raises UserError for a recipe that cannot run.
    """
    ways = {way: getattr(request, f"{way}_parallel") for way in _WAYS}
    published = {way: getattr(recipe.parallelism, way) for way in _WAYS}
    changed = {way: size for way, size in ways.items() if size is not None and size != (published[way] or 1)}
    batches = ("micro_batch_size", "global_batch_size")
    sizes = {name: getattr(request, name) for name in batches}
    sizes = {name: size for name, size in sizes.items() if size not in (None, getattr(recipe, name))}
    words = [f"{way[0]}p{size}" for way, size in changed.items()]
    if changed:
        parallelism = _parallelism(recipe, changed)
        if parallelism.virtual_pipeline != recipe.parallelism.virtual_pipeline:
            words.append("vp1")
        sizes["parallelism"] = parallelism
    words += [f"{name[0]}bs{size}" for name, size in sizes.items() if name in batches]
    if isinstance(recipe.model, NamedRecipe):
        passed = placeholders(recipe.model.launch.arguments)
        for name in (*changed, *(name for name in sizes if name in batches)):
            if name not in passed:
                problem = (
                    f"its launch gives Megatron-Bridge no {{{name}}}; give upstream's own argument by --arg, "
                    "as in --arg tensor_model_parallel_size=2"
                )
                raise _refusal(recipe, words, problem)
    words += [f"{name}={value}" for name, value in _arguments(recipe, request)]
    if not sizes:
        return recipe, " ".join(words)
    try:
        return Recipe.model_validate(dict(recipe) | sizes), " ".join(words)
    except ValidationError as error:
        raise _refusal(recipe, words, describe_validation_error(error.errors()[0])) from None


def tuned_performance(
    performance: Performance, recipe: Recipe, request: PlanRequest, tuning: str
) -> Performance:
    """Return a tuned recipe's launch settings, with the requested arguments.

    Settings that fit only the published parallelism are removed. `tuning` is the description from `tune`; if
    it is empty, the settings are returned unchanged.
    """
    if not tuning:
        return performance
    trainer: dict[str, bool | None] = {"tp_comm_overlap_cfg": None}
    if recipe.parallelism.tensor == 1:
        trainer |= {"tp_comm_overlap": False}
    return performance.model_copy(
        update={
            "trainer": performance.trainer.model_copy(update=trainer),
            "arguments": performance.arguments | request.arguments,
        }
    )


def _parallelism(recipe: Recipe, changed: dict[str, int]) -> Parallelism:
    """Return the recipe's parallelism with the `changed` sizes, on the same number of GPUs.

    If the number of pipeline stages changes, all stages get the same number of layers and no virtual stages.
    Raises UserError for an impossible size.
    """
    values = recipe.parallelism.model_dump() | changed
    words = [f"{way[0]}p{size}" for way, size in changed.items()]
    if "pipeline" in changed:
        values |= dict.fromkeys(("virtual_pipeline", "first_stage_layers", "last_stage_layers"))
    replica = values["tensor"] * values["pipeline"] * values["context"]
    if recipe.gpus % replica:
        problem = f"{recipe.gpus} GPUs are no multiple of tensor × pipeline × context parallel = {replica}"
        raise _refusal(recipe, words, problem)
    parallelism = Parallelism(**values | {"data": recipe.gpus // replica})
    for problem in _misfits(recipe, parallelism, changed):
        raise _refusal(recipe, words, problem)
    return parallelism


def _misfits(recipe: Recipe, parallelism: Parallelism, changed: dict[str, int]) -> Iterator[str]:
    model = recipe.model
    if "expert" in changed and recipe.parallelism.expert is None:
        yield "it has no experts to spread"
    elif parallelism.expert is not None and recipe.gpus % parallelism.expert_replica:
        of_one = f"expert × expert tensor × pipeline parallel = {parallelism.expert_replica}"
        yield f"{recipe.gpus} GPUs are no multiple of {of_one}"
    if not isinstance(model, ModelShape):
        return  # upstream has its sizes
    heads, layers, stages = model.num_attention_heads, model.num_layers, parallelism.stages
    if heads % parallelism.tensor:
        yield f"{heads} attention heads cannot be spread over tensor parallel {parallelism.tensor}"
    if "pipeline" in changed and layers % stages and not parallelism.counts_embedding(layers):
        yield f"{layers} layers cannot be divided into {stages} pipeline stages"
    if model.moe is not None and model.moe.num_moe_experts % (parallelism.expert or 1):
        experts = model.moe.num_moe_experts
        yield f"{experts} experts cannot be spread over expert parallel {parallelism.expert}"


def _arguments(recipe: Recipe, request: PlanRequest) -> Iterator[tuple[str, str]]:
    """Yield name and value of the requested arguments for upstream's script.

    Raises UserError for those that steptime sets, and if no script of upstream's starts the recipe.
    """
    if not request.arguments:
        return
    if not isinstance(recipe.model, NamedRecipe):
        raise UserError(
            f"`arguments` are for scripts of Megatron-Bridge, and {recipe.workload} {recipe.size} is not "
            "one of its recipes: leave them out."
        )
    for name in request.arguments:
        if not _ARGUMENT.fullmatch(name):
            raise UserError(
                f"argument '{one_line(name)}': write its name without dashes, in small letters, as in "
                "recompute_num_layers."
            )
    if double := find_repeated(request.arguments, recipe.model.launch):
        raise UserError(f"argument '{double[0]}' is already set by steptime for each run: leave it out.")
    yield from request.arguments.items()


def _refusal(recipe: Recipe, words: list[str], problem: str) -> UserError:
    what = f"{recipe.workload} {recipe.size} on {recipe.gpus} × {recipe.gpu_type}"
    return UserError(f"{what} cannot be tuned to {' '.join(words)}: {problem}.")
