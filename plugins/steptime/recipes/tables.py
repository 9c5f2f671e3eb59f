"""Recipes in the form of the published configuration tables, with their short column names."""

from collections.abc import Iterator
from typing import Any

from steptime.recipes.models import Recipe
from steptime.recipes.parameters import count_parameters
from steptime.recipes.performance_rules import CPU
from steptime.recipes.workload_file import PrintedRow, Workload


def row(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as a row of a configuration table, by short column names such as `tp` and `gbs`.

    `vp` is None without virtual pipeline, `ep` and `etp` are None without experts.
    """
    parallelism, identity, counted = recipe.parallelism, recipe.identity, count_parameters(recipe.model)
    return {
        "recipe": identity.pop("workload"),
        **identity,
        "seq_len": recipe.model.seq_length,
        "layers": recipe.model.num_layers,
        "parameters": counted and counted.total,
        "active_parameters": counted and counted.active,
        "tp": parallelism.tensor,
        "pp": parallelism.pipeline,
        "cp": parallelism.context,
        "ep": parallelism.expert,
        "etp": parallelism.expert_tensor,
        "dp": parallelism.data,
        "vp": parallelism.virtual_pipeline,
        "mbs": recipe.micro_batch_size,
        "gbs": recipe.global_batch_size,
        "ga": recipe.gradient_accumulation,
    }


def rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield all recipes of the workload as table rows, CPU sizes included, with time limit and image."""
    for recipe, _ in workload.recipes():
        steps = workload.find_steps(recipe.size)
        yield row(recipe) | {
            "max_steps": steps.max_steps,
            "window": steps.window,
            "time_limit": workload.find_time_limit(recipe.size, recipe.gpu_type, recipe.scaling),
            "flops_formula": recipe.flops_formula,
            "image": recipe.image,
        }


def published_rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield a workload's rows as its publication prints them, even where that differs from what is run."""
    for recipe, rule in workload.recipes():
        if rule.printed is not None:
            yield _as_printed(row(recipe), rule.printed)


def _as_printed(cells: dict[str, Any], printed: PrintedRow) -> dict[str, Any]:
    otherwise = {_COLUMNS[name]: cell for name, cell in printed if cell is not None}
    without_column = {"ep": "", "etp": ""} if cells["ep"] is None else {}
    filled = cells | {"vp": cells["vp"] or "NA"} | without_column | otherwise
    return {column: cell for column, cell in filled.items() if column not in _NOT_PRINTED}


_COLUMNS = {
    **{"seq_length": "seq_len", "num_layers": "layers"},
    **{"tensor_parallel": "tp", "pipeline_parallel": "pp", "context_parallel": "cp"},
    **{"expert_parallel": "ep", "expert_tensor_parallel": "etp", "data_parallel": "dp"},
    **{"virtual_pipeline": "vp", "micro_batch_size": "mbs", "global_batch_size": "gbs"},
    "gradient_accumulation": "ga",
}
"""Column name by field of `PrintedRow`."""
_NOT_PRINTED = ("parameters", "active_parameters")
"""Columns that no document's table has."""


def launch_rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row for each launch setting of each rule, in order.

    `condition` is empty if the setting holds for all runs on these GPU types; of two rows that both hold, the
    later one counts.
    """
    gpu_types = [name for name in workload.gpu_types if name != CPU]
    for rule in workload.performance.rules:
        for setting, value in rule.settings().items():
            yield {
                "recipe": workload.workload,
                "gpu_types": ", ".join(rule.gpu_types or gpu_types),
                "setting": setting,
                "value": value,
                "condition": rule.conditions(),
                "source": workload.performance.sources[rule.source],
            }
