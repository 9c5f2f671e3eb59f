"""The sensor that waits for a training job: deferred to the triggerer, or in the worker."""

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk import Context
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import TypeAdapter

from steptime.airflow.base import (
    LEFT_KEY,
    SUBMITTED_KEY,
    HoldsJob,
    RunOperator,
    airflow_errors,
    as_json,
    is_last_try,
)
from steptime.airflow.connections import airflow_connection
from steptime.airflow.resubmissions import latest_job, resubmit
from steptime.airflow.triggers import TrainingTrigger
from steptime.clusters.base import Job, JobState, JobStatus
from steptime.clusters.config import ClusterConfig, load_cluster
from steptime.errors import OutOfReach
from steptime.recipes.models import Run
from steptime.results.models import Submitted
from steptime.tracking.conclusion import (
    FailureReport,
    failed_end,
    find_causes,
    unknown_end,
    with_failed_nodes,
)
from steptime.tracking.following import limits_of

_UNKNOWN_KEY = "unknown"
_ASKED_FOR_UNKNOWN = 3
"""How often a cluster is asked for a job that it does not know; the many tries are for lost workers."""


class TrainingSensor(RunOperator, HoldsJob):
    """Waits until a training job has ended; returns its status, and fails if the training failed.

    A job that the cluster failed is resubmitted, as often as `resubmissions` in the cluster's file allows.

    The task's log shows the job's states, why it queues, and the training's steps as they come. Failing,
    clearing or deleting the task cancels the job; restarting worker, triggerer or scheduler does not, nor
    does a cluster out of reach. The run and the cluster's file limit the time: see `WaitLimits`.

    :param submitted: what `SubmitTrainingOperator` returned. (templated)
    :param deferrable: wait in the triggerer, holding no worker slot, with one look at the cluster per its
        `poll_interval_s` for all waiting tasks; otherwise wait in the worker.
    :param patience_h: hours for which the cluster may be out of reach; None for what is in its file.
    :param queue_patience_h: hours that the job may queue before it is ended; None likewise.
    """

    template_fields: Sequence[str] = ("submitted",)
    ui_color: str = "#d9e7f5"

    def __init__(
        self,
        *,
        submitted: Any,
        deferrable: bool = True,
        patience_h: float | None = None,
        queue_patience_h: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.submitted = submitted
        self.deferrable = deferrable
        self.patience_h = patience_h
        self.queue_patience_h = queue_patience_h

    def planned_run(self) -> Run:
        """Return the run whose job is waited for."""
        return Submitted.model_validate(self.submitted).run

    def execute(self, context: Context) -> Any:
        """Wait for the job. Returns its `JobStatus` as JSON."""
        submitted = Submitted.model_validate(self.submitted)
        with airflow_errors():
            try:
                submitted = asyncio.run(latest_job(self, submitted, context))
            except OutOfReach as away:
                self._leave(submitted.job, away, context)
        return self._wait_for(submitted, context)

    def as_patient(self, config: ClusterConfig) -> ClusterConfig:
        """Return the cluster's configuration with this task's own patience."""
        own = {"patience_h": self.patience_h, "queue_patience_h": self.queue_patience_h}
        return config.model_copy(update={name: hours for name, hours in own.items() if hours is not None})

    def hold(self, cluster: str, job_name: str, context: Context) -> None:
        """Hold the job; in the last try, only clearing or deleting the task ends it from a worker."""
        super().hold(cluster, job_name, context)
        self.may_be_lost = is_last_try(context["ti"])

    def _wait_for(self, submitted: Submitted, context: Context) -> dict[str, Any]:
        """Make this the job that this task, and those after it, are about."""
        job = submitted.job
        self.log.info("waiting for job %s (id %s) on cluster '%s'", job.name, job.job_id, job.cluster)
        self.log.info("its log: %s", job.log_path)
        context["ti"].xcom_push(SUBMITTED_KEY, as_json(submitted))
        self.hold(job.cluster, job.name, context)
        if is_last_try(context["ti"]):
            self.log.warning("this is the last try: should it be lost, job %s is left as it is", job.name)
            context["ti"].xcom_push(LEFT_KEY, job.name)
        with airflow_errors():
            limits = limits_of(submitted.run, self.as_patient(load_cluster(job.cluster)))
        trigger = TrainingTrigger(run=as_json(submitted.run), job=as_json(job), **limits.model_dump())
        if self.deferrable:
            raise TaskDeferred(trigger=trigger, method_name="execute_complete")
        return self.execute_complete(context, asyncio.run(trigger.news()))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take over from the trigger: return the job's status, or fail with a sentence that names the cause.

        A run whose job the cluster failed is resubmitted, and the trigger waits for the new job. An event
        about a job from before this task was cleared is passed over: on SQLite Airflow gives the id of a
        trigger away again while the old one still runs.
        """
        job = Job.model_validate(event["job"])
        if job.submitted_at < Submitted.model_validate(self.submitted).job.submitted_at:
            self.log.info("job %s was before this task was cleared: waiting on", job.name)
            return cast("dict[str, Any]", self.execute(context))
        if "overdue" in event:
            self._leave_nothing(context)
            raise AirflowFailException(event["overdue"])
        if "out_of_reach" in event:
            self._leave(job, event["out_of_reach"], context)
        status = JobStatus.model_validate(event["status"])
        failure = None
        if status.state is JobState.FAILED and not status.failed_nodes:  # the log may name them
            failure = self._find_causes(job)
            status = with_failed_nodes(status, failure)
        if (resubmitted := self._resubmitted(job, status, context)) is not None:
            return self._wait_for(resubmitted, context)
        self._leave_nothing(context)
        return self._conclude(job, status, failure, context)

    def _find_causes(self, job: Job) -> FailureReport:
        with airflow_errors():
            return asyncio.run(find_causes(job, airflow_connection))

    def _resubmitted(self, job: Job, status: JobStatus, context: Context) -> Submitted | None:
        """The run as it was resubmitted; None if that was not due."""
        if status.state is not JobState.FAILED or not status.cluster_fault:
            return None
        submitted = Submitted.model_validate(self.submitted)
        with airflow_errors():
            try:
                return asyncio.run(resubmit(self, submitted, job, status, context))
            except OutOfReach as away:
                self._leave(job, away, context)

    def _leave(self, job: Job, why: OutOfReach | str, context: Context) -> NoReturn:
        """Give up waiting, and leave the job as it is."""
        context["ti"].xcom_push(LEFT_KEY, job.name)
        raise AirflowFailException(
            f"{why}. Nothing was ended: job '{job.name}' runs on if it ran. Clear this task when the cluster "
            "is back, and it goes on with that job; the log of 'end' has how it is ended by hand."
        )

    def _leave_nothing(self, context: Context) -> None:
        """This try was not lost: it decides itself what becomes of the job."""
        if is_last_try(context["ti"]):
            context["ti"].xcom_push(LEFT_KEY, None)

    def _conclude(
        self, job: Job, status: JobStatus, failure: FailureReport | None, context: Context
    ) -> dict[str, Any]:
        if status.state is JobState.SUCCEEDED:
            return as_json(status)
        if status.state is JobState.UNKNOWN:  # a retry asks again: the cluster may know by then
            store = context["task_state_store"]
            before = TypeAdapter(dict[str, int]).validate_python(store.get(_UNKNOWN_KEY) or {})
            asked = before.get(job.name, 0) + 1
            store.set(_UNKNOWN_KEY, {job.name: asked}, retention=NEVER_EXPIRE)
            last = asked >= _ASKED_FOR_UNKNOWN
            raise (AirflowFailException if last else AirflowException)(unknown_end(job, status))
        failure = failure or self._find_causes(job)
        self.log.error("the last lines of %s:\n%s", job.log_path, failure.last_lines)
        raise AirflowFailException(failed_end(job, status, failure.causes))
