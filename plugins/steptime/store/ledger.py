"""The job ledger: a row of the metrics store for each job, inserted before its cluster is contacted.

After any crash the ledger says which job to look for. Functions block, and raise StoreUnavailable while the
store does not answer.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import NonNegativeInt, PositiveInt
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from steptime.clusters.base import Installation, Job, JobState, JobStatus
from steptime.clusters.config import ClusterConfig
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.recipes.request import PlanRequest
from steptime.settings import store_url
from steptime.store.database import lock, read_connection, write_transaction
from steptime.store.run_models import Provenance, Submission
from steptime.store.schema import jobs

_ASKS_WITHIN_S = 600
"""If the task of a waiting job has not asked for GPUs for this long, it has crashed."""
_SUBMITTED_WITHIN_S = 3600
"""How long a job that is not on its cluster yet holds GPUs."""
_SETTLED_WITHIN_S = 86_400
"""How long after its last possible end a job holds GPUs if its end is unknown."""


class Place(Frozen):
    """The Airflow tasks that make a run, and own its jobs: a DAG run, task group and map index."""

    installations: tuple[str, ...]
    """All ids of this Airflow installation; see `airflow.installation`."""
    dag_id: str
    dag_run_id: str
    task_group: str
    """Task group, such as `performance` or `checkpoint.save`."""
    map_index: int


class LedgerJob(Frozen):
    """A job as a row of the ledger. Times are Unix time in seconds."""

    name: str
    installation_id: str
    installation_address: str
    dag_id: str
    dag_run_id: str
    run_after: float
    """When the DAG run was due. A deleted DAG run that is started again has the same id and another time."""
    task_group: str
    map_index: int
    cell: str
    """Name of the run."""
    attempt: PositiveInt
    """Number of this job among the run's jobs; the job's name ends with it."""
    resubmission: NonNegativeInt = 0
    """0 for the first job of an attempt; its replacements after faults of the cluster count up from 1."""
    max_tries: int
    """`max_tries` of the task that submits; Airflow raises it when a person clears the task."""
    cluster: str
    account: str | None
    gpus: PositiveInt
    time_limit_s: PositiveInt
    excluded_nodes: tuple[str, ...] = ()
    """Nodes that the job avoids: by its request, by the cluster's file, or because they failed before."""
    run: Run
    request: PlanRequest
    made_by: Provenance
    state: JobState = JobState.UNKNOWN
    reason: str = ""
    abandoned: bool = False
    """Whether `wait` gave up a job that may be alive: the cluster was out of reach, or no try was left."""
    job_id: str | None = None
    """Job id; None until the cluster's answer is recorded: the cluster may have the job already."""
    directory: str
    log_path: str
    created_at: float
    waits_for_gpus: bool = False
    """Whether it waits for GPUs that its cluster's file limits; False once it may be submitted."""
    asked_at: float | None = None
    """When its task last asked for GPUs, in Unix time."""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    """When it ended, in Unix time; None as long as the job may be alive."""

    @property
    def installation(self) -> Installation:
        """The Airflow installation that owns the job."""
        return Installation(id=self.installation_id, address=self.installation_address)

    @property
    def job(self) -> Job | None:
        """The job on its cluster; None until the cluster is known to have it."""
        if self.job_id is None or self.submitted_at is None:
            return None
        return Job(
            cluster=self.cluster,
            name=self.name,
            job_id=self.job_id,
            directory=self.directory,
            log_path=self.log_path,
            submitted_at=self.submitted_at,
            installation=self.installation,
        )

    @property
    def submitted(self) -> Submission | None:
        """The run with its job; None until the cluster is known to have the job."""
        if self.job is None:
            return None
        return Submission(
            run=self.run, request=self.request, job=self.job, attempt=self.attempt, made_by=self.made_by
        )

    @property
    def status(self) -> JobStatus:
        """The last recorded state of the job."""
        return JobStatus(
            state=self.state, reason=self.reason, started_at=self.started_at, ended_at=self.ended_at
        )


def add(job: LedgerJob, check: Callable[[Connection], None] | None = None) -> None:
    """Insert a job into the ledger.

    `check` is called first, in the same transaction; if it raises, the job is not inserted.
    """
    with write_transaction(store_url()) as connection:
        if check is not None:
            check(connection)
        connection.execute(jobs.insert().values(_row(job)))


