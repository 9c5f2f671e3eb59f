"""The sensor that waits for a training job: deferred to the triggerer, or poking in the worker."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn, cast

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from steptime.airflow.base import HoldsJob, RunOperator, Submission, airflow_errors, as_json
from steptime.airflow.connections import open_cluster
from steptime.airflow.following import JobFollower
from steptime.airflow.fresh_jobs import latest_job, replace_job
from steptime.airflow.triggers import TrainingTrigger
from steptime.clusters.base import Job, JobState, JobStatus
from steptime.errors import UserError
from steptime.recipes.models import Run

SUBMISSION_KEY = "submission"
"""XCom of the submission, handed on before waiting begins: a sensor that fails returns nothing."""

_TAIL_BYTES = 4096
_TAIL_LINES = 20


class TrainingSensor(RunOperator, HoldsJob, BaseSensorOperator):
    """Waits until a training job has ended; returns its status, and fails where the training failed.

    Where the cluster failed it, a fresh job takes its place, as often as the cluster's `fresh_jobs` says.

    The task's log tells the job's states, why it queues, and the training's steps as they come. Failing,
    clearing or deleting the task cancels the job; restarting worker, triggerer or scheduler does not.

    :param submission: what `SubmitTrainingOperator` returned. (templated)
    :param deferrable: wait in the triggerer, holding no worker slot, with one look at the cluster per its
        `poll_interval_s` for all waiting tasks; otherwise poke in the worker.
    :param poke_interval: seconds between two looks where the worker waits.
    :param patience: how long the cluster may be out of reach before waiting fails (and is retried).
    """

    template_fields: Sequence[str] = ("submission",)
    ui_color: str = "#d9e7f5"

    def __init__(
        self,
        *,
        submission: Any,
        deferrable: bool = True,
        poke_interval: timedelta | float = 5,
        patience: timedelta = timedelta(minutes=10),
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.submission = submission
        self.deferrable = deferrable
        self.patience_s = patience.total_seconds()
        self._follower: JobFollower | None = None
        self._waited_for: Submission | None = None

    def planned_run(self) -> Run:
        """The run whose job is waited for."""
        return Submission.model_validate(self.submission).run

    def execute(self, context: Context) -> Any:
        """Wait for the job. Returns its `JobStatus` as JSON."""
        with airflow_errors():
            submission = asyncio.run(latest_job(self, Submission.model_validate(self.submission), context))
        self._wait_for(submission, context)
        if self.deferrable:
            self._defer(submission)
        return super().execute(context)

    def _wait_for(self, submission: Submission, context: Context) -> None:
        """From now on this task, and those behind it, are about this job."""
        job = submission.job
        self.log.info("waiting for job %s (id %s) on cluster '%s'", job.name, job.job_id, job.cluster)
        self.log.info("its log: %s", job.log_path)
        context["ti"].xcom_push(SUBMISSION_KEY, as_json(submission))
        self.hold(job.cluster, job.name, context)
        self._waited_for, self._follower = submission, None

    def _defer(self, submission: Submission) -> NoReturn:
        raise TaskDeferred(
            trigger=TrainingTrigger(
                run=as_json(submission.run),
                job=as_json(submission.job),
                patience_s=self.patience_s,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take over from the trigger: return the job's status, or fail with one sentence that says why.

        Where the cluster failed the job, a fresh one is submitted, and the trigger waits for that. News of a
        job from before this task was cleared is passed over: on SQLite Airflow gives the id of a trigger away
        again while the old one still runs.
        """
        job = Job.model_validate(event["job"])
        if job.submitted_at < Submission.model_validate(self.submission).job.submitted_at:
            self.log.info("job %s was before this task was cleared: waiting on", job.name)
            return cast("dict[str, Any]", self.execute(context))
        if "error" in event:
            raise AirflowException(str(event["error"]))
        status = JobStatus.model_validate(event["status"])
        if (fresh := self._replaced(job, status, context)) is not None:
            self._defer(fresh)
        return self._conclude(job, status)

    def poke(self, context: Context) -> PokeReturnValue | bool:
        """Look at the job once, from the worker."""
        waited_for = self._waited_for or Submission.model_validate(self.submission)
        with airflow_errors():
            status = asyncio.run(self._look(waited_for))
        if status is None or self._replaced(waited_for.job, status, context) is not None:
            return False
        return PokeReturnValue(is_done=True, xcom_value=self._conclude(waited_for.job, status))

    def _replaced(self, job: Job, status: JobStatus, context: Context) -> Submission | None:
        """The fresh job that is waited for instead; None where there is to be none."""
        if status.state is not JobState.FAILED or not status.cluster_fault:
            return None
        with airflow_errors():
            submission = Submission.model_validate(self.submission)
            fresh = asyncio.run(replace_job(self, submission, job, status, context))
        if fresh is not None:
            self._wait_for(fresh, context)
        return fresh

    async def _look(self, submission: Submission) -> JobStatus | None:
        job = submission.job
        if self._follower is None:
            self._follower = JobFollower(
                submission.run, job, say=self.log.info, warn=self.log.warning, patience_s=self.patience_s
            )
        try:
            async with open_cluster(job.cluster) as cluster:
                status = (await cluster.poll([job.name]))[job.name]
                return await self._follower.observe(cluster, status)
        except Exception as error:  # told in the log, and raised once the cluster was silent for too long
            self._follower.missed(error)
            return None

    def _conclude(self, job: Job, status: JobStatus) -> dict[str, Any]:
        if status.state is JobState.SUCCEEDED:
            return as_json(status)
        if status.state is JobState.UNKNOWN:
            # A retry asks again: the accounting of a cluster may only have been late.
            raise AirflowException(
                f"the cluster '{job.cluster}' does not know job '{job.name}' any more: whether it succeeded "
                f"cannot be told (log: {job.log_path})"
            )
        with airflow_errors():
            causes, tail = asyncio.run(_why(job))
        self.log.error("the last lines of %s:\n%s", job.log_path, tail)
        exit_code = "" if status.exit_code is None else f", exit code {status.exit_code}"
        reason = f" ({status.reason})" if status.reason else ""
        raise AirflowFailException(
            f"job '{job.name}' {_HOW_IT_ENDED[status.state]}{reason}{exit_code}"
            f"{': ' + causes if causes else ''}; its log: {job.log_path}"
        )


_HOW_IT_ENDED = {
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMED_OUT: "ran into its time limit",
}


async def _why(job: Job) -> tuple[str, str]:
    """What the log says of a failure: its causes in a sentence, and its last lines."""
    from steptime.clusters.collecting import collect_log
    from steptime.logs.reader import read_log

    try:
        async with open_cluster(job.cluster) as cluster:
            path = await collect_log(cluster, job)
        log = read_log(path)
    except UserError as error:  # a job that was ended before it began has no log
        return "", str(error)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read().decode(errors="replace").replace("\r", "\n").splitlines()[-_TAIL_LINES:]
    return "; ".join(problem.message for problem in log.problems if problem.fatal), "\n".join(tail)
