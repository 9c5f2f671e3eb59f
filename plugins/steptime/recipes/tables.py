"""Recipes as rows of the documents' configuration tables, under the documents' short column names."""

from collections.abc import Iterator
from typing import Any

from steptime.recipes.models import Recipe
from steptime.recipes.performance_rules import CPU
from steptime.recipes.workload_file import Printed, Workload


def row(recipe: Recipe) -> dict[str, Any]:
    """A recipe as steptime runs it: `vp` is None if there is no virtual pipeline."""
    parallelism, identity = recipe.parallelism, recipe.identity
    return {
        "recipe": identity.pop("workload"),
        **identity,
        "seq_len": recipe.model.seq_length,
        "layers": recipe.model.num_layers,
        "tp": parallelism.tensor,
        "pp": parallelism.pipeline,
        "cp": parallelism.context,
        "dp": parallelism.data,
        "vp": parallelism.virtual_pipeline,
        "mbs": recipe.micro_batch_size,
        "gbs": recipe.global_batch_size,
        "ga": recipe.gradient_accumulation,
    }


def rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """Every recipe of the workload, CPU sizes included, with how long it runs and in which image."""
    for recipe, _ in workload.recipes():
        steps = workload.steps_of(recipe.size)
        yield row(recipe) | {
            "max_steps": steps.max_steps,
            "window": steps.window,
            "time_limit": steps.time_limit[recipe.scaling],
            "flops_formula": recipe.flops_formula,
            "image": recipe.image,
        }


def published_rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """The rows as the workload's document prints them, cells included that differ from what is run."""
    for recipe, rule in workload.recipes():
        if rule.printed is not None:
            yield _as_printed(row(recipe), rule.printed)


def _as_printed(cells: dict[str, Any], printed: Printed) -> dict[str, Any]:
    columns = list(cells)
    columns.insert(columns.index("dp"), "ep")
    virtual_pipeline = printed.virtual_pipeline or cells["vp"] or "NA"
    filled = cells | {"ep": printed.expert_parallel, "vp": virtual_pipeline}
    return {column: filled[column] for column in columns}


def launch_rows(workload: Workload) -> Iterator[dict[str, Any]]:
    """How the workload's runs are launched on GPUs: a row for each setting of each rule, in their order.

    `condition` is empty for all runs on the GPU types; of two rows that both hold, the later one counts.
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
