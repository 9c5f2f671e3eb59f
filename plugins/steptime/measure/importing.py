"""Import runs made elsewhere, or archived by this store, as results.

The source is an archive of `steptime archive`, or logs: of `llmb-run`, of a job's folder with its `run.json`,
or plain ones. Its content is not trusted: only plain names become paths, every number is measured again from
the steps, and files are read only from the given folder.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import ValidationError

from steptime.clusters.base import Job, JobState, JobStatus, StagedFiles, check_job_name
from steptime.errors import UserError, one_line
from steptime.files import open_regular, read_limited
from steptime.frozen import Frozen
from steptime.logs.finding import RunLogs, find_logs, group_by_run
from steptime.logs.reader import read_log
from steptime.logs.training_log import TrainingLog
from steptime.measure.log_rows import decide_state
from steptime.measure.metrics import measure
from steptime.measure.recognition import (
    Upstream,
    alternatives,
    find_batch_size,
    find_upstream,
    llmb_config,
    mode_of_log,
    planned_run,
    published_window,
    window_of_log,
)
from steptime.measure.record import format_record, make_record, redact
from steptime.measure.repeating import make_request
from steptime.measure.unpacking import check_size
from steptime.recipes.models import RUN_FILE, Mode, Run
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.settings import imported_dir
from steptime.store.run_models import Measurement, Provenance, Result, Submission
from steptime.store.run_records import EarlierAttempt, parse_record

MANIFEST, RUNS, LOGS = "manifest.json", "runs", "logs"
"""Parts of an archive: its description, the folder of its runs, and that of the files beside their logs."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_MOST_RUN_BYTES = 256 << 20
_STATES = {"complete": JobState.SUCCEEDED, "failed": JobState.FAILED}


class AcceptedLevel(Frozen):
    """Who accepted a run as the start of its series' new baseline, when and why."""

    note: str
    accepted_by: str
    accepted_at: float


class ArchivedRun(Frozen):
    """A run in an archive of `steptime archive`."""

    result: Result
    accepted: AcceptedLevel | None = None


@dataclass(frozen=True)
class ImportOptions:
    """What the user states about the runs to import."""

    origin: str
    """Name of the archive, folder or log that the runs come from."""
    cluster: str | None = None
    """The cluster that the runs ran on; None for the one in each run's plan."""
    gpu_type: str | None = None
    recipe: Mapping[str, str] = field(default_factory=dict)
    """Options of `PlanRequest` that identify the recipe of logs that do not show it."""
    for_judging: bool = True


class Import(NamedTuple):
    """A run that can be imported, with the files to copy."""

    result: Result
    earlier_attempts: tuple[EarlierAttempt, ...]
    files: tuple[Path, ...]
    """Files to copy into the folder of the imported run."""
    log: Path
    """Which of them is the run's log; it may get another name there. A file that need not exist."""
    accepted: AcceptedLevel | None = None


class RefusedImport(NamedTuple):
    """A log or a run that cannot be imported, and why."""

    name: str
    reason: str


def find_imports(path: Path, options: ImportOptions) -> Iterator[Import | RefusedImport]:
    """Yield each run in a log, folder or unpacked archive, or a `RefusedImport` if it cannot be imported.

    Raises UserError if there is nothing to read, if the recipe in `options` cannot be planned, or if the
    cluster's name there has characters other than letters, digits, `.`, `_` and `-`.
    """
    if options.cluster is not None:
        _require_plain("cluster", options.cluster)
    if (path / MANIFEST).is_file() and (path / RUNS).is_dir():
        for file in sorted((path / RUNS).glob("*.json")):
            try:
                yield _archived(file, options)
            except UserError as error:
                yield RefusedImport(f"{RUNS}/{file.name}", str(error))
        return
    stated = _stated(options)
    step_line = None if stated is None else stated.recipe.step_line
    for logs in group_by_run(find_logs(path, step_line), step_line):
        try:
            yield _logged(logs, stated, options)
        except UserError as error:
            name = logs.attempts[-1]
            yield RefusedImport(str(name.relative_to(path) if name != path else name.name), str(error))


