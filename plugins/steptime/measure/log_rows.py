"""Read a training log as a row with the columns of the metrics store, for people who have no store."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steptime.clusters.collecting import cluster_path
from steptime.errors import UserError
from steptime.logs.reader import read_log
from steptime.logs.training_log import Problem, TrainingLog
from steptime.measure.metrics import checkpoint_seconds, measure, measure_window, peak_memory_gib
from steptime.measure.recognition import (
    Upstream,
    alternatives,
    find_batch_size,
    find_upstream,
    mode_of_log,
    planned_run,
    window_of_log,
)
from steptime.recipes.models import RUN_FILE, Mode, Run, Window
from steptime.recipes.published import list_references, load_reference
from steptime.store.columns import BY_NAME, Column
from steptime.wording import first_names


def _result_columns(*names: str) -> tuple[Column, ...]:
    return tuple(BY_NAME[name] for name in names)


COLUMNS = (
    Column(
        "log_path", "text", "The log, or the last of the logs of a requeued job.", heading="log", priority=0
    ),
    Column(
        "state",
        "text",
        "complete, incomplete (steps or numbers are missing, and nothing failed), failed, or unknown (the "
        "log does not show whether training ended).",
        priority=0,
    ),
    Column("reason", "text", "Why it is not complete."),
    Column("warnings", "text", "What a reader of the numbers should know."),
    Column("format", "text", "Format of the step lines: that of NeMo 2, of a progress bar, …"),
    Column("experiment", "text", "Name of the planned run."),
    *_result_columns(
        "workload", "size", "dtype", "gpu_type", "scaling", "gpus", "mode", "global_batch_size", "window"
    ),
    Column(
        "window_from",
        "text",
        "Origin of the window: --window, the run.json beside the log, llmb-config, the experiment name, or "
        "the last step.",
    ),
    *_result_columns("steps_in_window"),
    Column("steps", "integer", "Steps in the log.", priority=3),
    Column("last_step", "integer", "Global step of the last of them."),
    Column("max_steps", "integer", "Global step at which the planned run ends."),
    *_result_columns("step_time_mean_s", "step_time_median_s", "step_time_std_s", "wall_time_median_s"),
    *_result_columns(
        "published_step_time_s", "step_time_over_published", "tokens_per_s", "tokens_per_s_per_gpu"
    ),
    *_result_columns("days_per_1t_tokens", "mfu_percent", "flops_formula"),
    *_result_columns("model_tflops_per_gpu", "peak_tflops_per_gpu"),
    Column("peak_source", "text", "The document of the peak."),
    *_result_columns(
        "tflops_per_gpu_logged", "tflops_per_gpu_logged_std", "peak_memory_gib", "bus_bandwidth_gb_s"
    ),
    Column("loss", "number", "Loss of the last step."),
    *_result_columns("checkpoint_save_s", "checkpoint_blocked_s", "checkpoint_load_s", "network"),
    Column("log_bytes", "integer", "Bytes read.", unit="bytes"),
)
"""Columns of every log's row. Those that results have too are declared in `store.columns`."""

_NOT_COMPARED = {"published_step_time_s": None, "step_time_over_published": None}
"""Values for modes other than performance, whose extra work takes time."""

_OF_THE_GPU_TYPE = (
    *("mfu_percent", "peak_tflops_per_gpu", "peak_source"),
    *("published_step_time_s", "step_time_over_published"),
)
"""Columns that depend on the GPU type."""

_NO_FAILURE = {
    *("short", "end_unknown", "nothing_to_train", "stopped_early", "exit_interval", "comma_in_number"),
    *("unknown_format", "wrapped_lines"),
}
"""Kinds of fatal problems that are not failures."""
_UNKNOWN = {"end_unknown", "unknown_format", "wrapped_lines"}
"""Kinds of fatal problems of logs that do not show whether training ended."""


