"""Find the run that wrote a log: by `run.json` beside it, or by the folder names of NVIDIA's scripts."""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from steptime.errors import UserError
from steptime.files import open_regular, read_limited
from steptime.logs.training_log import TrainingLog
from steptime.recipes.models import Mode, Run, Window
from steptime.recipes.notation import parse_window
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workload_file import LAST_STEP
from steptime.recipes.workloads import list_workloads, load_workload

_CONFIG = "llmb-config_"
_MOST_CONFIG_BYTES = 1 << 20
_FOLDERS = 4
"""Levels above a log that are searched for its experiment's name and its configuration."""
_WINDOWS = {(25, 5): Window(first=11, last=44), (25, 8): Window(first=35, last=44)}
"""Steps that NVIDIA's script averages, by the first release that does; before, it takes the last step."""
_DTYPES = ("bf16", "fp8")
"""Names of the folders by data type in release 24.11."""
_NAMED_RUNS = re.compile("pretrain(?:ing)?_|nemo_")
_SINCE_25_05 = re.compile(r"pretrain_\w+_gpus\d+_\w+_gbs\d+")


class Upstream(NamedTuple):
    """What the folder of a log shows about a run that NVIDIA's scripts started."""

    source: str
    """What shows the run: `llmb-config` or `experiment name`."""
    window: Window | None
    """The steps that the release averages; None if these are only the last step, or unknown."""
    runs: tuple[Run, ...] = ()
    """The runs of recipes that may have written the log; if several, they differ in GPU type or release."""
    mode: Mode | None = None
    """Mode that was requested, if known."""
    global_batch_size: int | None = None
    """Global batch size in the experiment's name."""
    remark: str | None = None
    """What readers of the numbers should know."""


def planned_run(path: Path) -> tuple[Run | None, str | None]:
    """Read the planned run from a `run.json`; return it and None, or (None, None) if there is no such file.

    For a file that cannot be read, return None and a remark that says so.
    """
    if not path.is_file():
        return None, None
    try:
        return Run.model_validate_json(read_limited(path)), None
    except (OSError, ValidationError):
        return (
            None,
            f"'{path}' cannot be read by this version of steptime: its window and limits are not used",
        )


def find_upstream(log: Path, global_batch_size: int | None) -> Upstream | None:
    """Return what the folder of a log shows about a run by NVIDIA's scripts; None if it shows nothing.

    `global_batch_size` is the one in the log, if known. Raises UserError for broken workload files.
    """
    config = llmb_config(log)
    upstream = None if config is None else _by_config(config)
    if upstream is None or not upstream.runs:
        folders = tuple(folder.name for folder in [*log.absolute().parents][:_FOLDERS])
        named = filter(_NAMED_RUNS.search, (log.name, *folders))
        names = (*named, *_names_by_folders(folders))
        by_name = next(filter(None, (_by_name(name, folders) for name in names)), None)
        if upstream is None:
            upstream = by_name
        elif by_name is not None and by_name.runs:  # the configuration may call the size otherwise
            shown = (config or {})["model_info"].get("gpu_type"), _release(config or {})
            runs = tuple(
                run
                for run in by_name.runs
                if (run.recipe.gpu_type, run.recipe.workload.rpartition("-")[2]) == shown
            )
            if runs:
                batch = by_name.global_batch_size
                window = published_window(runs[0])
                upstream = upstream._replace(window=window, runs=runs, global_batch_size=batch)
    if upstream is None:
        return None
    batch = global_batch_size or upstream.global_batch_size
    # Weak and strong scaling differ in the batch alone.
    best_first = sorted(upstream.runs, key=lambda run: run.recipe.global_batch_size != batch)
    distinct = {(run.recipe.gpu_type, run.recipe.workload): run for run in reversed(best_first)}
    batched = (_with_batch(distinct[which], batch) for which in sorted(distinct))
    return upstream._replace(runs=tuple(filter(None, batched)))


def find_batch_size(log: TrainingLog) -> int | None:
    """Return the global batch size if it is the same in all steps, else None.

    If the steps only have consumed samples, as in a progress bar, it is computed from those of the last step.
    """
    batches = {step.global_batch_size for step in log.steps} - {None}
    if not batches and log.steps and log.steps[-1].consumed_samples:
        batch, rest = divmod(log.steps[-1].consumed_samples, log.steps[-1].global_step + 1)
        return None if rest else batch
    return batches.pop() if len(batches) == 1 else None


def window_of_log(window: Window | None, log: TrainingLog, mode: Mode | None) -> tuple[Window | None, bool]:
    """Return the steps to average in a log without a plan, and whether they are only the log's last step.

    `window` is the one of the recipe or release, None if that is the last step or unknown. Profiles, traces
    and loads of checkpoints train fewer steps, so a window that they lack is replaced by their last step. The
    window is None if neither is known.
    """
    timed = [step.global_step for step in log.steps if step.step_time_s is not None]
    if not timed:
        return window, False
    if window is not None and (
        mode in (None, Mode.PERFORMANCE) or timed[0] <= window.first <= window.last <= timed[-1]
    ):
        return window, False
    return Window(first=timed[-1], last=timed[-1]), True


def mode_of_log(upstream: Upstream | None, log: TrainingLog) -> Mode | None:
    """Return the mode that a log without a plan or its experiment's name shows; None if neither does."""
    named = upstream.mode if upstream is not None and log.mode is Mode.PERFORMANCE else None
    return named or log.mode


def published_window(run: Run) -> Window | None:
    """Return the published measurement window of a run; None if that is only the last step."""
    steps = load_workload(run.recipe.workload).find_steps(run.recipe.size)
    return None if steps.window == LAST_STEP else run.window