def _archived(file: Path, options: ImportOptions) -> Import:
    """Read a run from an archive of steptime."""
    try:
        archived = ArchivedRun.model_validate_json(read_limited(file, at_most=_MOST_RUN_BYTES))
    except OSError as error:
        raise UserError(f"the file cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise UserError(f"the file is damaged: {first['msg']}") from None
        location = ".".join(map(str, first["loc"]))
        raise UserError(
            f"this version of steptime cannot read the file ({one_line(location)}: {first['msg']}): import "
            "it with the version that wrote it"
        ) from None
    record = parse_record(archived.result.record)
    if record is None:
        raise UserError(
            "this version of steptime cannot read the run's record: import it with the version that wrote it"
        )
    beside = file.parent.with_name(LOGS) / file.stem
    files = tuple(sorted(path for path in beside.iterdir() if path.is_file())) if beside.is_dir() else ()
    submitted = _here(archived.result.submitted, PurePosixPath(archived.result.log.path).name, options)
    parts = {"job": submitted.job, "run": submitted.run, "provenance": submitted.provenance}
    text = format_record(redact(json.loads(record.model_copy(update=parts).model_dump_json())))
    result = _measured(submitted, archived.result.status, archived.result.log, text)
    log = beside / PurePosixPath(archived.result.log.path).name
    return Import(result, record.earlier_attempts, files, log, archived.accepted)


def _stated(options: ImportOptions) -> Run | None:
    """Return the run of the recipe that the user states; None if they state none."""
    if not options.recipe:
        return None
    return plan(PlanRequest.model_validate({**options.recipe, "gpu_type": options.gpu_type})).runs[0]


def _logged(logs: RunLogs, stated: Run | None, options: ImportOptions) -> Import:
    """Read a run from its log, or from the logs of a job that was requeued.

    `stated` is the run of the recipe that the user states, if they state one.
    """
    files = (*logs.attempts, *logs.other_outputs)
    for file in files:
        check_size(file)
    last = logs.attempts[-1]
    run, remark = planned_run(last.with_name(RUN_FILE))
    if remark is not None:
        raise UserError(remark)
    config = llmb_config(last) or {}
    if run is None:
        log = _read(logs, stated)
        upstream = find_upstream(last, find_batch_size(log))
        run = _recognised(upstream, config, stated, options)
        if stated is None and run.recipe.step_line is not None:
            log = _read(logs, run)
        run = _as_logged(run, upstream, log)
    else:
        log = read_log(
            logs.attempts,
            other_outputs=logs.other_outputs,
            max_steps=run.max_steps,
            first_step=run.first_step,
            step_line=run.recipe.step_line,
        )
    state = decide_state([problem for problem in log.problems if problem.fatal], lacks_numbers=False)
    if state == "complete" and log.steps:
        run = run.model_copy(update={"max_steps": log.steps[-1].global_step + 1})
    digest = hashlib.sha256(b"".join(map(_digest, files))).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{run.experiment}-{digest[:12]}").lstrip("._-")
    job_config = config.get("job_config", {})
    submitted = Submission(
        run=run,
        request=make_request(run, {"proxy": run.recipe.proxy}),
        job=Job(
            cluster=run.cluster,
            name=name,
            job_id=str(config.get("job_info", {}).get("job_id") or name)[:100],
            directory="",
            log_path="",
            submitted_at=_submitted_at(last, config),
        ),
        attempt=1,
        provenance=Provenance(
            steptime_version="",
            git_commit=None,
            git_clean=None,
            staged=StagedFiles(
                python=None,
                venv_lock_sha256=None,
                trainer_path="",
                trainer_sha256="",
                image=_image(config),
            ),
            environment=_texts(job_config.get("env_overrides")),
        ),
    )
    submitted = _here(submitted, last.name, options)
    status = JobStatus(state=_STATES.get(state, JobState.UNKNOWN), reason=f"its log is {state}")
    record = make_record(submitted, status, log)
    return Import(_measured(submitted, status, log, record), (), files, last)


def _read(logs: RunLogs, run: Run | None) -> TrainingLog:
    """Read the logs of a run without a plan, given the run of its recipe if that is known."""
    step_line = None if run is None else run.recipe.step_line
    # A log with a form of its own has no words at its end.
    max_steps = None if run is None or step_line is None else run.max_steps
    return read_log(logs.attempts, other_outputs=logs.other_outputs, max_steps=max_steps, step_line=step_line)


def _digest(file: Path) -> bytes:
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _recognised(
    upstream: Upstream | None, config: Mapping[str, Any], stated: Run | None, options: ImportOptions
) -> Run:
    """Return the run of a recipe that produced a log without a plan; raise UserError if that is unclear."""
    if options.cluster is None:
        raise UserError("the log does not say where it ran: name the cluster with --cluster")
    if stated is not None:
        return stated
    runs = () if upstream is None else upstream.runs
    if runs and options.gpu_type is not None:
        runs = tuple(run for run in runs if run.recipe.gpu_type == options.gpu_type)
        if not runs:
            raise UserError(
                f"the log shows a recipe that has no run on {options.gpu_type}: leave out --gpu-type, or "
                "name the recipe with --workload, --size, --dtype, --gpus and --gpu-type"
            )
    if not runs:
        raise UserError(
            "the log does not show which recipe of config/workloads it ran: name it with --workload, --size, "
            "--dtype, --gpus and --gpu-type"
        )
    if len(runs) > 1:
        raise UserError(
            f"the log does not show whether it ran {alternatives(runs)}: name it with --gpu-type, or with "
            "--workload, --size, --dtype and --gpus"
        )
    [run] = runs
    job_config = config.get("job_config", {})
    if job_config.get("model_overrides") or job_config.get("mbridge_args"):
        raise UserError(
            "llmb-run was given overrides of the model, so it did not run as published: name its recipe with "
            "--workload, --size, --dtype and --gpus"
        )
    return run


def _as_logged(run: Run, upstream: Upstream | None, log: TrainingLog) -> Run:
    """Return a recipe's run with the mode, the first step and the window that its log shows."""
    mode = mode_of_log(upstream, log) or Mode.PERFORMANCE
    window, _ = window_of_log(published_window(run), log, mode)
    loads = mode is Mode.CHECKPOINT_LOAD and log.steps
    return run.model_copy(
        update={
            "mode": mode,
            "window": window or run.window,
            "first_step": log.steps[0].global_step if loads else run.first_step,
        }
    )


def _here(submitted: Submission, log_name: str, options: ImportOptions) -> Submission:
    """Return a submission with the folder of this store into which its files are imported.

    Raises UserError for names with unsafe characters, because they become part of paths, commands and pages.
    """
    check_job_name(submitted.job.name)
    cluster = options.cluster or submitted.run.cluster
    run = submitted.run.model_copy(update={"cluster": cluster, "for_judging": options.for_judging})
    for name, value in {**run.recipe.identity, "cluster": cluster, "experiment": run.experiment}.items():
        _require_plain(name, value)
    folder = imported_dir() / submitted.job.name
    packed = "".join(end for end in (".gz", ".zst") if log_name.endswith(end))
    log_path = folder / (log_name if _PLAIN.fullmatch(log_name) else f"log.out{packed}")
    places = {"cluster": cluster, "directory": str(folder), "log_path": str(log_path)}
    return submitted.model_copy(
        update={
            "run": run,
            "request": submitted.request.model_copy(update={"cluster": cluster}),
            "job": submitted.job.model_copy(update=places),
            "provenance": submitted.provenance.model_copy(update={"origin": options.origin}),
        }
    )


def _require_plain(name: str, value: str | int) -> None:
    if not _PLAIN.fullmatch(str(value)):
        raise UserError(
            f"the {name} '{one_line(value)}' is not a plain name: use only letters, digits, '.', '_' and "
            "'-', beginning with a letter or digit"
        )


def _measured(submitted: Submission, status: JobStatus, log: TrainingLog, record: str) -> Result:
    """Return the result, measured from the steps of the log."""
    log = log.model_copy(update={"path": submitted.job.log_path})
    measurement: Measurement | None = None
    with suppress(UserError):  # the checks say why
        measurement = measure(submitted.run, log)
    return Result(submitted=submitted, status=status, measurement=measurement, log=log, record=record)


def _submitted_at(log: Path, config: Mapping[str, Any]) -> float:
    """Return when llmb-run submitted the job, else when the log was last written; never in the future."""
    info = config.get("job_info", {})
    when = log.stat().st_mtime
    with suppress(TypeError, ValueError, OverflowError):
        when = datetime.fromisoformat(info.get("submit_time") or info.get("launch_time")).timestamp()
    return min(max(when, 1.0), time.time())


def _image(config: Mapping[str, Any]) -> str | None:
    """Return the first image in the notation of registries: `nvcr.io/nvidia/nemo:26.06`."""
    images = config.get("container_info", {}).get("images")
    first = images[0] if isinstance(images, list) and images else None
    return first[:500].replace("#", "/", 1) if isinstance(first, str) else None


def _texts(values: Any) -> dict[str, str]:
    items: Sequence[tuple[Any, Any]] = list(values.items()) if isinstance(values, dict) else []
    return {
        name: str(value) for name, value in items if isinstance(name, str) and isinstance(value, str | int)
    }
