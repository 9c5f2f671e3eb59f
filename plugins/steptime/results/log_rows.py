"""Read a training log as a row with the columns of the metrics store, for people who have no store."""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from steptime.clusters.collecting import cluster_path
from steptime.errors import UserError
from steptime.logs.models import Problem, TrainingLog
from steptime.logs.reader import read_log
from steptime.recipes.models import RUN_FILE, Mode, Run, Window
from steptime.recipes.notation import parse_window
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.published import list_references, load_reference
from steptime.recipes.workload_file import LAST_STEP
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.results.columns import BY_NAME, Column
from steptime.results.metrics import checkpoint_seconds, measure, measure_window, peak_memory_gib

_CONFIG = "llmb-config_"
_MOST_CONFIG_BYTES = 1 << 20
_FOLDERS = 4
"""Levels above a log that are searched for its experiment's name and its configuration."""
_WINDOWS = {(25, 5): Window(first=11, last=44), (25, 8): Window(first=35, last=44)}
"""Steps that upstream's script averages, by the first release that does; before, it takes the last step."""
_DTYPES = ("bf16", "fp8")
"""Names of folders in release 24.11."""
_NAMED_RUNS = re.compile("pretrain_|nemo_")
_SINCE_25_05 = re.compile(r"pretrain_\w+_gpus\d+_\w+_gbs\d+")


class Upstream(NamedTuple):
    """What the folder of a log shows about a run that NVIDIA's scripts started."""

    source: str
    """What shows it: `llmb-config` or `experiment name`."""
    window: Window | None
    """The steps that the release averages; None for only the last."""
    runs: tuple[Run, ...] = ()
    """The runs of recipes that it may be; several differ in GPU type or release."""
    mode: Mode | None = None
    """Mode that was requested, if known."""
    global_batch_size: int | None = None
    """Global batch size in the experiment's name."""
    remark: str | None = None
    """What readers of the numbers should know."""


def find_upstream(log: Path, global_batch_size: int | None) -> Upstream | None:
    """Return what the folder of a log shows about a run by NVIDIA's scripts; None if it shows nothing.

    `global_batch_size` is the one in the log, if known. Raises UserError for broken workload files.
    """
    config = llmb_config(log)
    found = None if config is None else _by_config(config)
    if found is None or not found.runs:
        folders = tuple(folder.name for folder in [*log.absolute().parents][:_FOLDERS])
        named = filter(_NAMED_RUNS.search, (log.name, *folders))
        by_name = next(filter(None, (_by_name(name, folders) for name in named)), None)
        if found is None:
            found = by_name
        elif by_name is not None and by_name.runs:  # the configuration may call the size otherwise
            shown = (config or {})["model_info"].get("gpu_type"), _release(config or {})
            runs = tuple(
                run
                for run in by_name.runs
                if (run.recipe.gpu_type, run.recipe.workload.rpartition("-")[2]) == shown
            )
            if runs:
                batch = by_name.global_batch_size
                found = found._replace(window=_window(runs[0]), runs=runs, global_batch_size=batch)
    if found is None:
        return None
    batch = global_batch_size or found.global_batch_size
    # Weak and strong scaling differ in the batch alone.
    best_first = sorted(found.runs, key=lambda run: run.recipe.global_batch_size != batch)
    distinct = {(run.recipe.gpu_type, run.recipe.workload): run for run in reversed(best_first)}
    batched = (_with_batch(distinct[which], batch) for which in sorted(distinct))
    return found._replace(runs=tuple(filter(None, batched)))


def _with_batch(run: Run, global_batch_size: int | None) -> Run | None:
    """Return the run with another global batch size; None if that is impossible."""
    if global_batch_size in (None, run.recipe.global_batch_size):
        return run
    values = run.recipe.model_dump() | {"global_batch_size": global_batch_size}
    try:
        recipe = type(run.recipe).model_validate(values)
        return run.model_copy(update={"recipe": recipe, "tuning": f"gbs{global_batch_size}"})
    except ValidationError:
        return None


def llmb_config(log: Path) -> dict[str, Any] | None:
    """Return the configuration that llmb-run wrote for the job of a log, as dicts; None if there is none."""
    numbers = set(re.findall(r"\d+", log.name))
    for folder in [*log.absolute().parents][:_FOLDERS]:
        files = sorted(folder.glob(f"{_CONFIG}*.yaml"))
        own = [file for file in files if file.stem.removeprefix(_CONFIG) in numbers]
        for file in own or (files if len(files) == 1 and not any(len(one) > 3 for one in numbers) else []):
            try:
                with file.open("rb") as stream:
                    content = yaml.load(stream.read(_MOST_CONFIG_BYTES), _WithoutAliases)  # noqa: S506
            except (OSError, yaml.YAMLError, ValueError, RecursionError):
                return None
            if not isinstance(content, dict):
                return None
            return {name: part if isinstance(part, dict) else {} for name, part in content.items()}
    return None


