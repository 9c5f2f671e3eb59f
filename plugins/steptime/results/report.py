"""Result rows for readers: scaling efficiency, the table's columns with their units, how to repeat a run."""

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from steptime.errors import UserError
from steptime.recipes.models import Mode, Run
from steptime.recipes.notation import format_time_limit
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.recipes.slurm_options import SlurmOptions
from steptime.recipes.workloads import load_workload

Row = Mapping[str, Any]

# Runs that differ in nothing else but their number of GPUs may be compared.
_SERIES = ("workload", "size", "dtype", "gpu_type", "scaling", "proxy", "cluster", "mode")

HEADINGS = {
    "job_name": "job",
    "label": "run",
    "gpus": "GPUs",
    "step_time": "step time ± std, s",
    "wall_time": "wall time, s",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "mfu": "MFU, %",
    "formula": "MFU formula",
    "efficiency": "efficiency, %",
    "relative_to": "relative to",
    "checkpoint_save_s": "save, s",
    "checkpoint_blocked_s": "save blocked, s",
    "checkpoint_load_s": "load, s",
}
"""Headings of the table's columns that do not read well as they are."""

# In place of a column in which every run has the same.
_TITLES = {
    "workload": "{workload}",
    "window": "steps {window}",
    "formula": "MFU by {formula}",
    "relative_to": "efficiency relative to {relative_to}",
    "state": "all {state}",
}


