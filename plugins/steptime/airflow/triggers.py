"""The trigger that waits for a training job in Airflow's triggerer, holding no worker slot."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from airflow.triggers.base import TriggerEvent

from steptime.airflow.base import WaitingTrigger, as_json, cancel, is_taken_away
from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import require_own
from steptime.clusters.base import Job
from steptime.errors import OutOfReach, Overdue, SystemFailure, UserError
from steptime.recipes.models import Run
from steptime.tracking.following import WaitLimits, follow

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol


class TrainingTrigger(WaitingTrigger):
    """Fires once, when the job has ended or a limit has; the task's log shows its progress.

    The event's payload is `{"job": …, "status": …}` (`Job` and `JobStatus` as JSON), or one sentence in
    place of the status: `overdue` if the job took too long, `out_of_reach` if the cluster was.

    Marking the task failed, clearing or deleting it cancels the job (`on_kill`). A restart of the triggerer,
    or another triggerer that takes over, does not: the trigger starts there and finds the job by its name.

    :param run: the planned run, a `Run` as JSON.
    :param job: the submitted job, a `Job` as JSON.
    :param patience_s: these three are the fields of `WaitLimits`.
    """

    def __init__(
        self,
        *,
        run: dict[str, Any],
        job: dict[str, Any],
        patience_s: float,
        queue_s: float | None = None,
        run_s: float | None = None,
    ) -> None:
        self.limits = WaitLimits(patience_s=patience_s, queue_s=queue_s, run_s=run_s)
        super().__init__(run=run, job=job, **self.limits.model_dump())
        self.run_json = run
        self.job_json = job

    async def event(self) -> TriggerEvent:
        """Wait for the end of the job."""
        return TriggerEvent(await self.news())  # type: ignore[no-untyped-call]

    async def news(self) -> dict[str, Any]:
        """Return the payload of the event, once there is one."""
        job, run = Job.model_validate(self.job_json), Run.model_validate(self.run_json)
        try:
            ended = await follow(
                run,
                job,
                self.limits,
                airflow_connection,
                info=self.log.info,
                warn=self.log.warning,
            )
        except Overdue as overdue:
            return {"job": self.job_json, "overdue": str(overdue)}
        except OutOfReach as away:
            return {"job": self.job_json, "out_of_reach": str(away)}
        return {"job": self.job_json, "status": as_json(ended)}

    async def on_kill(self) -> None:
        """End the job if somebody failed, cleared or deleted the task: nobody waits for it any more.

        Airflow also calls this if another triggerer has taken the trigger over, and it cancels the call
        every second until it has returned, so that a task of its own has to do the work.
        """
        ending = asyncio.create_task(self._end_if_taken_away())
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(ending)

    async def _end_if_taken_away(self) -> None:
        job = Job.model_validate(self.job_json)
        instance = cast("RuntimeTaskInstanceProtocol", self.task_instance)
        if await asyncio.to_thread(is_taken_away, instance, job.name, self.log.info):
            try:
                await asyncio.to_thread(require_own, job)
            except (UserError, SystemFailure) as error:
                self.log.warning("job %s is not ended: %s", job.name, error)
                return
            await cancel(job.cluster, job.name)
            self.log.info("job %s is cancelled", job.name)
