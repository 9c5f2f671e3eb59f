"""The sensor that waits for a training job, deferred to the triggerer."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from airflow.sdk import Context

from steptime.airflow.base import CancelsJobOnKill, airflow_errors, task_key
from steptime.airflow.connections import airflow_connection
from steptime.airflow.triggers import TrainingTrigger
from steptime.airflow.versions import AirflowFailException, TaskDeferred
from steptime.clusters.base import Cluster, Job, JobState, JobStatus
from steptime.clusters.config import load_cluster
from steptime.errors import OutOfReach, SystemFailure, UserError
from steptime.runs.conclusion import (
    FailureReport,
    failed_end,
    find_causes,
    unknown_end,
    with_failed_nodes,
)
from steptime.runs.launch import GpuLimitReached, add_resubmission, may_resubmit, submit
from steptime.runs.patience import retry_while_unreachable
from steptime.store.ledger import Ledger, LedgerJob

_JUST_SUBMITTED_S = 60
"""A job younger than this is not polled before the task defers: it can hardly have ended."""


class TrainingSensor(CancelsJobOnKill):
    """Waits until a training job has ended, and fails if the training failed.

    It waits in the triggerer, holding no worker slot; the cluster is polled once per `poll_interval_s` for
    all waiting tasks together. The job is the latest one that the job ledger has for this mapped task
    instance. A job that failed through the cluster's fault is resubmitted, as often as `resubmissions` in the
    cluster's file allows.

    The task's log shows the job's states, why it queues, and the training's steps as they come. Failing or
    deleting the task cancels the job. Clearing it does not: the next try waits for the same job.
    Restarting the worker, triggerer or scheduler does not cancel it either, nor does losing contact with the
    cluster. How long the task waits is limited by the run and the cluster's file: see `WaitLimits`.

    :param submitted: what `SubmitTrainingOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("submitted",)
    ui_color: str = "#d9e7f5"

    def __init__(self, *, submitted: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.submitted = submitted

    @property
    def cell(self) -> str:
        """The run's name; empty without a job, or while the store does not answer."""
        if not self.submitted:
            return ""
        try:
            job = asyncio.run(Ledger(self.log.warning, patience_s=0).find(self.submitted["job"]))
        except SystemFailure:  # only the task's label needs it here
            return ""
        return "" if job is None else job.run.name

    def execute(self, context: Context) -> Any:
        """Wait for the job to end. Returns its handle; fails if it did not succeed."""
        job = asyncio.run(self.ledger.latest_job(task_key(context)))
        if job is None:
            raise AirflowFailException("no job was submitted for this run: clear 'submit'")
        if job.job is None and job.ended_at is not None:
            raise AirflowFailException(f"job '{job.name}' never reached its cluster: it was {job.reason}")
        if job.abandoned:
            self._mark_abandoned(job, abandoned=False)
        if job.state is JobState.SUCCEEDED:
            return self._succeeded(job)
        return self._wait_for(job, context)

    def _wait_for(self, job: LedgerJob, context: Context) -> Any:
        """Wait for a job, and submit it first if its cluster does not have it yet."""
        with airflow_errors():
            try:
                job, status = asyncio.run(self._attach(job, context))
            except GpuLimitReached as full:
                self.wait_for_gpus(full)
            except OutOfReach as away:
                self._abandon(job, away)
        self.log.info("waiting for job %s (id %s) on cluster '%s'", job.name, job.job_id, job.cluster)
        self.log.info("its log: %s", job.log_path)
        self.guard(job, context)
        if status is not None:
            return self._ended(job, status, context)
        trigger = TrainingTrigger(cluster=job.cluster, job=job.name)
        raise TaskDeferred(trigger=trigger, method_name="execute_complete")

    async def _attach(self, job: LedgerJob, context: Context) -> tuple[LedgerJob, JobStatus | None]:
        """Submit the job if its cluster does not have it yet; return it, and its status if it has ended.

        A job submitted less than `_JUST_SUBMITTED_S` ago is returned as it is.
        """
        config = load_cluster(job.cluster)

        async def attach(cluster: Cluster) -> tuple[LedgerJob, JobStatus | None]:
            there = await submit(cluster, config, job, self.ledger, self.reporter(context))
            status = (await cluster.poll([job.name]))[job.name]
            is_over = not status.state.is_live and status.state is not JobState.UNKNOWN
            return there, status if is_over else None

        if job.submitted_at is not None and time.time() - job.submitted_at < _JUST_SUBMITTED_S:
            return job, None
        try:
            return await self.submit_with_retries(config, attach)
        except UserError as refused:  # for example, it needs all the nodes that there are
            avoiding = f" on nodes other than {', '.join(job.excluded_nodes)}" if job.excluded_nodes else ""
            raise UserError(f"the run cannot be resubmitted{avoiding}: {refused}") from None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Handle the trigger's event: return the job's handle, or fail with the cause.

        An event about another job than the latest is ignored: on SQLite, Airflow may reuse the id of a
        trigger that is still running.
        """
        job = asyncio.run(self.ledger.latest_job(task_key(context)))
        if job is None or job.name != event["job"]:
            self.log.info(
                "job %s has been replaced by a newer job: still waiting for the newer one", event["job"]
            )
            return self.execute(context)
        if "overdue" in event:
            raise AirflowFailException(event["overdue"])
        if "out_of_reach" in event:
            self._abandon(job, event["out_of_reach"])
        return self._ended(job, JobStatus.model_validate(event["status"]), context)

    def _ended(self, job: LedgerJob, status: JobStatus, context: Context) -> Any:
        """Record how a job ended, and return its handle if it succeeded.

        If the cluster caused the failure, resubmit the job and wait for the new one; otherwise raise
        AirflowFailException.
        """
        failure = None
        if status.state is JobState.FAILED and not status.failed_nodes:  # the log may name them
            failure = self._find_causes(job)
            status = with_failed_nodes(status, failure)
        asyncio.run(self.ledger.store_status(job.name, status, time.time()))
        config = load_cluster(job.cluster)
        if may_resubmit(job, status, config):

            async def resubmit(cluster: Cluster) -> LedgerJob:
                return await add_resubmission(
                    cluster, config, job, status, self.ledger, warn=self.log.warning
                )

            with airflow_errors():
                try:
                    again = asyncio.run(
                        retry_while_unreachable(config, airflow_connection, resubmit, self.log.warning)
                    )
                except OutOfReach as away:
                    self._abandon(job, away)
            return self._wait_for(again, context)
        if status.state is JobState.SUCCEEDED:
            return self._succeeded(job)
        if status.state is JobState.UNKNOWN:
            raise AirflowFailException(unknown_end(_on_cluster(job), status))
        failure = failure or self._find_causes(job)
        self.log.error("the last lines of %s:\n%s", job.log_path, failure.last_lines)
        raise AirflowFailException(failed_end(_on_cluster(job), status, failure.causes))

    def _succeeded(self, job: LedgerJob) -> dict[str, str]:
        self.log.info("job %s has succeeded", job.name)
        return {"cluster": job.cluster, "job": job.name}

    def _find_causes(self, job: LedgerJob) -> FailureReport:
        with airflow_errors():
            return asyncio.run(
                find_causes(_on_cluster(job), airflow_connection, step_line=job.run.recipe.step_line)
            )

    def _abandon(self, job: LedgerJob, why: OutOfReach | str) -> NoReturn:
        """Fail the task, leave the job running, and note in the ledger that it is abandoned."""
        self._mark_abandoned(job, abandoned=True)
        raise AirflowFailException(
            f"{why}. Job '{job.name}' was not cancelled. When the cluster is back, clear this task to wait "
            "for the job again; the log of 'end' says how to cancel it by hand."
        )

    def _mark_abandoned(self, job: LedgerJob, *, abandoned: bool) -> None:
        asyncio.run(self.ledger.mark_abandoned(job.name, abandoned=abandoned))


def _on_cluster(job: LedgerJob) -> Job:
    """Return the submitted job. Raises SystemFailure if no submission is recorded."""
    if job.job is None:
        raise SystemFailure(
            f"it is not recorded whether job '{job.name}' was submitted: clear 'submit' to end it and "
            "start a new one"
        )
    return job.job