def with_scaling_efficiency(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows in the order people read them, with how well each run scales from the smallest of its series.

    `scaling_efficiency_percent` is tokens/s per GPU over the mean of that at `scaling_base_gpus`, the
    smallest number of GPUs of the same series among these rows: 100 means linear, for weak and strong scaling
    alike. None for rejected runs, other modes than performance, and series of one scale.
    """
    bases = _bases(rows)
    ordered = sorted(rows, key=_reading_order)
    return [dict(row) | _efficiency(row, bases.get(_series(row))) for row in ordered]


def _series(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SERIES)


def _reading_order(row: Row) -> tuple[Any, ...]:
    *series, mode = _series(row)
    return (*series, list(Mode).index(Mode(mode)), row["gpus"], row["submitted_at"])


def _counts(row: Row) -> bool:
    return bool(row["state"] == "valid" and row["mode"] == Mode.PERFORMANCE.value)


def _bases(rows: Iterable[Row]) -> dict[tuple[Any, ...], tuple[int, float]]:
    """Smallest scale and its tokens/s/GPU of each series with more than one."""
    by_series: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for row in filter(_counts, rows):
        scales = by_series.setdefault(_series(row), {})
        scales.setdefault(row["gpus"], []).append(row["tokens_per_s_per_gpu"])
    return {
        series: (min(scales), statistics.fmean(scales[min(scales)]))
        for series, scales in by_series.items()
        if len(scales) > 1
    }


def _efficiency(row: Row, base: tuple[int, float] | None) -> dict[str, Any]:
    known = base if _counts(row) else None
    return {
        "scaling_efficiency_percent": 100 * row["tokens_per_s_per_gpu"] / known[1] if known else None,
        "scaling_base_gpus": known[0] if known else None,
    }


def table(rows: Sequence[Row], *, full_names: bool = False) -> tuple[list[dict[str, Any]], str]:
    """What people compare runs by, from rows of `with_scaling_efficiency`: the table's rows, and its title.

    What all runs share (workload, window, MFU's formula, the scale that efficiency is relative to) moves from
    the columns into the title, and columns that are empty throughout are left out. `full_names` names runs by
    their job.
    """
    name = "job_name" if full_names else "label"
    cells = [
        {
            name: row[name],
            "workload": row["workload"],
            "gpus": row["gpus"],
            "step_time": _spread(row["step_time_mean_s"], row["step_time_std_s"]),
            "wall_time": row["wall_time_median_s"],
            "window": row["window"],
            "tokens_per_s": row["tokens_per_s"],
            "tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"],
            "mfu": row["mfu_percent"],
            "formula": row["flops_formula"],
            "efficiency": row["scaling_efficiency_percent"],
            "relative_to": _gpus(row["scaling_base_gpus"]),
            "checkpoint_save_s": row["checkpoint_save_s"],
            "checkpoint_blocked_s": row["checkpoint_blocked_s"],
            "checkpoint_load_s": row["checkpoint_load_s"],
            "submitted": f"{datetime.fromtimestamp(row['submitted_at']).astimezone():%Y-%m-%d %H:%M}",
            "state": row["state"],
        }
        for row in rows
    ]
    used = {column for cell in cells for column, value in cell.items() if value not in (None, "")}
    shared = {column for column in _TITLES if len({cell[column] for cell in cells} - {None}) == 1}
    title = ", ".join(
        text.format(**_first(cells, column)) for column, text in _TITLES.items() if column in shared
    )
    return [
        {column: value for column, value in cell.items() if column in used - shared} for cell in cells
    ], title


def _first(cells: Sequence[Row], column: str) -> Row:
    """The first row that has the column."""
    return next(cell for cell in cells if cell[column] is not None)


def _spread(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.4g}" if deviation is None else f"{mean:.4g} ± {deviation:.2g}"


def _gpus(count: int | None) -> str | None:
    return None if count is None else f"{count} GPU{'s' if count > 1 else ''}"


def notes(rows: Iterable[Row]) -> list[str]:
    """A sentence for each run that has a reason or a warning."""
    return [
        f"{row['label']} ({row['job_name']}) {said}: {text}"
        for row in rows
        for said, text in (("is rejected", row["reason"]), ("counts, but note", row["warnings"]))
        if text
    ]


def repeat_command(run: Run) -> str | None:
    """The `steptime run` command that would plan this very run; None where the recipes no longer give it."""
    recipe, slurm = run.recipe, run.slurm or SlurmOptions()
    try:
        documented = load_workload(recipe.workload).gpu_types[recipe.gpu_type].image
    except (KeyError, UserError):
        return None
    asked = {
        **recipe.identity,
        "gpus": str(recipe.gpus),
        "proxy": recipe.proxy,
        "time_limit": format_time_limit(run.time_limit_s),
        "cluster": run.cluster,
        "environment": run.environment,
        "async_save": run.async_save,
        "image": None if recipe.image == documented else recipe.image,
        "cuda_graphs": run.cuda_graphs,
        "tp_comm_overlap": run.tp_comm_overlap,
        **slurm.model_dump(exclude={"additional"}),
        "additional_slurm_params": ";".join(option.removeprefix("--") for option in slurm.additional) or None,
    }
    for kind in _kinds(run):
        for tensor in (None, recipe.parallelism.tensor):  # only some sizes leave tensor parallelism open
            request = PlanRequest.model_validate({**asked, **kind, "tensor_parallel": tensor})
            try:
                planned = plan(request).all_runs
            except UserError:
                continue
            if any(_same_work(run, other) for other in planned):
                return _command(request)
    return None


def repeat_command_of_record(record: Row) -> str | None:
    """The same of a run's record; None as well where today's models no longer read its plan."""
    try:
        return repeat_command(Run.model_validate(record["run"]))
    except ValidationError:
        return None


def _kinds(run: Run) -> list[dict[str, Any]]:
    """What asks for a run of that kind, the likeliest first."""
    steps: dict[str, Any] = {"max_steps": run.max_steps, "window": str(run.window)}
    if run.mode is Mode.CHECKPOINT_SAVE:
        return [{"checkpoint": True, **steps}, {"save_checkpoint": True, **steps}]
    if run.mode is Mode.CHECKPOINT_LOAD:
        saved_at = {"max_steps": run.first_step}
        window = run.window.model_copy(update={"first": run.first_step - 1, "last": run.first_step - 1})
        return [
            {"checkpoint": True, **saved_at},
            {"checkpoint": True, "window": str(window), **saved_at},  # shorter than the document's window
            {"load_checkpoint": run.checkpoint_path, **saved_at},
        ]
    if run.profile is not None:
        asked = {
            "profile": True,
            "profile_start": run.profile.first_step,
            "profile_stop": run.profile.last_step,
            "gpu_metrics": run.profile.gpu_metrics,
            **steps,
        }
        return [asked, {**asked, "profile_ranks": ",".join(map(str, run.profile.ranks))}]
    return [{"nccl_trace": True, **steps} if run.mode is Mode.NCCL_TRACE else steps]


def _same_work(one: Run, other: Run) -> bool:
    # Which repeat it was, and where the saving job put its checkpoint, is no part of the work. The model
    # flops follow from the recipe, and plans of before have none.
    apart = {"repeat", "checkpoint_path", "model_flops"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _command(request: PlanRequest) -> str:
    words = ["steptime", "run", request.workload]
    for name, field in PlanRequest.model_fields.items():
        value = getattr(request, name)
        flag = f"--{name.replace('_', '-')}"
        if name in ("workload", "environment") or value == field.get_default(call_default_factory=True):
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            words += [flag, str(value)]
    for name, value in request.environment.items():
        words += ["--env", f"{name}={value}"]
    return shlex.join(words)
