"""Say which performance settings a model without rules lacks, by those of the nearest model with rules."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from steptime.recipes.models import ModelShape, Recipe
from steptime.recipes.parameters import count_parameters
from steptime.recipes.performance_rules import CPU, Row
from steptime.recipes.planning import Plan
from steptime.recipes.workload_file import Workload
from steptime.recipes.workloads import load_workload, load_workloads


class _Neighbor(NamedTuple):
    """A recipe of another workload, and the names of the settings that its performance rules give."""

    distance: float
    recipe: Recipe
    settings: tuple[str, ...]


def missing_rules(planned: Plan) -> list[str]:
    """Return a sentence if the plan's model has no performance rule for its GPUs; else nothing.

    It names what the rules of the nearest model set. That is the model with the most similar number of
    parameters among those that have rules for this type of GPU: another mixture of experts for a mixture.
    For a mixture without such a neighbor it names the block in the docs to begin with.
    """
    recipe = planned.runs[0].recipe
    trained_elsewhere = recipe.launcher is not None or not isinstance(recipe.model, ModelShape)
    if recipe.gpu_type == CPU or trained_elsewhere:
        return []
    if _settings(load_workload(recipe.workload), recipe):
        return []
    sentence = (
        f"{recipe.workload} has no performance rules for {recipe.gpu_type}: overlaps of communication, the "
        "binding of ranks and variables are off."
    )
    nearest = min(_neighbors(recipe), key=lambda neighbor: neighbor.distance, default=None)
    if nearest is None and _is_mixture(recipe):
        sentence += ' Rules to begin with are in docs/reference/workloads.md, "A mixture of experts".'
    elif nearest is not None:
        name = f"{nearest.recipe.workload} {nearest.recipe.size}"
        sentence += f" The nearest model with rules, {name}, sets {', '.join(nearest.settings)}."
    return [sentence]


def _settings(workload: Workload, recipe: Recipe) -> tuple[str, ...]:
    """Return the names of all settings that a workload's rules give a recipe, in any mode."""
    row = Row(recipe.size, recipe.size, recipe.dtype, recipe.gpu_type, recipe.parallelism)
    rules = (rule for rule in workload.performance.rules if rule.holds_for_row(row))
    return tuple(dict.fromkeys(name for rule in rules for name in rule.settings()))


def _neighbors(recipe: Recipe) -> Iterator[_Neighbor]:
    """Yield recipes of other workloads with rules for this type of GPU; to a mixture only mixtures."""
    workloads, _ = load_workloads()
    for workload in workloads:
        if workload.workload == recipe.workload:
            continue
        for other, _ in workload.recipes():
            if (
                other.gpu_type != recipe.gpu_type
                or other.proxy
                or _is_mixture(other) is not _is_mixture(recipe)
            ):
                continue
            if settings := _settings(workload, other):
                yield _Neighbor(_distance(recipe, other), other, settings)


def _distance(recipe: Recipe, other: Recipe) -> float:
    """Return how different two models and their number formats are."""
    counts = count_parameters(recipe.model), count_parameters(other.model)
    sizes = [math.log(count.total) for count in counts if count is not None]
    apart = abs(sizes[0] - sizes[1]) if len(sizes) == 2 else math.inf
    return apart + (recipe.dtype != other.dtype) / 10


def _is_mixture(recipe: Recipe) -> bool | None:
    """Return whether the model is a mixture of experts, or None if steptime's trainer does not build it."""
    return recipe.model.moe is not None if isinstance(recipe.model, ModelShape) else None
