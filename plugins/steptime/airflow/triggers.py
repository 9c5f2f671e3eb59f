"""The triggers that wait in Airflow's triggerer, holding no worker slot: for GPUs, and for a job's end."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

from airflow.sdk.types import RuntimeTaskInstanceProtocol
from airflow.triggers.base import BaseTrigger, TriggerEvent

from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import require_own
from steptime.airflow.task_state import cancel, task_is_over
from steptime.airflow.xcom import as_json
from steptime.clusters.config import load_cluster
from steptime.errors import OutOfReach, Overdue, SystemFailure, UserError
from steptime.runs import launch
from steptime.runs.following import follow, wait_limits
from steptime.store.ledger import Ledger

SETTLING_S = 8.0
"""Minimum age of a trigger when it fires, in seconds. If it fires while the worker that deferred the task
is still ending, Airflow can take the task for killed and fail it."""


class WaitingTrigger(BaseTrigger):
    """A trigger that fires once, with the result of its method `event`.

    Subclasses pass the arguments of their own constructor as `arguments`, so that Airflow can serialize the
    trigger. They ignore arguments that they do not know: tasks that waited during an upgrade or a rollback
    have stored those of another version, and Airflow fails a task whose trigger cannot be made.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments = arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which a triggerer can recreate this trigger."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event once it has happened; Airflow calls this."""
        made_at = time.monotonic()
        event = await self.event()
        await asyncio.sleep(max(0.0, made_at + SETTLING_S - time.monotonic()))
        yield event

    @abstractmethod
    async def event(self) -> TriggerEvent:
        """Wait until the task can go on; return the event that it is resumed with."""


class GpuLimitTrigger(WaitingTrigger):
    """Fires once a job fits into the GPU limit of its cluster, or need not be submitted any more.

    :param job: the job's name in the job ledger (the table `jobs`).
    """

    def __init__(self, *, job: str, **_of_another_version: Any) -> None:
        super().__init__(job=job)
        self.job = job

    async def event(self) -> TriggerEvent:
        """Wait until there is room or the job is no longer needed; return an event with the job's name."""
        await launch.wait_for_gpus(self.job, Ledger(self.log.warning), self.log.info)
        return TriggerEvent({"job": self.job})  # type: ignore[no-untyped-call]


class TrainingTrigger(WaitingTrigger):
    """Fires when the job has ended or a limit is exceeded; the task's log shows its progress.

    The event's payload is `{"job": …, "status": …}`, the job's name and its `JobStatus` as JSON. Instead of
    `status` it has `overdue` if the job took too long, or `out_of_reach` if the cluster did not answer for
    too long; either is a sentence.

    Marking the task failed or deleting it cancels the job (`on_kill`). A restart of the triggerer does not,
    nor does a takeover by another triggerer: the trigger starts again there, and finds the job in the ledger.

    :param cluster: the cluster's name.
    :param job: the job's name.
    """

    def __init__(self, *, cluster: str, job: str, **_of_another_version: Any) -> None:
        super().__init__(cluster=cluster, job=job)
        self.cluster = cluster
        self.job = job

    async def event(self) -> TriggerEvent:
        """Wait until the job has ended or a limit is exceeded; return the event.

        Raises SystemFailure if the metrics store does not have the job as submitted.
        """
        return TriggerEvent(await self._wait_for_end())  # type: ignore[no-untyped-call]

    async def _wait_for_end(self) -> dict[str, Any]:
        job = await Ledger(self.log.warning).find(self.job)
        if job is None or job.job is None:
            raise SystemFailure(
                f"the metrics store no longer has job '{self.job}': was the store replaced? Clear "
                "'submit' to start a new job."
            )
        limits = wait_limits(job.run, load_cluster(self.cluster))
        try:
            ended = await follow(
                job.run,
                job.job,
                limits,
                airflow_connection,
                info=self.log.info,
                warn=self.log.warning,
            )
        except Overdue as overdue:
            return {"job": self.job, "overdue": str(overdue)}
        except OutOfReach as away:
            return {"job": self.job, "out_of_reach": str(away)}
        return {"job": self.job, "status": as_json(ended)}

    async def on_kill(self) -> None:
        """Cancel the job if a person failed or deleted the task.

        Airflow also calls this when another triggerer has taken over the trigger. Airflow cancels this
        coroutine every second until it returns, so the work is done in a separate asyncio task.
        """
        ending = asyncio.create_task(self._cancel_if_task_is_over())
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(ending)

    async def _cancel_if_task_is_over(self) -> None:
        instance = cast(RuntimeTaskInstanceProtocol, self.task_instance)
        if not await asyncio.to_thread(task_is_over, instance, self.job, self.log.info):
            return
        try:
            job = await Ledger(self.log.warning, patience_s=0).find(self.job)
            if job is not None and job.job is not None:
                await asyncio.to_thread(require_own, job.job)
        except (UserError, SystemFailure) as error:
            self.log.warning("job %s is not ended: %s", self.job, error)
            return
        await cancel(self.cluster, self.job)
        self.log.info("job %s is cancelled", self.job)
