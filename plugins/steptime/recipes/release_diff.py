"""What one release of a workload changed against another, cell by cell."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from steptime.errors import UserError
from steptime.recipes.models import Mode, NamedRecipe, Recipe
from steptime.recipes.performance_rules import CPU
from steptime.recipes.tables import row
from steptime.recipes.workload_file import Workload

_COLUMNS = {
    **{"seq_len": "tokens per sample", "layers": "layers"},
    **{"tp": "tensor parallel", "pp": "pipeline parallel", "vp": "virtual pipeline"},
    **{"cp": "context parallel", "ep": "expert parallel", "etp": "expert tensor parallel"},
    **{"mbs": "micro batch", "gbs": "global batch"},
}
"""Columns of a configuration table that are compared, and their names for people."""
_CLUSTER_KIND = "slurm"
"""The kind of cluster whose launch settings are compared: upstream's."""


class _Cell(NamedTuple):
    """What two releases have in common if they run the same."""

    model: str
    gpu_type: str
    dtype: str
    scaling: str
    gpus: int


def release_differences(old: Workload, new: Workload) -> list[dict[str, Any]]:
    """Return a row for each setting that has another value in the newer workload.

    A row has `model`, `cells`, `setting`, `old` and `new`. Cells are runs with the same model, GPU type,
    number format and number of GPUs; `cells` lists those in which the setting changes in the same way, or is
    `all` of those that both workloads have. A value is None where a workload does not have the setting. Cells
    that only one of the workloads has are one row per model, with the setting `cell`. CPU sizes and proxies
    are left out.

    Raises:
        UserError: the workloads have no cell in common.
    """
    before, after = _cells(old), _cells(new)
    both = [cell for cell in before if cell in after]
    if not both:
        raise UserError(
            f"{old.workload} and {new.workload} have no run in common, so there is nothing to compare: name "
            "two releases of one model."
        )
    changes: dict[tuple[str, str, Any, Any], list[_Cell]] = defaultdict(list)
    for cell in both:
        for setting in dict.fromkeys((*before[cell], *after[cell])):
            earlier, later = before[cell].get(setting), after[cell].get(setting)
            if earlier != later:
                changes[cell.model, setting, earlier, later].append(cell)
    for cell in sorted(before.keys() ^ after.keys()):
        values = ("yes", None) if cell in before else (None, "yes")
        changes[cell.model, "cell", *values].append(cell)
    rows = [
        {
            "model": model,
            "cells": _in_words(cells, [cell for cell in both if cell.model == model]),
            "setting": setting,
            "old": earlier,
            "new": later,
        }
        for (model, setting, earlier, later), cells in changes.items()
    ]
    return sorted(rows, key=lambda row: (row["model"], row["cells"] != "all", row["cells"]))


def _cells(workload: Workload) -> dict[_Cell, dict[str, Any]]:
    """Return the settings of each cell of a workload, by their names for people."""
    cells = {}
    for recipe, _ in workload.recipes():
        if recipe.gpu_type == CPU or recipe.proxy:
            continue
        cell = _Cell(_model(recipe), recipe.gpu_type, recipe.dtype, recipe.scaling, recipe.gpus)
        cells[cell] = dict(_settings(workload, recipe))
    return cells


def _model(recipe: Recipe) -> str:
    """Return the name by which two releases know a model: its recipe's for Megatron-Bridge, else its size."""
    model = recipe.model
    if not isinstance(model, NamedRecipe):
        return recipe.size
    # Release 25.12 leaves the family out of a recipe's name.
    return f"{model.family}_{model.recipe}" if model.recipe[0].isdigit() else model.recipe


def _settings(workload: Workload, recipe: Recipe) -> Iterator[tuple[str, Any]]:
    columns, steps = row(recipe), workload.find_steps(recipe.size)
    yield from ((words, columns[name]) for name, words in _COLUMNS.items())
    yield "image", recipe.image
    yield "steps", steps.max_steps
    yield "measured steps", steps.window
    yield "time limit", workload.find_time_limit(recipe.size, recipe.gpu_type, recipe.scaling)
    performance = workload.performance.of(recipe, recipe.size, Mode.PERFORMANCE, _CLUSTER_KIND)
    arguments: Iterable[str] = (f"--{name}={value}" for name, value in performance.arguments.items())
    names: dict[str, str | None] = {}
    if isinstance(model := recipe.model, NamedRecipe):
        yield "script", model.launch.script
        yield "commit of Megatron-Bridge", _commit(recipe, model.launch.commits)
        arguments = (*model.launch.arguments, *arguments)
        named = model.model_dump(include={"family", "recipe", "variant"})
        names = {f"{{{word}}}": value for word, value in named.items()}
    for argument in arguments:
        name, _, text = argument.partition("=")
        value = names.get(text, text)
        if value is not None and "{" not in value:  # else it is one of the settings above
            yield f"argument {name}", value or "given"
    yield from ((f"variable {name}", value) for name, value in performance.environment.items())
    yield "ranks per NUMA node", performance.ranks_per_numa_node
    yield "cores of their own", performance.priority_cores
    yield "vboost", performance.vboost
    for name, value in performance.trainer.model_dump(exclude_defaults=True).items():
        yield f"trainer {name}", value


def _commit(recipe: Recipe, commits: Mapping[str, str | None]) -> str | None:
    """Return the first digits of the commit whose scripts an image starts; None for its own scripts."""
    commit = commits.get(recipe.image or "")
    return commit and commit[:10]


def _in_words(cells: list[_Cell], common: list[_Cell]) -> str:
    """Return `all` if these are all common cells, else the numbers of GPUs by GPU type and number format."""
    if cells == common:
        return "all"
    numbers: dict[str, list[str]] = defaultdict(list)
    scalings = {cell.scaling for cell in (*cells, *common)}
    for cell in cells:
        scaling = f" {cell.scaling}" if len(scalings) > 1 else ""
        numbers[f"{cell.gpu_type} {cell.dtype}{scaling}"].append(str(cell.gpus))
    return "; ".join(f"{name}: {', '.join(gpus)}" for name, gpus in numbers.items())
