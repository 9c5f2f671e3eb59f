"""The trigger that waits for a training job in Airflow's triggerer, holding no worker slot."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from airflow.triggers.base import BaseTrigger, TriggerEvent

from steptime.airflow.base import SETTLING_S, as_json, cancel, is_taken_away
from steptime.airflow.following import JobFollower
from steptime.airflow.installation import require_own
from steptime.airflow.watching import watch
from steptime.clusters.base import Job
from steptime.errors import SystemFailure, UserError
from steptime.recipes.models import Run

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol


class TrainingTrigger(BaseTrigger):
    """Fires once, when the job has ended or nothing is heard of it; the task's log tells its progress.

    The event's payload is `{"job": …, "status": …}` (`Job` and `JobStatus` as JSON) or
    `{"job": …, "error": "one sentence"}`.

    Marking the task failed, clearing or deleting it cancels the job (`on_kill`). A restart of the triggerer,
    or another triggerer that takes over, does not: the trigger starts there and finds the job by its name.

    :param run: the planned run, a `Run` as JSON.
    :param job: the submitted job, a `Job` as JSON.
    :param patience_s: seconds without a word from the cluster after which waiting fails.
    """

    def __init__(self, *, run: dict[str, Any], job: dict[str, Any], patience_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_json = run
        self.job_json = job
        self.patience_s = patience_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which any triggerer makes this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "run": self.run_json,
            "job": self.job_json,
            "patience_s": self.patience_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the end of the job."""
        job = Job.model_validate(self.job_json)
        follower = JobFollower(
            Run.model_validate(self.run_json),
            job,
            say=self.log.info,
            warn=self.log.warning,
            patience_s=self.patience_s,
        )
        await asyncio.sleep(SETTLING_S)
        async with watch(job.cluster) as shared:
            while True:
                try:
                    cluster, status = await shared.next_status(job.name)
                    ended = await follower.observe(cluster, status)
                except Exception as error:
                    try:
                        follower.missed(error)
                    except SystemFailure as lost:
                        yield self._event(error=str(lost))
                        return
                    continue
                if ended is not None:
                    yield self._event(status=as_json(ended))
                    return

    async def on_kill(self) -> None:
        """End the job if somebody failed, cleared or deleted the task: nobody waits for it any more.

        Airflow also calls this where another triggerer has taken the trigger over, and it cancels the call
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

    def _event(self, **told: Any) -> TriggerEvent:
        return TriggerEvent({"job": self.job_json, **told})  # type: ignore[no-untyped-call]
