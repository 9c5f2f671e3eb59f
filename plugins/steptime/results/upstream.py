"""Which recipe a log of NVIDIA's own scripts is of: by `llmb-config_*.yaml`, or by the experiment's name."""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from steptime.errors import UserError
from steptime.recipes.models import Mode, Run, Window
from steptime.recipes.notation import parse_window
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workload_file import LAST_STEP
from steptime.recipes.workloads import list_workloads, load_workload

_CONFIG = "llmb-config_"
_FOLDERS = 4
"""Levels above a log in which its experiment's name and its configuration are looked for."""
_WINDOWS = {(25, 5): Window(first=11, last=44), (25, 8): Window(first=35, last=44)}
"""By the release since which upstream's script averages these steps; before it takes the last."""
_DTYPES = ("bf16", "fp8")
"""What a folder of 24.11 may be called."""
_NAMED_RUNS = re.compile("pretrain_|nemo_")
_SINCE_25_05 = re.compile(r"pretrain_\w+_gpus\d+_\w+_gbs\d+")


class Upstream(NamedTuple):
    """What a run was, as far as its folder shows it."""

    source: str
    """`llmb-config` or `experiment name`."""
    window: Window | None
    """The steps that the release averages; None for the last one."""
    runs: tuple[Run, ...] = ()
    """The runs of recipes that it may be: they differ in the type of GPU if there are several."""
    mode: Mode | None = None
    """What kind of run it was asked to be, if that is known."""
    global_batch_size: int | None = None
    """The batch in the experiment's name."""
    remark: str | None = None
    """What a reader of the numbers should know."""


def find_upstream(log: Path, global_batch_size: int | None) -> Upstream | None:
    """Return what the run of a log was, with the batch that it had; None if its folder does not show it.

    Raises UserError for broken workload files.
    """
    config = _config_of(log)
    found = None if config is None else _by_config(config)
    if found is None:
        folders = tuple(folder.name for folder in [*log.absolute().parents][:_FOLDERS])
        named = filter(_NAMED_RUNS.search, (log.name, *folders))
        found = next(filter(None, (_by_name(name, folders) for name in named)), None)
    if found is None:
        return None
    batch = global_batch_size or found.global_batch_size
    # Weak and strong scaling differ in the batch alone.
    best_first = sorted(found.runs, key=lambda run: run.recipe.global_batch_size != batch)
    by_gpu_type = {run.recipe.gpu_type: run for run in reversed(best_first)}
    batched = (_with_batch(by_gpu_type[gpu_type], batch) for gpu_type in sorted(by_gpu_type))
    return found._replace(runs=tuple(filter(None, batched)))


def _with_batch(run: Run, global_batch_size: int | None) -> Run | None:
    """The run at another batch; None if that cannot be."""
    if global_batch_size in (None, run.recipe.global_batch_size):
        return run
    values = run.recipe.model_dump() | {"global_batch_size": global_batch_size}
    try:
        return run.model_copy(update={"recipe": type(run.recipe).model_validate(values)})
    except ValidationError:
        return None


def _config_of(log: Path) -> dict[str, Any] | None:
    """The content of the configuration that llmb-run wrote for the job of a log."""
    numbers = set(re.findall(r"\d+", log.name))
    for folder in [*log.absolute().parents][:_FOLDERS]:
        files = sorted(folder.glob(f"{_CONFIG}*.yaml"))
        own = [file for file in files if file.stem.removeprefix(_CONFIG) in numbers]
        for file in own or (files if len(files) == 1 and not any(len(one) > 3 for one in numbers) else []):
            try:
                content = yaml.safe_load(file.read_bytes())
            except (OSError, yaml.YAMLError):
                return None
            return content if isinstance(content, dict) else None
    return None


def _by_config(config: dict[str, Any]) -> Upstream | None:
    model, job, info = (config.get(part) for part in ("model_info", "job_config", "workload_info"))
    if not isinstance(model, dict):
        return None
    job, info = (part if isinstance(part, dict) else {} for part in (job, info))
    release = re.match(r"(\d+)\.(\d+)", str(info.get("gsw_version", "")))
    since = max((at for at in _WINDOWS if release and at <= (int(release[1]), int(release[2]))), default=None)
    size = str(model.get("model_size")).lower()
    names = {_letters(str(model.get("model_name"))), _letters(f"{model.get('model_name')}{size}")}
    runs: list[Run] = []
    for workload in list_workloads():
        family, _, of_release = workload.rpartition("-")
        if release and of_release == f"{release[1]}.{release[2]}" and _letters(family) in names:
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


@functools.lru_cache(maxsize=64)
def _by_name(name: str, folders: Sequence[str]) -> Upstream | None:
    """What a name says if it is one of an experiment, as the workloads' `experiment` has them."""
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
    """A pattern for experiments' names, with a group for each field of the template."""
    fields = {"size": "|".join(re.escape(_plain(size)) for size in sizes), "gpus": r"\d+"}
    fields["dtype"] = r"[a-z]+\d+(?:_[a-z]{2})?"
    text = ""
    for at, part in enumerate(re.split(r"\{(\w+)\}", template)):
        text += f"(?P<{part}>{fields.get(part, '[a-z0-9]+')})" if at % 2 else re.escape(_plain(part))
    text = re.sub(r"(\(\?P<dtype>.*?\{2\}\)\?\)_)", r"(?:\1)?", text)
    return re.compile(rf"(?<![a-z0-9]){text}(?![a-z0-9])")


def _planned(**request: Any) -> Iterator[Run]:
    """The run of a request, if there is such a recipe."""
    try:
        yield plan(PlanRequest(**request)).runs[0]
    except (UserError, ValueError):
        return


def _window(run: Run) -> Window | None:
    """The window of a run's document; None for the last step, whichever that is."""
    workload = load_workload(run.recipe.workload)
    return None if workload.steps.window == LAST_STEP else run.window


def _plain(name: str) -> str:
    """A name without what releases write differently: `llama3.1`, `30b-a3b`."""
    return re.sub(r"[-.]", "_", re.sub(r"(?<=\d)\.(?=\d)", "", name.lower()))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
