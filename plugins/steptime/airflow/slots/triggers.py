"""The triggers about slots: wait until they are held, and hold them until nobody needs them."""

import asyncio
import time
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from steptime.airflow.base import WaitingTrigger
from steptime.airflow.slots.names import ASK_TASK, HOLD_TASK, SLOTS_DAG, HeldBy
from steptime.airflow.states import LIVE, state_of_dag_run, state_of_task

_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
_POLL_S = 5.0


class NeedTrigger(WaitingTrigger):
    """Waits until a DAG run needs its slots no more; then its task succeeds, here and now.

    An Airflow that does not answer is asked again: slots are never released because of it.

    :param dag_id: the DAG of the run that asked.
    :param run_id: its id.
    """

    def __init__(self, *, dag_id: str, run_id: str) -> None:
        super().__init__(dag_id=dag_id, run_id=run_id)
        self.dag_id = dag_id
        self.run_id = run_id

    async def event(self) -> TriggerEvent:
        """Wait for that."""
        while True:
            try:
                needed = await sync_to_async(is_needed)(self.dag_id, self.run_id)
            except AirflowRuntimeError as error:
                self.log.warning("Airflow gives no state of %s of %s: %s", self.run_id, self.dag_id, error)
                needed = True
            if not needed:
                self.log.info("%s of %s needs its slots no more", self.run_id, self.dag_id)
                return TaskSuccessEvent()
            await asyncio.sleep(_POLL_S)


class GrantTrigger(WaitingTrigger):
    """Waits until somebody holds the slots of a DAG run; then its task succeeds, here and now.

    It is resumed, with `{"ended": "the holder's run id"}`, if the holder has ended before that.

    :param holder: id of the run of `gpu_slots` that is to hold them.
    :param held_by: a `HeldBy` as JSON, of the sweep's task that may hold them instead.
    """

    def __init__(self, *, holder: str, held_by: dict[str, Any] | None = None) -> None:
        super().__init__(holder=holder, held_by=held_by)
        self.holder = holder
        self.held_by = held_by

    async def event(self) -> TriggerEvent:
        """Wait for that: asking every second at first, when slots are free, and less often later."""
        cell = None if self.held_by is None else HeldBy.model_validate(self.held_by)
        began = time.monotonic()
        while True:
            try:
                if await sync_to_async(is_held)(self.holder, cell):
                    self.log.info("the slots are held")
                    return TaskSuccessEvent()
                if await sync_to_async(state_of_dag_run)(SLOTS_DAG, self.holder) not in LIVE:
                    return TriggerEvent({"ended": self.holder})  # type: ignore[no-untyped-call]
            except AirflowRuntimeError as error:
                self.log.warning("Airflow gives no state of %s: %s", self.holder, error)
            await asyncio.sleep(min(_POLL_S, 1 + (time.monotonic() - began) / 10))


def is_needed(dag_id: str, run_id: str) -> bool:
    """Return whether a DAG run goes on that has its slots or asks for them. For tasks and triggers."""
    return (
        state_of_dag_run(dag_id, run_id) in LIVE
        # If somebody has failed the task that asks, nothing will train; a task that has its slots succeeds.
        and state_of_task(dag_id, run_id, ASK_TASK) not in set(_ENDED) - {"success"}
    )


def is_held(holder: str, cell: HeldBy | None) -> bool:
    """Return whether a DAG run has its slots, by its holder or by the sweep's task that started it."""
    return state_of_task(SLOTS_DAG, holder, HOLD_TASK) in ("running", "deferred") or (
        cell is not None and is_held_by(cell)
    )


def is_held_by(cell: HeldBy) -> bool:
    """Return whether the sweep's task goes on; one that is tried again takes its slots again."""
    return state_of_task(cell.dag_id, cell.run_id, cell.task_id, cell.map_index) not in (None, *_ENDED)
