"""Submit the job of a run: find its attempt, record the job in the ledger, submit it to the cluster.

A job that failed through the cluster's fault is submitted again: it was preempted or never launched, or a
node died. A failure of the training itself is never resubmitted.

A worker may die at any point. The retry finds the attempt in the ledger, and the cluster returns the existing
job if it already has one of that name.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import PositiveInt

from steptime.clusters.base import Cluster, Installation, JobSpec, JobState, JobStatus
from steptime.clusters.config import ClusterConfig, load_cluster
from steptime.clusters.jobscript import job_spec
from steptime.errors import UserError
from steptime.recipes.models import Mode, Run
from steptime.recipes.notation import format_bytes
from steptime.recipes.parameters import checkpoint_bytes
from steptime.recipes.request import PlanRequest
from steptime.store.budgets import BudgetExceeded
from steptime.store.ledger import Ledger, LedgerJob, TaskKey, submission_columns
from steptime.store.run_models import Provenance
from steptime.waiting import poll_until_async

_ASKED_EVERY_S = 5.0
"""Seconds between two checks of whether the GPU limits have room."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run; clearing the task raises Airflow's `max_tries` and so starts another attempt."""

    task_key: TaskKey
    installation: Installation
    run_after: float
    """Unix time at which the DAG run was due."""
    max_tries: int
    run: Run
    request: PlanRequest
    provenance: Provenance

    def owns(self, job: LedgerJob) -> bool:
        """Return whether a job belongs to this attempt and was neither refused nor cancelled."""
        is_over = job.ended_at is not None and (job.job_id is None or job.state is JobState.CANCELLED)
        return not is_over and (job.run_after, job.max_tries, job.cell) == (
            self.run_after,
            self.max_tries,
            self.run.name,
        )

    def job(self, number: PositiveInt, config: ClusterConfig) -> LedgerJob:
        """Return the first job of this attempt, for the ledger; `add_resubmission` makes its replacements.

        `number` counts the jobs of all attempts at the run, from 1. `add_job` fills in the job's name,
        folder, log path and times.
        """
        return LedgerJob(
            **self.task_key.model_dump(exclude={"installations"}),
            name="",
            directory="",
            log_path="",
            created_at=0,
            installation_id=self.installation.id,
            installation_address=self.installation.address,
            run_after=self.run_after,
            cell=self.run.name,
            attempt=number,
            max_tries=self.max_tries,
            cluster=config.name,
            account=self.run.account,
            gpus=self.run.recipe.gpus,
            time_limit_s=self.run.time_limit_s,
            run=self.run,
            request=self.request,
            provenance=self.provenance,
        )


class GpuLimitReached(Exception):
    """The job must wait: the jobs on its cluster hold as many GPUs as its file allows."""

    def __init__(self, job_name: str, why: str) -> None:
        super().__init__(f"job {job_name} {why}")
        self.job_name = job_name


@dataclass(frozen=True)
class Reporter:
    """Receives the messages of a launch, and is told which job is being submitted."""

    info: Callable[[str], None]
    warn: Callable[[str], None]
    guard: Callable[[LedgerJob], None]
    """Called before and after a job is submitted; raises if the task was ended or deleted meanwhile."""


async def launch(
    cluster: Cluster, config: ClusterConfig, attempt: Attempt, ledger: Ledger, reporter: Reporter
) -> LedgerJob:
    """Return the job of an attempt: submit it, or find the one that an earlier try submitted.

    Jobs of earlier attempts are ended first, so that a run never has two live jobs.

    Raises:
        UserError: the cluster can never run it, it does not fit into a budget, or `work_dir` has too little
            space for its checkpoint.
        SystemFailure: an earlier job cannot be ended, or the cluster failed to accept this one.
        GpuLimitReached: the job is in the ledger, but too many GPUs are in use to submit it now.
    """
    earlier = await ledger.jobs_of_task(attempt.task_key, attempt.run.name)
    if earlier and attempt.owns(earlier[-1]):
        reporter.info(f"attempt {earlier[-1].attempt} was begun before: its job is {earlier[-1].name}")
        return await submit(cluster, config, earlier[-1], ledger, reporter)
    if still_open := [job for job in earlier if job.ended_at is None]:
        await end_open_jobs(cluster, still_open, ledger, info=reporter.info, warn=reporter.warn)
    await _require_checkpoint_space(cluster, config, attempt.run, reporter)
    first = attempt.job(1 + max((job.attempt for job in earlier), default=0), config)
    return await submit(cluster, config, await add_job(cluster, config, first, ledger), ledger, reporter)