def take_room(job: LedgerJob, config: ClusterConfig, now: float) -> str:
    """Reserve the job's GPUs if the limit of its cluster's file allows, and return "".

    Otherwise record that it waits, and return why as part of a sentence. First come, first served.
    A waiting job whose task last asked more than ten minutes ago is skipped: the task has crashed.
    """
    others = [
        jobs.c.cluster == job.cluster,
        jobs.c.attempt > 0,
        jobs.c.ended_at.is_(None),
        jobs.c.name != job.name,
    ]
    asked_at = func.coalesce(jobs.c.asked_at, jobs.c.created_at)
    lives_s = 3600 * config.queue_patience_h + jobs.c.time_limit_s + _SETTLED_WITHIN_S
    on_cluster = and_(jobs.c.job_id.is_not(None), jobs.c.created_at + lives_s > now)
    holds = [jobs.c.waits_for_gpus.is_(False), or_(on_cluster, asked_at > now - _SUBMITTED_WITHIN_S)]
    came_first = or_(
        jobs.c.created_at < job.created_at, and_(jobs.c.created_at == job.created_at, jobs.c.name < job.name)
    )
    waits = [jobs.c.waits_for_gpus.is_(True), came_first, asked_at > now - _ASKS_WITHIN_S]
    with write_transaction(store_url()) as connection:
        lock(connection, "room")
        sentence = ""
        if (limit := config.gpus) is not None:
            held = connection.scalar(select(func.sum(jobs.c.gpus)).where(*others, *holds)) or 0
            before = connection.scalar(select(func.count()).select_from(jobs).where(*others, *waits))
            if before or held + job.gpus > limit:
                sentence = (
                    f"needs {job.gpus} of the {limit} GPUs that jobs on cluster '{config.name}' may hold "
                    f"at a time: {held} are in use"
                )
                sentence += f", and {before} job(s) wait before it" if before else ""
        values = {"waits_for_gpus": bool(sentence), "asked_at": now}
        connection.execute(jobs.update().where(jobs.c.name == job.name).values(values))
    return sentence


def find(name: str) -> LedgerJob | None:
    """Return the ledger's job of this name, or None if there is none."""
    return next(iter(_jobs(jobs.c.name == name)), None)


def jobs_at(place: Place, cell: str | None = None) -> list[LedgerJob]:
    """Return the jobs of the run at `place`, oldest first.

    `cell` is the run's name. With it, jobs of the same run at other places of the DAG run are included.
    """
    here = and_(jobs.c.task_group == place.task_group, jobs.c.map_index == place.map_index)
    return _jobs(*_match_dag_run(place), here if cell is None else or_(here, jobs.c.cell == cell))


def jobs_of_dag_run(place: Place) -> list[LedgerJob]:
    """Return all jobs of the DAG run that `place` belongs to, oldest first."""
    return _jobs(*_match_dag_run(place))


def latest_at(place: Place) -> LedgerJob | None:
    """Return the newest job in the ledger of the run at `place`; None if there is none."""
    return next(reversed(jobs_at(place)), None)


def latest_submitted(jobs: Sequence[LedgerJob]) -> LedgerJob | None:
    """Return the newest submitted job of the last attempt; None if that attempt has submitted none.

    `jobs` are the jobs at one `Place`, oldest first. Clearing the task begins another attempt.
    """
    attempt = [(job.run_after, job.max_tries) for job in jobs][-1:]
    return next(
        (job for job in reversed(jobs) if job.job and [(job.run_after, job.max_tries)] == attempt), None
    )


def open_jobs(cluster: str) -> list[LedgerJob]:
    """Return the jobs on a cluster for which the ledger has no end time."""
    return _jobs(jobs.c.cluster == cluster, jobs.c.ended_at.is_(None))


def was_reached(cluster: str) -> bool:
    """Return whether a cluster has ever accepted a job."""
    query = select(jobs.c.name).where(jobs.c.cluster == cluster, jobs.c.job_id.is_not(None)).limit(1)
    with read_connection(store_url()) as connection:
        return connection.execute(query).first() is not None


def note_submitted(job: Job) -> None:
    """Record in the ledger that the cluster has accepted the job."""
    _update(job.name, **submission_columns(job))


def submission_columns(job: Job) -> dict[str, Any]:
    """Return the ledger's columns that become known when a cluster accepts the job, by name."""
    names = ("job_id", "directory", "log_path", "submitted_at")
    return {"state": JobState.QUEUED, **{name: getattr(job, name) for name in names}}


def note_status(name: str, status: JobStatus, now: float) -> None:
    """Record a job's state in the ledger; `now` is its end time if the cluster does not report one.

    A job unknown to its cluster may still be live, so it gets no end time.
    """
    may_live = status.state.is_live or status.state is JobState.UNKNOWN
    ended_at = None if may_live else status.ended_at or now
    _update(name, state=status.state, reason=status.reason, started_at=status.started_at, ended_at=ended_at)


def note_abandoned(name: str, *, abandoned: bool) -> None:
    """Record in the ledger whether the task that waits for a job gave it up while it may still be live."""
    _update(name, abandoned=abandoned)


def _update(name: str, **values: Any) -> None:
    with write_transaction(store_url()) as connection:
        connection.execute(jobs.update().where(jobs.c.name == name).values(values))


def _jobs(*where: ColumnElement[bool]) -> list[LedgerJob]:
    query = select(jobs).where(jobs.c.attempt > 0, *where).order_by(jobs.c.created_at, jobs.c.attempt)
    with read_connection(store_url()) as connection:
        return [LedgerJob.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def _match_dag_run(place: Place) -> tuple[ColumnElement[bool], ...]:
    own = jobs.c.installation_id.in_(place.installations)
    return own, jobs.c.dag_id == place.dag_id, jobs.c.dag_run_id == place.dag_run_id


def _row(job: LedgerJob) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(job.model_dump_json())
    return row