def log_row(
    logs: Sequence[Path],
    window: Window | None = None,
    *,
    step_line: str | None = None,
    other_outputs: Sequence[Path] = (),
    left_out: Sequence[Path] = (),
) -> dict[str, Any]:
    """Read the log of one run (or its logs, after a requeue) into a row with the columns `COLUMNS`.

    Unknown values are None. `state` is `complete`, `incomplete`, `failed` or `unknown`, see
    docs/reference/logs.md. Raises UserError if a log cannot be read.

    Args:
        logs: the run's logs, oldest first. What was planned is read from `run.json` beside the last one; for
            runs that NVIDIA's scripts started, from the files and the name of its folder.
        window: the steps to average. By default those of the plan, else those that the NVIDIA release
            averages, else the last step; the column `window_from` says which were used.
        step_line: how the program prints a step (`recipes.step_lines`); by default as the plan says.
        other_outputs: other outputs of the run, which are only searched for failures.
        left_out: files beside the log that are not read, for a remark.
    """
    run, remark = planned_run(logs[-1].with_name(RUN_FILE))
    if run is None:
        log = read_log(logs, other_outputs=other_outputs, step_line=step_line)
    else:
        log = read_log(
            logs,
            other_outputs=other_outputs,
            max_steps=run.max_steps,
            first_step=run.first_step,
            gpu_type=run.recipe.gpu_type,
            step_line=step_line or run.recipe.step_line,
        )
    upstream = None if run is not None or remark else find_upstream(logs[-1], find_batch_size(log))
    mode = run.mode if run is not None else mode_of_log(upstream, log)
    counts, window_from = _choose_window(window, run, upstream, log, mode)
    recipes = (run,) if run is not None else upstream.runs if upstream else ()
    numbers, refusal = _numbers(log, counts, recipes[0] if recipes else None)
    missing = [] if counts is None else _missing_in(counts, log.problems)
    fatal = [problem for problem in log.problems if problem.fatal]
    if counts is not None and not (missing or fatal):
        missing = _cut_off(counts, numbers.get("steps_in_window"))
    loss = log.steps[-1].loss if log.steps else None
    what = {**_what_was_run(run, upstream, log), "mode": mode}
    if len(recipes) > 1:
        is_one_workload = len({recipe.recipe.workload for recipe in recipes}) == 1
        unknown = ("gpu_type", *_OF_THE_GPU_TYPE, *(() if is_one_workload else ("workload",)))
        what, numbers = ({**part, **dict.fromkeys(part.keys() & {*unknown})} for part in (what, numbers))
    return dict.fromkeys(column.name for column in COLUMNS) | {
        "log_path": cluster_path(logs[-1]),
        "state": decide_state(fatal, lacks_numbers=bool(missing or refusal)),
        "reason": _sentences([*(problem.message for problem in fatal), *missing, refusal]),
        "warnings": _sentences(
            [
                remark,
                _remark_other_outputs(other_outputs),
                _remark_left_out(left_out),
                upstream.remark if upstream else None,
                _other_mode(run, log),
                _unknown_gpu_type(recipes),
                _invalid_rates(upstream, log),
                *(problem.message for problem in log.problems if not problem.fatal),
            ]
        ),
        "format": log.format,
        **what,
        "window": None if counts is None else str(counts),
        "window_from": window_from,
        "steps": len(log.steps),
        "last_step": log.steps[-1].global_step if log.steps else None,
        "network": log.network and log.network.summary,
        "loss": loss if loss is not None and math.isfinite(loss) else None,
        **(numbers if what["mode"] == Mode.PERFORMANCE else numbers | _NOT_COMPARED),
        "log_bytes": log.bytes_read,
    }


def _remark_other_outputs(logs: Sequence[Path]) -> str | None:
    return f"of {_names(logs)}, other output of the run, only failures are read" if logs else None


def _remark_left_out(logs: Sequence[Path]) -> str | None:
    return f"not read, as it is not known what is in it: {_names(logs)}" if logs else None


def _names(logs: Sequence[Path]) -> str:
    return first_names([log.name for log in logs], 4)


def _other_mode(run: Run | None, log: TrainingLog) -> str | None:
    """Return a remark if the run was profiled or traced, which slows it down, without such a plan."""
    if run is None or log.mode not in (Mode.PROFILE, Mode.NCCL_TRACE) or log.mode is run.mode:
        return None
    return f"planned as {run.mode}, and the log is that of {log.mode}"