async def _require_checkpoint_space(
    cluster: Cluster, config: ClusterConfig, run: Run, reporter: Reporter
) -> None:
    """Raise UserError if `work_dir` has less free space than the checkpoint that the run saves.

    Nothing is checked if the model's parameters are unknown, or if df does not tell the space. Quotas are not
    considered.
    """
    needed = checkpoint_bytes(run.recipe.model)
    if run.mode is not Mode.CHECKPOINT_SAVE or needed is None:
        return
    df = await cluster.run(["df", "-P", "-k", str(config.root)], timeout_s=60)
    last = df.stdout.splitlines()[-1:]
    free = re.search(r"\s\d+\s+\d+\s+(\d+)\s+\d+%\s", f"{last[0]} ") if last else None
    if df.exit_code or free is None:
        reporter.info(
            f"the free space of {config.root} is not known: the checkpoint takes about {format_bytes(needed)}"
        )
        return
    if int(free[1]) * 1024 < needed:
        raise UserError(
            f"{run.label} saves a checkpoint of about {format_bytes(needed)}, and {config.root} on cluster "
            f"{config.name} has {format_bytes(int(free[1]) * 1024)} free: make room there, or leave the "
            "checkpoint out."
        )


async def add_job(cluster: Cluster, config: ClusterConfig, job: LedgerJob, ledger: Ledger) -> LedgerJob:
    """Insert a job into the ledger and return it with its name, under the first free attempt number.

    If the cluster already has a job of that name, which the ledger lacks because the store was lost, that job
    is ended and the next number is used. Raises BudgetExceeded if the job does not fit into a budget.
    """
    while True:
        spec = make_job_spec(job, config)
        job = job.model_copy(
            update={
                "name": spec.name,
                "time_limit_s": spec.time_limit_s,
                "excluded_nodes": config.excluded_nodes(config.avoiding(job.run, job.excluded_nodes)),
                "directory": spec.directory,
                "log_path": spec.log_path,
                "created_at": time.time(),
                "waits_for_gpus": config.gpus is not None,
                "asked_at": time.time(),
            }
        )
        if await cluster.find(job.name) is None:
            break
        await end_job(cluster, job.name, ledger)
        job = job.model_copy(update={"attempt": job.attempt + 1})
    try:
        await ledger.add(job)
    except BudgetExceeded:
        await record_ended_jobs(cluster, ledger)
        await ledger.add(job)
    return job


def may_resubmit(job: LedgerJob, status: JobStatus, config: ClusterConfig) -> bool:
    """Return whether to submit the run of a failed job again.

    True if the cluster caused the failure, and the cluster's file allows more resubmissions of one run.
    """
    is_fault = status.state is JobState.FAILED and status.cluster_fault
    return is_fault and job.resubmission < config.resubmissions


async def add_resubmission(
    cluster: Cluster,
    config: ClusterConfig,
    job: LedgerJob,
    status: JobStatus,
    ledger: Ledger,
    *,
    warn: Callable[[str], None],
) -> LedgerJob:
    """Insert into the ledger a replacement for a job that failed through the cluster's fault; return it.

    It avoids the nodes that failed, and is not submitted yet. Raises BudgetExceeded if the cluster's
    budget has not enough left.
    """
    excluded = tuple(dict.fromkeys((*job.excluded_nodes, *status.failed_nodes)))
    warn(
        f"the cluster failed job {job.name} ({status.reason}): resubmitting the run, {job.resubmission + 1} "
        f"of at most {config.resubmissions} times" + (f", without {', '.join(excluded)}" if excluded else "")
    )
    new = {
        "attempt": job.attempt + 1,
        "resubmission": job.resubmission + 1,
        "excluded_nodes": excluded,
        "state": JobState.UNKNOWN,
        "reason": "",
        **dict.fromkeys(("job_id", "submitted_at", "started_at", "ended_at")),
    }
    return await add_job(cluster, config, job.model_copy(update=new), ledger)


async def record_ended_jobs(cluster: Cluster, ledger: Ledger) -> None:
    """Record which open jobs of a cluster have ended, so that budgets count their actual time."""
    still_open = await ledger.open_jobs(cluster.name)
    names = [job.name for job in still_open if not job.waits_for_gpus]
    for name, status in (await cluster.poll(names)).items() if names else ():
        if not status.state.is_live and status.state is not JobState.UNKNOWN:
            await ledger.store_status(name, status, time.time())


