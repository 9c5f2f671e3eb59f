"""The job ledger: a row of the metrics store for each job, inserted before its cluster is contacted.

After any crash the ledger says which job to look for.
"""

from __future__ import (
    annotations,  # SQLAlchemy 1.4, which Airflow 3.1 is released with, has no generic classes
)

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import NonNegativeInt, PositiveInt
from sqlalchemy import and_, func, or_, select
from sqlalchemy.sql.expression import ColumnElement

from steptime.clusters.base import Installation, Job, JobState, JobStatus
from steptime.clusters.config import ClusterConfig
from steptime.errors import SystemFailure
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.recipes.request import PlanRequest
from steptime.settings import store_url
from steptime.store.budgets import Owner, admit, live_beyond_limit_s
from steptime.store.database import lock, read_connection, while_unavailable, write_transaction
from steptime.store.run_models import LedgerPlan, Provenance, Submission
from steptime.store.schema import jobs
from steptime.wording import counted

Done = TypeVar("Done")

_ASKS_WITHIN_S = 600
"""If the task of a waiting job has not asked for GPUs for this long, it has crashed."""
_SUBMITTED_WITHIN_S = 3600
"""How long a job that is not on its cluster yet holds GPUs."""


class TaskKey(Frozen):
    """Names the Airflow tasks that make a run and own its jobs: their DAG run, task group and map index."""

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
    provenance: Provenance
    state: JobState = JobState.UNKNOWN
    reason: str = ""
    abandoned: bool = False
    """Whether `wait` gave up a job that may be alive, because the cluster was out of reach."""
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
            run=self.run,
            request=self.request,
            job=self.job,
            attempt=self.attempt,
            provenance=self.provenance,
        )

    @property
    def status(self) -> JobStatus:
        """The last recorded state of the job."""
        return JobStatus(
            state=self.state, reason=self.reason, started_at=self.started_at, ended_at=self.ended_at
        )


