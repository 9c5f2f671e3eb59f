"""The record of one run: what was asked for, what ran, made of what, where and when, and how it ended.

It is one JSON document without secrets. It is written once: as `record.json` beside the log on the cluster,
and, byte for byte the same, into the metrics store. Neither is ever changed: whoever comes to another record
of the same run gets the first one, with what differs.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from steptime import __version__
from steptime.clusters.base import SCRIPT_FILE, Cluster, Job, JobStatus
from steptime.clusters.jobscript import earlier_names
from steptime.errors import SystemFailure, UserError, shown
from steptime.frozen import Frozen
from steptime.logs.models import TrainingLog
from steptime.recipes.models import Run
from steptime.recipes.request import PlanRequest
from steptime.results.models import Provenance, Submitted
from steptime.results.parsed_log import read_whole
from steptime.results.redaction import redacted

RECORD_FILE = "record.json"
_PROJECT = Path(__file__).resolve().parents[3]
_GIT_TIMEOUT_S = 10


class EarlierAttempt(Frozen):
    """One job for a run: another begins if the cluster failed it, or somebody cleared its task."""

    job: Job
    status: JobStatus


class RunRecord(Frozen):
    """What `record.json` holds, in its order."""

    schema_version: Literal[1] = 1
    job: Job
    attempt: PositiveInt
    """Which job of the run it is."""
    status: JobStatus
    """How it ended, with the times of its start and end."""
    earlier_attempts: tuple[EarlierAttempt, ...]
    """Those before this job, in their order."""
    nodes: tuple[str, ...]
    """In the order of their ranks if the training recorded them, else in that of the cluster."""
    versions: dict[str, Any]
    """Of the libraries and drivers that the training used, as it recorded them; empty if it did not."""
    launch: dict[str, Any] = Field(default_factory=dict)
    """How its ranks were started, as the training recorded: `numa_bound_ranks` and `vboost`."""
    node_check: dict[str, Any] | None = None
    """What its nodes reported before the training, with their rates; None without a node check."""
    run: Run
    """The plan with its recipe's row, and every option that it came to."""
    request: PlanRequest
    """The request for this run alone."""
    provenance: Provenance


def make_record(
    submitted: Submitted,
    status: JobStatus,
    log: TrainingLog,
    earlier_attempts: tuple[EarlierAttempt, ...] = (),
) -> str:
    """Make the record of a run that has ended: the text of its file, without secrets (see `redaction`)."""
    of_trainer = [one for one in (log.started, log.ended) if one is not None]
    nodes = [one["node_names"] for one in of_trainer if one.get("node_names")]
    record = RunRecord(
        job=submitted.job,
        attempt=submitted.attempt,
        status=status,
        earlier_attempts=earlier_attempts,
        nodes=tuple(map(str, nodes[-1])) if nodes else status.nodes,
        versions={
            name: version
            for one in of_trainer
            for name, version in (one.get("versions") or {}).items()
            if version is not None
        },
        launch=(log.started or {}).get("launch") or {},
        node_check=log.node_check,
        run=submitted.run,
        request=submitted.request,
        provenance=submitted.made_by,
    )
    return as_text(redacted(json.loads(record.model_dump_json())))


def as_text(record: dict[str, Any]) -> str:
    """Return a record as the text of its file."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


async def earlier_attempts(cluster: Cluster, job: Job, attempt: int) -> tuple[EarlierAttempt, ...]:
    """Return the jobs that were submitted for the same run before, as the cluster knows them.

    Raises SystemFailure if it cannot be asked.
    """
    names = earlier_names(job.name, attempt)
    if not names:
        return ()
    statuses = await cluster.poll(names)
    jobs = [await cluster.find(name) for name in names]
    return tuple(EarlierAttempt(job=job, status=statuses[job.name]) for job in jobs if job is not None)


def recorded_attempts(record: str) -> tuple[EarlierAttempt, ...]:
    """Return the earlier attempts of a record; none if somebody has made it unreadable."""
    parsed = _parsed(record)
    return () if parsed is None else parsed.earlier_attempts


def recorded_nodes(record: str) -> tuple[str, ...]:
    """Return the nodes of a record; none if somebody has made it unreadable."""
    parsed = _parsed(record)
    return () if parsed is None else parsed.nodes


def recorded_cell(record: str) -> str | None:
    """Return the cell of a sweep that a record is of; None if there is none, or the record is unreadable."""
    parsed = _parsed(record)
    return None if parsed is None else parsed.run.cell


def recorded_job(record: str) -> Job | None:
    """Return the job that a record is of; None if somebody has made it unreadable."""
    parsed = _parsed(record)
    return None if parsed is None else parsed.job


def _parsed(record: str | bytes) -> RunRecord | None:
    try:
        return RunRecord.model_validate_json(record)
    except ValidationError:
        return None


def record_path(log_path: str) -> str:
    """Return the path of the record beside a run's log, on the same cluster."""
    return str(PurePosixPath(log_path).with_name(RECORD_FILE))