def alternatives(runs: Sequence[Run]) -> str:
    """Describe the runs that an ambiguous experiment name may stand for, as in `on b200 or gb200`."""
    if len({run.recipe.workload for run in runs}) == 1:
        return f"on {' or '.join(run.recipe.gpu_type for run in runs)}"
    return " or ".join(f"{run.recipe.workload} on {run.recipe.gpu_type}" for run in runs)


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
    """Return the configuration that llmb-run wrote for a log's job, as dicts; None if it cannot be read."""
    numbers = set(re.findall(r"\d+", log.name))
    for folder in [*log.absolute().parents][:_FOLDERS]:
        files = sorted(folder.glob(f"{_CONFIG}*.yaml"))
        of_job = [file for file in files if file.stem.removeprefix(_CONFIG) in numbers]
        for file in of_job or (
            files if len(files) == 1 and not any(len(number) > 3 for number in numbers) else []
        ):
            try:
                with open_regular(file) as stream:
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
    window = published_window(runs[0]) if runs else _WINDOWS[since] if since else None
    return Upstream("llmb-config", window, tuple(runs), Mode.PROFILE if job.get("profile_enabled") else None)


def _release(config: dict[str, Any]) -> str:
    """Return the release of NVIDIA's repository as workloads name it: `26.08`."""
    return ".".join(str(config.get("workload_info", {}).get("gsw_version")).split(".")[:2])


def _names_by_folders(folders: Sequence[str]) -> Iterator[str]:
    """Yield the experiments' names that a path such as `results/24.11/bf16/340b/256` stands for.

    `folders` are the folders' names from the innermost outwards. Logs in such folders may have any name.
    """
    if len(folders) < 4 or not folders[0].isdigit() or folders[2] not in _DTYPES:
        return
    gpus, size, dtype, version = folders[:4]
    for workload in map(load_workload, list_workloads()):
        if workload.experiment.startswith("nemo_") and version.startswith(workload.release):
            yield workload.experiment.format(size=size, dtype=dtype, gpus=gpus)


@functools.lru_cache(maxsize=64)
def _by_name(name: str, folders: Sequence[str]) -> Upstream | None:
    """Return what the name of an experiment shows; None if it does not look like one of NVIDIA's scripts."""
    return _matching(name, folders, _pattern) or _matching(name, folders, _short_pattern)


def _matching(
    name: str, folders: Sequence[str], pattern_of: Callable[[str, Sequence[str]], re.Pattern[str]]
) -> Upstream | None:
    """Return what the name shows by one kind of pattern; None if no workload has such names."""
    runs, windows, batch = list[Run](), set[str | None](), None
    for workload in map(load_workload, list_workloads()):
        pattern = _pattern(workload.experiment, tuple(workload.sizes))
        match = pattern_of(workload.experiment, tuple(workload.sizes)).search(_plain(name))
        if match is None:
            continue
        batch = int(match["gbs"]) if "gbs" in match.groupdict() and match["gbs"].isdigit() else None
        # 24.11 has the data type in the path: results/24.11/bf16/340b/256.
        dtype = match["dtype"] or next((folder for folder in folders if folder in _DTYPES), None)
        size = next(size for size in workload.sizes if _plain(size) == match["size"])
        options = {"size": size, "workload": workload.workload, "gpus": match["gpus"], "dtype": dtype}
        named = {key: value for key, value in match.groupdict().items() if value is not None and key != "gbs"}
        # Names do not show whether a run is that of a proxy; its GPU count does.
        proxies = (False, True) if workload.sizes[size].proxies else (False,)
        gpu_types = workload.gpu_types.keys() - {"cpu"}
        for gpu_type, scaling, proxy in itertools.product(gpu_types, ("weak", "strong"), proxies):
            for run in _planned(**options, gpu_type=gpu_type, scaling=scaling, proxy=proxy):
                planned = pattern.search(_plain(run.experiment))
                runs += [run] if planned and named.items() <= planned.groupdict().items() else []
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
    text = _fill(template, sizes)
    text = re.sub(r"(\(\?P<dtype>.*?\{2\}\)\?\)_)", r"(?:\1)?", text)
    return re.compile(rf"(?<![a-z0-9]){text}(?![a-z0-9])")


@functools.lru_cache(maxsize=64)
def _short_pattern(template: str, sizes: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for the names that documents use in prose: `pretraining_nemotronh_56b_fp8_256_x`."""
    beginning = template.partition("{gpus}")[0].removesuffix("gpus")
    return re.compile(rf"(?<![a-z0-9]){_fill(beginning, sizes)}(?P<gpus>\d+)(?![a-z0-9])(?!_tp\d)")


def _fill(template: str, sizes: Sequence[str]) -> str:
    """Return a regular expression with a named group for each field of a template of experiments' names."""
    fields = {"size": "|".join(re.escape(_plain(size)) for size in sizes), "gpus": r"\d+"}
    fields["dtype"] = r"[a-z]+\d+(?:_[a-z]{2})?"
    text = ""
    for at, part in enumerate(re.split(r"\{(\w+)\}", template)):
        text += f"(?P<{part}>{fields.get(part, '[a-z0-9]+')})" if at % 2 else re.escape(_plain(part))
    return text


def _planned(**request: Any) -> Iterator[Run]:
    """Yield the run of a request, if there is such a recipe."""
    try:
        yield plan(PlanRequest(**request)).runs[0]
    except (UserError, ValueError):
        return


def _plain(name: str) -> str:
    """Return a name in a form common to all documents.

    It is in lower case, with `_` for `-`, `31` for `3.1`, and `pretrain` for `pretraining`.
    """
    plain = re.sub(r"[-.]", "_", re.sub(r"(?<=\d)\.(?=\d)", "", name.lower()))
    return plain.replace("pretraining_", "pretrain_")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
