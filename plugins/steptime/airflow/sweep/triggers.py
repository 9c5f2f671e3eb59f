"""The trigger that waits for another DAG run."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from steptime.airflow.base import SETTLING_S
from steptime.airflow.states import LIVE, state_of_dag_run


class DagRunTrigger(BaseTrigger):
    """Waits until a DAG run has ended or was deleted; then its task succeeds, here and now.

    Were the task resumed in a worker it would have to queue for its pool slots again, behind runs that take
    them for hours. It is resumed only where Airflow does not answer, with `{"error": "one sentence"}`.

    :param dag_id: its DAG.
    :param run_id: its id.
    :param poll_interval_s: seconds between two looks.
    """

    def __init__(self, *, dag_id: str, run_id: str, poll_interval_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dag_id = dag_id
        self.run_id = run_id
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which any triggerer makes this trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "dag_id": self.dag_id,
            "run_id": self.run_id,
            "poll_interval_s": self.poll_interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the end of the run; its states are in the task's log."""
        await asyncio.sleep(SETTLING_S)
        logged: str | None = ""
        while True:
            try:
                state = await sync_to_async(state_of_dag_run)(self.dag_id, self.run_id)
            except AirflowRuntimeError as error:
                yield TriggerEvent({"error": str(error)})  # type: ignore[no-untyped-call]
                return
            if state != logged:
                self.log.info("run %s of %s: %s", self.run_id, self.dag_id, state or "deleted")
                logged = state
            if state not in LIVE:
                yield TaskSuccessEvent()
                return
            await asyncio.sleep(self.poll_interval_s)