class Ledger:
    """The job ledger in the metrics store at `url`.

    While the store is away, each method waits for it: `warn` gets a sentence for each failed try, and
    StoreUnavailable is raised after `patience_s` seconds (0: at the first failed try). Other failures of the
    store are raised at once, as SystemFailure.
    """

    def __init__(
        self, warn: Callable[[str], None], *, url: str | None = None, patience_s: float | None = None
    ) -> None:
        self.url = url or store_url()
        self._warn = warn
        self._patience_s = patience_s

    async def add(self, job: LedgerJob) -> None:
        """Insert a job, if the budgets have room for it, in place of its DAG run's reservation for it.

        Raises BudgetExceeded if a budget has not enough left; nothing is modified then.
        """
        await self._call(_add, job)

    async def reserve_gpus(self, job: LedgerJob, config: ClusterConfig, now: float) -> str:
        """Reserve the job's GPUs if the limit of its cluster's file allows, and return "".

        Otherwise record that it waits, and return why as part of a sentence. First come, first served. A
        waiting job whose task last asked more than ten minutes before `now` (Unix time) is skipped:
        the task has crashed.
        """
        return await self._call(_reserve_gpus, job, config, now)

    async def find(self, name: str) -> LedgerJob | None:
        """Return the job of this name; None if there is none."""
        return next(iter(await self._jobs(jobs.c.name == name)), None)

    async def jobs_of_task(self, key: TaskKey, cell: str | None = None) -> list[LedgerJob]:
        """Return the jobs that the tasks of `key` own, oldest first.

        With the name of their run as `cell`, the jobs of that run that belong to other tasks of the DAG run
        are included.
        """
        same = and_(jobs.c.task_group == key.task_group, jobs.c.map_index == key.map_index)
        return await self._jobs(
            *_match_dag_run(key), same if cell is None else or_(same, jobs.c.cell == cell)
        )

    async def jobs_of_dag_run(self, key: TaskKey) -> list[LedgerJob]:
        """Return all jobs of the DAG run that `key` names, oldest first."""
        return await self._jobs(*_match_dag_run(key))

    async def planned_runs(self, key: TaskKey) -> dict[str, LedgerPlan]:
        """Return what the DAG run that `key` names has planned, by the names of the runs.

        A run has the plan that was stored for it last, or else that of its newest job, which replaced it.
        """
        return await self._call(_select_planned, _match_dag_run(key))

    async def planned_run(self, key: TaskKey, name: str) -> LedgerPlan:
        """Return the run of that name that the DAG run of `key` has planned.

        Raises SystemFailure if the store has no such plan.
        """
        planned = await self._call(_select_planned, (*_match_dag_run(key), jobs.c.cell == name))
        if name not in planned:
            raise SystemFailure(
                f"the metrics store has no plan of the run '{name}' of this DAG run: was the store replaced? "
                "Clear the DAG run's first task to plan again"
            )
        return planned[name]

    async def latest_job(self, key: TaskKey) -> LedgerJob | None:
        """Return the newest job that the tasks of `key` own; None if there is none."""
        return next(reversed(await self.jobs_of_task(key)), None)

    async def open_jobs(self, cluster: str) -> list[LedgerJob]:
        """Return the jobs on a cluster that have no end time, oldest first."""
        return await self._jobs(jobs.c.cluster == cluster, jobs.c.ended_at.is_(None))

    async def was_reached(self, cluster: str) -> bool:
        """Return whether a cluster has ever accepted a job."""
        return await self._call(_was_reached, cluster)

    async def store_submission(self, job: Job) -> None:
        """Record that the cluster has accepted the job."""
        await self._update(job.name, **submission_columns(job))

    async def store_status(self, name: str, status: JobStatus, now: float) -> None:
        """Record a job's state; `now` (Unix time) is its end time if the cluster does not report one.

        A job unknown to its cluster may still be live, so it gets no end time.
        """
        may_live = status.state.is_live or status.state is JobState.UNKNOWN
        await self._update(
            name,
            state=status.state,
            reason=status.reason,
            started_at=status.started_at,
            ended_at=None if may_live else status.ended_at or now,
        )

    async def mark_abandoned(self, name: str, *, abandoned: bool) -> None:
        """Record whether the task that waits for a job gave it up while it may still be live."""
        await self._update(name, abandoned=abandoned)

    async def _jobs(self, *where: ColumnElement[bool]) -> list[LedgerJob]:
        return await self._call(_select_jobs, *where)

    async def _update(self, name: str, **values: Any) -> None:
        await self._call(_update, name, values)

    async def _call(self, work: Callable[..., Done], *arguments: Any) -> Done:
        """Call `work` with the store's address in a thread, and again while the store is away."""

        async def attempt() -> Done:
            return await asyncio.to_thread(work, self.url, *arguments)

        return await while_unavailable(self._warn, self._patience_s)(attempt)()


def jobs_of(url: str, dag_id: str, dag_run_id: str) -> list[LedgerJob]:
    """Return all jobs of a DAG run in the store at `url`, of any Airflow, oldest first."""
    return _select_jobs(url, jobs.c.dag_id == dag_id, jobs.c.dag_run_id == dag_run_id)


def latest_submitted(jobs: Sequence[LedgerJob]) -> LedgerJob | None:
    """Return the newest submitted job of the last attempt; None if that attempt has submitted none.

    `jobs` are those of one `TaskKey`, oldest first. Clearing the task begins another attempt.
    """
    attempt = [(job.run_after, job.max_tries) for job in jobs][-1:]
    return next(
        (job for job in reversed(jobs) if job.job and [(job.run_after, job.max_tries)] == attempt), None
    )


def submission_columns(job: Job) -> dict[str, Any]:
    """Return the ledger's columns that become known when a cluster accepts the job, by name."""
    names = ("job_id", "directory", "log_path", "submitted_at")
    return {"state": JobState.QUEUED, **{name: getattr(job, name) for name in names}}