class _WithoutAliases(yaml.SafeLoader):
    """A YAML loader that refuses aliases: with these a small file can expand to an endless text."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("YAML aliases are not allowed here")
        return super().compose_node(parent, index)


def _by_config(config: dict[str, Any]) -> Upstream | None:
    model, job, info = (config.get(part, {}) for part in ("model_info", "job_config", "workload_info"))
    if not model:
        return None
    release = re.match(r"(\d+)\.(\d+)", str(info.get("gsw_version", "")))
    since = max((at for at in _WINDOWS if release and at <= (int(release[1]), int(release[2]))), default=None)
    size = str(model.get("model_size")).lower()
    names = {_letters(str(model.get("model_name"))), _letters(f"{model.get('model_name')}{size}")}
    runs: list[Run] = []
    for workload in list_workloads():
        family, _, of_release = workload.rpartition("-")
        if of_release == _release(config) and _letters(family) in names:
            for scaling in ("strong",) if job.get("strong_scaling") else ("weak", "strong"):
                runs += _planned(
                    workload=workload,
                    size=size,
                    dtype=str(model.get("dtype")),
                    gpu_type=str(model.get("gpu_type")),
                    gpus=str(model.get("scale")),
                    scaling=scaling,
                    proxy=bool(job.get("proxy")),
                )
    window = _window(runs[0]) if runs else _WINDOWS[since] if since else None
    return Upstream("llmb-config", window, tuple(runs), Mode.PROFILE if job.get("profile_enabled") else None)


def _release(config: dict[str, Any]) -> str:
    """Return the release of upstream's repository as workloads name it: `26.08`."""
    return ".".join(str(config.get("workload_info", {}).get("gsw_version")).split(".")[:2])


@functools.lru_cache(maxsize=64)
def _by_name(name: str, folders: Sequence[str]) -> Upstream | None:
    """Return what the name of an experiment shows, if it matches that of a workload."""
    runs, windows, batch = list[Run](), set[str | None](), None
    for workload in map(load_workload, list_workloads()):
        pattern = _pattern(workload.experiment, tuple(workload.sizes))
        match = pattern.search(_plain(name))
        if match is None:
            continue
        batch = int(match["gbs"]) if "gbs" in match.groupdict() and match["gbs"].isdigit() else None
        # 24.11 has the data type in the path: results/24.11/bf16/340b/256.
        dtype = match["dtype"] or next((one for one in folders if one in _DTYPES), None)
        asked = {"size": next(size for size in workload.sizes if _plain(size) == match["size"])}
        named = {key: value for key, value in match.groupdict().items() if value is not None and key != "gbs"}
        for gpu_type in workload.gpu_types.keys() - {"cpu"}:
            for scaling in ("weak", "strong"):
                asked |= {"workload": workload.workload, "gpus": match["gpus"], "scaling": scaling}
                for run in _planned(**asked, dtype=dtype, gpu_type=gpu_type):
                    own = pattern.search(_plain(run.experiment))
                    runs += [run] if own and named.items() <= own.groupdict().items() else []
        windows.add(None if workload.steps.window == LAST_STEP else workload.steps.window)
    if len(windows) != 1:
        if not _SINCE_25_05.search(_plain(name)):
            return None
        remark = (
            "no known recipe has the experiment's name, so its release's window is not known: give --window"
        )
        return Upstream("experiment name", None, remark=remark)
    mode = Mode.PROFILE if "_nsys" in name else Mode.NCCL_TRACE if "_nccltrace" in name else None
    window = windows.pop()
    return Upstream("experiment name", parse_window(window) if window else None, tuple(runs), mode, batch)