def _unknown_gpu_type(recipes: Sequence[Run]) -> str | None:
    """Return a remark if the GPU type is unknown: names of experiments do not contain it."""
    if len(recipes) < 2:
        return None
    which = alternatives(recipes)
    return f"the experiment's name does not show whether it ran {which}: no MFU, nothing published beside it"


def _invalid_rates(upstream: Upstream | None, log: TrainingLog) -> str | None:
    """Return a remark if the log has TFLOPS and its workload's publication says that they are wrong."""
    workload = upstream.runs[0].recipe.workload if upstream and upstream.runs else None
    if workload not in list_references() or all(step.tflops_per_gpu is None for step in log.steps):
        return None
    if not load_reference(workload).logged_tflops_are_invalid:
        return None
    return f"TFLOPS per GPU as logged are invalid for this model, says the document of {workload}"


def _choose_window(
    given: Window | None, run: Run | None, upstream: Upstream | None, log: TrainingLog, mode: Mode | None
) -> tuple[Window | None, str | None]:
    if given is not None:
        return given, "--window"
    if run is not None:
        return run.window, "run.json"
    window, is_last_step = window_of_log(None if upstream is None else upstream.window, log, mode)
    if is_last_step:
        return window, "last step"
    return window, upstream.source if upstream is not None and window is not None else None


def _numbers(log: TrainingLog, window: Window | None, run: Run | None) -> tuple[dict[str, Any], str | None]:
    """Return the numbers measured over the window, and why measuring them failed; None if it did not.

    Checkpoint times and peak memory are always included. A run with a plan is measured as for the store.
    """
    of_run = {**checkpoint_seconds(log), "peak_memory_gib": peak_memory_gib(log)}
    if window is None or not log.steps:
        return of_run, None
    try:
        if run is None:
            measurement = measure_window(log, window)
        else:
            measurement = measure(run.model_copy(update={"window": window}), log)
    except UserError as error:
        refusal = str(error).removeprefix(f"{log.path} ").removeprefix(f"{log.path}: ").rstrip(".")
        return of_run, refusal
    return measurement.model_dump(include={column.name for column in COLUMNS} - {"window"}), None


def _what_was_run(run: Run | None, upstream: Upstream | None, log: TrainingLog) -> dict[str, Any]:
    if run is not None:
        return {
            "experiment": run.experiment,
            **_identity(run),
            "max_steps": run.max_steps,
        }
    batches = {step.global_batch_size for step in log.steps} - {None}
    shown: dict[str, Any] = {"global_batch_size": batches.pop() if len(batches) == 1 else None}
    if upstream is not None and upstream.runs:
        shown = _identity(upstream.runs[0])
    return shown


def _identity(run: Run) -> dict[str, Any]:
    return {**run.recipe.identity, "global_batch_size": run.recipe.global_batch_size}


def _missing_in(window: Window, problems: Sequence[Problem]) -> list[str]:
    """Return a sentence if steps of the window are missing in the middle of the log."""
    missing = [
        step
        for problem in problems
        if problem.kind == "missing_steps"
        for step in problem.steps
        if window.first <= step <= window.last
    ]
    return [f"{len(missing)} of the window's steps are missing, first step {missing[0]}"] if missing else []


def _cut_off(window: Window, present: int | None) -> list[str]:
    """Return a sentence if the log starts after the window starts, or ends before the window ends."""
    wanted = window.last - window.first + 1
    return [f"the log holds {present} of the window's {wanted} steps"] if present and present < wanted else []


def decide_state(fatal: Sequence[Problem], *, lacks_numbers: bool) -> str:
    """Return the state of a log with these fatal problems: `complete`, `incomplete`, `failed` or `unknown`.

    `lacks_numbers` says whether the log lacks steps of the measurement window, or their times.
    """
    kinds = {problem.kind for problem in fatal}
    if kinds - _NO_FAILURE:
        return "failed"
    if kinds & _UNKNOWN:
        return "unknown"
    return "incomplete" if kinds or lacks_numbers else "complete"


def _sentences(parts: Sequence[str | None]) -> str | None:
    return "; ".join(part for part in parts if part) or None