def _add(url: str, job: LedgerJob) -> None:
    with write_transaction(url) as connection:
        owner = Owner(job.installation_id, job.dag_id, job.dag_run_id)
        admit(connection, owner, job.run, now=job.created_at)
        connection.execute(jobs.insert().values(_row(job)))


def _reserve_gpus(url: str, job: LedgerJob, config: ClusterConfig, now: float) -> str:
    others = [
        jobs.c.cluster == job.cluster,
        jobs.c.attempt > 0,
        jobs.c.ended_at.is_(None),
        jobs.c.name != job.name,
    ]
    asked_at = func.coalesce(jobs.c.asked_at, jobs.c.created_at)
    lives_s = jobs.c.time_limit_s + live_beyond_limit_s(config)
    on_cluster = and_(jobs.c.job_id.is_not(None), jobs.c.created_at + lives_s > now)
    holds = [jobs.c.waits_for_gpus.is_(False), or_(on_cluster, asked_at > now - _SUBMITTED_WITHIN_S)]
    came_first = or_(
        jobs.c.created_at < job.created_at, and_(jobs.c.created_at == job.created_at, jobs.c.name < job.name)
    )
    waits = [jobs.c.waits_for_gpus.is_(True), came_first, asked_at > now - _ASKS_WITHIN_S]
    with write_transaction(url) as connection:
        lock(connection, "GPU limits")
        sentence = ""
        if (limit := config.gpus) is not None:
            held = connection.scalar(select(func.sum(jobs.c.gpus)).where(*others, *holds)) or 0
            before = connection.scalar(select(func.count()).select_from(jobs).where(*others, *waits))
            if before or held + job.gpus > limit:
                sentence = (
                    f"needs {job.gpus} of the {limit} GPUs that jobs on cluster '{config.name}' may hold "
                    f"at a time: {held} are in use"
                )
                sentence += f", and {counted(before, 'job')} came before it" if before else ""
        values = {"waits_for_gpus": bool(sentence), "asked_at": now}
        connection.execute(jobs.update().where(jobs.c.name == job.name).values(values))
    return sentence


def _was_reached(url: str, cluster: str) -> bool:
    query = select(jobs.c.name).where(jobs.c.cluster == cluster, jobs.c.job_id.is_not(None)).limit(1)
    with read_connection(url) as connection:
        return connection.execute(query).first() is not None


def _update(url: str, name: str, values: Mapping[str, Any]) -> None:
    with write_transaction(url) as connection:
        connection.execute(jobs.update().where(jobs.c.name == name).values(values))


def _select_jobs(url: str, *where: ColumnElement[bool]) -> list[LedgerJob]:
    query = select(jobs).where(jobs.c.attempt > 0, *where).order_by(jobs.c.created_at, jobs.c.attempt)
    with read_connection(url) as connection:
        return [LedgerJob.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def _select_planned(url: str, where: Sequence[ColumnElement[bool]]) -> dict[str, LedgerPlan]:
    columns = (jobs.c.cell, jobs.c.run, jobs.c.request, jobs.c.provenance)
    query = select(*columns).where(*where).order_by(jobs.c.attempt == 0, jobs.c.created_at, jobs.c.attempt)
    with read_connection(url) as connection:
        latest = {row.cell: row for row in connection.execute(query)}
    return {
        name: LedgerPlan(
            run=Run.model_validate(row.run),
            request=PlanRequest.model_validate(row.request),
            options=row.provenance["options"],
            sweep=row.provenance["sweep"],
        )
        for name, row in latest.items()
    }


def _match_dag_run(key: TaskKey) -> tuple[ColumnElement[bool], ...]:
    of_installation = jobs.c.installation_id.in_(key.installations)
    return of_installation, jobs.c.dag_id == key.dag_id, jobs.c.dag_run_id == key.dag_run_id


def _row(job: LedgerJob) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(job.model_dump_json())
    return row