@functools.lru_cache(maxsize=64)
def _pattern(template: str, sizes: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for names of experiments with a group for each field of the template."""
    fields = {"size": "|".join(re.escape(_plain(size)) for size in sizes), "gpus": r"\d+"}
    fields["dtype"] = r"[a-z]+\d+(?:_[a-z]{2})?"
    text = ""
    for at, part in enumerate(re.split(r"\{(\w+)\}", template)):
        text += f"(?P<{part}>{fields.get(part, '[a-z0-9]+')})" if at % 2 else re.escape(_plain(part))
    text = re.sub(r"(\(\?P<dtype>.*?\{2\}\)\?\)_)", r"(?:\1)?", text)
    return re.compile(rf"(?<![a-z0-9]){text}(?![a-z0-9])")


def _planned(**request: Any) -> Iterator[Run]:
    """Yield the run of a request, if there is such a recipe."""
    try:
        yield plan(PlanRequest(**request)).runs[0]
    except (UserError, ValueError):
        return


def _window(run: Run) -> Window | None:
    """Return the window of a run's document; None for only the last step."""
    workload = load_workload(run.recipe.workload)
    return None if workload.steps.window == LAST_STEP else run.window


def _plain(name: str) -> str:
    """Return a name without what releases write differently: `llama3.1`, `30b-a3b`."""
    return re.sub(r"[-.]", "_", re.sub(r"(?<=\d)\.(?=\d)", "", name.lower()))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


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
    Column("peak_source", "text", "The document of the peak, or what measured it."),
    *_result_columns(
        "tflops_per_gpu_logged", "tflops_per_gpu_logged_std", "peak_memory_gib", "bus_bandwidth_gb_s"
    ),
    Column("loss", "number", "Loss of the last step."),
    *_result_columns("checkpoint_save_s", "checkpoint_blocked_s", "checkpoint_load_s", "network"),
    Column("log_bytes", "integer", "Bytes read.", unit="bytes"),
)
"""Columns of every log's row. Those that results have too are declared in `results.columns`."""

_NOT_COMPARED = {"published_step_time_s": None, "step_time_over_published": None}
"""Values for modes other than performance, whose extra work takes time."""

_OF_THE_GPU_TYPE = (
    *("mfu_percent", "peak_tflops_per_gpu", "peak_source"),
    *("published_step_time_s", "step_time_over_published"),
)
"""Columns that depend on the GPU type."""

_NO_FAILURE = {
    *("short", "end_unknown", "nothing_to_train", "stopped_early", "exit_interval", "comma_in_number")
}
"""Kinds of fatal problems that are not failures."""