async def with_script(cluster: Cluster, submitted: Submitted) -> Submitted:
    """Return the record with the text of the job's script, which lies in the job's folder."""
    script = await read_whole(cluster, str(PurePosixPath(submitted.job.directory) / SCRIPT_FILE))
    made_by = submitted.made_by.model_copy(update={"script": script.decode(errors="replace")})
    return submitted.model_copy(update={"made_by": made_by})


async def kept_record(cluster: Cluster, job: Job) -> str:
    """Read the record beside the job's log. Raises SystemFailure if it is gone."""
    path = record_path(job.log_path)
    if not (content := await read_whole(cluster, path)):
        raise SystemFailure(
            f"the record {path} on cluster '{cluster.name}' is gone: clear the task 'parse', which writes it "
            "anew."
        )
    return content.decode(errors="replace")


async def recorded_end(cluster: Cluster, job: Job) -> JobStatus | None:
    """Return how the job ended by the record beside its log, or None: clusters forget their jobs."""
    # There may be none, or a broken one, which `keep_record` names.
    record = _parsed(await read_whole(cluster, record_path(job.log_path)))
    return record.status if record is not None and record.job == job else None


async def keep_record(cluster: Cluster, job: Job, record: str) -> tuple[str, list[str]]:
    """Write the record beside the job's log, unless there is one.

    Returns the text that is there, and how it differs from this one.

    Raises SystemFailure if it cannot be written, UserError if what stands there is no record.
    """
    path = record_path(job.log_path)
    if not (standing := await read_whole(cluster, path)):
        await cluster.write(path, record.encode())
        standing = await read_whole(cluster, path)  # of two who write at once, one was the last
    try:
        text = standing.decode()
        return text, differences(text, record)
    except ValueError as error:
        raise UserError(
            f"the record {path} on cluster '{job.cluster}' is no JSON ({shown(error)}): somebody changed it; "
            "move it away and clear this task to have it written anew."
        ) from None


def differences(kept: str, new: str) -> list[str]:
    """Return how two records of one run differ, a line for each place; none if they are equal."""
    return [] if kept == new else list(_differing(json.loads(kept), json.loads(new), ""))


def _differing(kept: Any, new: Any, place: str) -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*kept, *new)):
            within = f"{place}.{name}" if place else str(name)
            if name not in kept or name not in new:
                yield f"{within} is only in the {'recorded' if name in kept else 'new'} one"
            else:
                yield from _differing(kept[name], new[name], within)
    elif isinstance(kept, list) and isinstance(new, list) and len(kept) == len(new):
        for number, (one, other) in enumerate(zip(kept, new, strict=True)):
            yield from _differing(one, other, f"{place}[{number}]")
    elif kept != new:
        yield f"{place} is recorded as {shown(json.dumps(kept))}, and is {shown(json.dumps(new))} now"


def of_this_code() -> dict[str, Any]:
    """Return the fields of `Provenance` about the steptime that runs here.

    The commit is None outside of a git checkout.
    """
    # An installed package may lie inside somebody else's repository: only that of this very project counts.
    is_checkout = _git("rev-parse", "--show-toplevel") == str(_PROJECT)
    commit = _git("rev-parse", "HEAD") if is_checkout else None
    changes = _git("--no-optional-locks", "status", "--porcelain") if is_checkout else None
    return {
        "steptime_version": __version__,
        "git_commit": commit,
        "git_clean": None if changes is None else not changes,
    }


def _git(*arguments: str) -> str | None:
    """The output of git in this project's folder; None if that is in no repository, or without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_PROJECT), *arguments],  # noqa: S607 (the user's git, wherever it is)
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