async def submit(
    cluster: Cluster, config: ClusterConfig, job: LedgerJob, ledger: Ledger, reporter: Reporter
) -> LedgerJob:
    """Submit a job of the ledger, unless the cluster has it already; return it with its job id.

    If `reporter.guard` raises after the submission, the job is ended.

    Raises:
        UserError: the cluster can never run it; the ledger records that.
        SystemFailure: the cluster failed to accept it; a retry may submit it again.
        GpuLimitReached: too many GPUs are in use. Submit it again after `wait_for_gpus` has returned.
    """
    reporter.guard(job)
    if job.job is not None:
        return job
    if job.waits_for_gpus and await ledger.reserve_gpus(job, config, time.time()):
        await record_ended_jobs(cluster, ledger)
        if why := await ledger.reserve_gpus(job, config, time.time()):
            raise GpuLimitReached(job.name, why)
    try:
        spec = make_job_spec(job, config)
        submitted = await cluster.submit(spec)
    except UserError as refusal:
        await store_refusal(job, refusal, ledger)
        raise
    await ledger.store_submission(submitted)
    try:
        reporter.guard(job)
    except BaseException:  # `on_kill` may have come too early to find the job
        await end_job(cluster, job.name, ledger)
        raise
    return job.model_copy(update=submission_columns(submitted))


async def wait_for_gpus(name: str, ledger: Ledger, info: Callable[[str], None]) -> None:
    """Wait until GPUs could be reserved for the ledger's job `name`, or it need not be submitted any more.

    The cluster's file is read again each time, as a person may raise its limit.
    """
    said = ""

    async def may_go_on() -> bool:
        nonlocal said
        job = await ledger.find(name)
        if job is None or not job.waits_for_gpus or job.ended_at is not None:
            return True
        # The file is read each time: a person may raise the limit.
        why = await ledger.reserve_gpus(job, load_cluster(job.cluster), time.time())
        if why and why != said:
            info(f"job {name} {why}")
        said = why
        return not why

    await poll_until_async(may_go_on, every_s=_ASKED_EVERY_S)


async def store_refusal(job: LedgerJob, refusal: Exception, ledger: Ledger) -> None:
    """Record in the ledger that a cluster refused a job, with the reason."""
    status = JobStatus(state=JobState.FAILED, reason=f"not submitted: {refusal}")
    await ledger.store_status(job.name, status, time.time())


async def end_job(cluster: Cluster, name: str, ledger: Ledger) -> JobStatus:
    """Cancel a job that may be live; record and return its status, UNKNOWN if its end is not known yet.

    Raises SystemFailure if it cannot be ended.
    """
    await cluster.cancel(name)
    status = (await cluster.poll([name]))[name]
    if status.state.is_live:
        status = status.model_copy(update={"state": JobState.UNKNOWN})
    await ledger.store_status(name, status, time.time())
    return status


async def end_open_jobs(
    cluster: Cluster,
    jobs: Sequence[LedgerJob],
    ledger: Ledger,
    *,
    info: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Cancel those of `jobs` that may be live, and record how each ended.

    Raises SystemFailure if one cannot be ended.
    """
    statuses = await cluster.poll([job.name for job in jobs])
    for job in jobs:
        status = statuses[job.name]
        if status.state.is_live or job.job_id is None:
            warn(f"job {job.name} is {status.state} and nobody waits for it: ending it")
            status = await end_job(cluster, job.name, ledger)
        if status.state is JobState.UNKNOWN and job.job_id is None:
            status = JobStatus(state=JobState.CANCELLED, reason="never submitted")
        await ledger.store_status(job.name, status, time.time())
        info(f"job {job.name}: {status.state}")


def make_job_spec(job: LedgerJob, config: ClusterConfig) -> JobSpec:
    """Return what the cluster needs to start a job of the ledger: its script, files and size.

    Raises UserError if the cluster cannot or may not run it.
    """
    return job_spec(
        config.avoiding(job.run, job.excluded_nodes) if job.excluded_nodes else job.run,
        job.provenance.staged,
        config,
        identity=f"{job.dag_id}/{job.dag_run_id}/{job.cell}",
        started=int(job.run_after),
        attempt=job.attempt,
        installation=job.installation,
    )