def log_row(
    logs: Sequence[Path],
    window: Window | None = None,
    *,
    other_nodes: Sequence[Path] = (),
) -> dict[str, Any]:
    """Read the log of one run (or its logs, after a requeue) into a row with the columns `COLUMNS`.

    Unknown values are None. Logs of `other_nodes` are only searched for failures. The plan is taken from
    `run.json` beside the log; for logs of NVIDIA's scripts from their folder. The default window is that of
    the plan or the release, or else the last step, which NVIDIA's releases up to 25.04 use; `window_from`
    says which. `state` is `complete`, `incomplete`, `failed` or `unknown`, see docs/reference/logs.md. Raises
    UserError if a log cannot be read.
    """
    run, remark = planned_run(logs[-1].with_name(RUN_FILE))
    if run is None:
        log = read_log(logs, other_nodes=other_nodes)
    else:
        log = read_log(
            logs,
            other_nodes=other_nodes,
            max_steps=run.max_steps,
            first_step=run.first_step,
            gpu_type=run.recipe.gpu_type,
        )
    upstream = None if run is not None or remark else find_upstream(logs[-1], find_batch_size(log))
    counts, window_from = _choose_window(window, run, upstream, log)
    recipes = (run,) if run is not None else upstream.runs if upstream else ()
    numbers, refusal = _numbers(log, counts, recipes[0] if recipes else None)
    missing = [] if counts is None else _missing_in(counts, log.problems)
    fatal = [problem for problem in log.problems if problem.fatal]
    if counts is not None and not (missing or fatal):
        missing = _cut_off(counts, numbers.get("steps_in_window"))
    loss = log.steps[-1].loss if log.steps else None
    what = _what_was_run(run, upstream, log)
    if len(recipes) > 1:
        one = len({recipe.recipe.workload for recipe in recipes}) == 1
        unknown = ("gpu_type", *_OF_THE_GPU_TYPE, *(() if one else ("workload",)))
        what, numbers = ({**part, **dict.fromkeys(part.keys() & {*unknown})} for part in (what, numbers))
    return dict.fromkeys(column.name for column in COLUMNS) | {
        "log_path": cluster_path(logs[-1]),
        "state": decide_state(fatal, lacks_numbers=bool(missing or refusal)),
        "reason": _sentences([*(problem.message for problem in fatal), *missing, refusal]),
        "warnings": _sentences(
            [
                remark,
                _remark_other_nodes(other_nodes),
                upstream.remark if upstream else None,
                _loop(log),
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


def _remark_other_nodes(logs: Sequence[Path]) -> str | None:
    if not logs:
        return None
    names = ", ".join(log.name for log in logs[:4]) + (f" and {len(logs) - 4} more" if len(logs) > 4 else "")
    return f"in {names}, of another node of the run, failures count and steps do not"


def planned_run(path: Path) -> tuple[Run | None, str | None]:
    """Read the planned run from a `run.json`; a pair of None if there is no such file.

    For a file that cannot be read, return None and a remark that says so.
    """
    if not path.is_file():
        return None, None
    try:
        return Run.model_validate_json(path.read_bytes()), None
    except (OSError, ValidationError):
        return (
            None,
            f"'{path}' cannot be read by this version of steptime: its window and limits are not used",
        )


def _loop(log: TrainingLog) -> str | None:
    """Return a remark if not NeMo trained: then the times depend on the hardware alone, not on the recipe."""
    loop = (log.started or {}).get("loop", "nemo")
    return None if loop == "nemo" else f"trained by the trainer's {loop} loop, not by NeMo"


def _other_mode(run: Run | None, log: TrainingLog) -> str | None:
    """Return a remark if the log shows something that slows a run down and was not planned."""
    if run is None or log.mode not in (Mode.PROFILE, Mode.NCCL_TRACE) or log.mode is run.mode:
        return None
    return f"planned as {run.mode}, and the log is that of {log.mode}"


def _unknown_gpu_type(recipes: Sequence[Run]) -> str | None:
    """Return a remark if nothing shows the GPU type, which names of experiments do not have."""
    if len(recipes) < 2:
        return None
    which = alternatives(recipes)
    return f"the experiment's name does not show whether it ran {which}: no MFU, nothing published beside it"


def alternatives(runs: Sequence[Run]) -> str:
    """Name in words the runs that one experiment's name may mean, as in `on b200 or gb200`."""
    if len({run.recipe.workload for run in runs}) == 1:
        return f"on {' or '.join(run.recipe.gpu_type for run in runs)}"
    return " or ".join(f"{run.recipe.workload} on {run.recipe.gpu_type}" for run in runs)


def _invalid_rates(upstream: Upstream | None, log: TrainingLog) -> str | None:
    """Return a remark if the document says that the TFLOPS logged by its recipe are wrong."""
    workload = upstream.runs[0].recipe.workload if upstream and upstream.runs else None
    if workload not in list_references() or all(step.tflops_per_gpu is None for step in log.steps):
        return None
    if not load_reference(workload).logged_tflops_are_invalid:
        return None
    return f"TFLOPS per GPU as logged are invalid for this model, says the document of {workload}"


def find_batch_size(log: TrainingLog) -> int | None:
    """Return the global batch size of all steps; None if they differ or show none.

    Where a log has a progress bar, it follows from the consumed samples of the last step.
    """
    batches = {step.global_batch_size for step in log.steps} - {None}
    if not batches and log.steps and log.steps[-1].consumed_samples:
        batch, rest = divmod(log.steps[-1].consumed_samples, log.steps[-1].global_step + 1)
        return None if rest else batch
    return batches.pop() if len(batches) == 1 else None


def _choose_window(
    given: Window | None, run: Run | None, upstream: Upstream | None, log: TrainingLog
) -> tuple[Window | None, str | None]:
    if given is not None:
        return given, "--window"
    if run is not None:
        return run.window, "run.json"
    if upstream is not None and upstream.window is not None:
        return upstream.window, upstream.source
    timed = [step.global_step for step in log.steps if step.step_time_s is not None]
    return (Window(first=timed[-1], last=timed[-1]), "last step") if timed else (None, None)


def _numbers(log: TrainingLog, window: Window | None, run: Run | None) -> tuple[dict[str, Any], str | None]:
    """Return all numbers of the window, or why there are none; planned runs are measured as for the store."""
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
            "mode": run.mode,
            "max_steps": run.max_steps,
        }
    batches = {step.global_batch_size for step in log.steps} - {None}
    shown: dict[str, Any] = {"global_batch_size": batches.pop() if len(batches) == 1 else None}
    if upstream is not None and upstream.runs:
        shown = _identity(upstream.runs[0])
    asked = upstream.mode if upstream is not None and log.mode is Mode.PERFORMANCE else None
    return {**shown, "mode": asked or log.mode}


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


def _cut_off(window: Window, found: int | None) -> list[str]:
    """Return a sentence if the log starts after the window starts, or ends before the window ends."""
    wanted = window.last - window.first + 1
    return [f"the log holds {found} of the window's {wanted} steps"] if found and found < wanted else []


def decide_state(fatal: Sequence[Problem], *, lacks_numbers: bool) -> str:
    """Return the state of a log with these fatal problems: `complete`, `incomplete`, `failed` or `unknown`.

    `lacks_numbers` says whether steps or numbers of its window are missing.
    """
    kinds = {problem.kind for problem in fatal}
    if kinds - _NO_FAILURE:
        return "failed"
    if "end_unknown" in kinds:
        return "unknown"
    return "incomplete" if kinds or lacks_numbers else "complete"


def _sentences(parts: Sequence[str | None]) -> str | None:
    return "; ".join(part for part in parts if part) or None
