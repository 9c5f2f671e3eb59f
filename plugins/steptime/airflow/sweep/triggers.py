"""The trigger that waits for another DAG run."""

import asyncio

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from steptime.airflow.base import WaitingTrigger
from steptime.airflow.states import LIVE, state_of_dag_run


class DagRunTrigger(WaitingTrigger):
    """Waits until a DAG run has ended or was deleted; then its task succeeds, here and now.

    The task is resumed only if Airflow does not answer, with `{"error": "one sentence"}`.

    :param dag_id: its DAG.
    :param run_id: its id.
    :param poll_interval_s: seconds between two looks.
    """

    def __init__(self, *, dag_id: str, run_id: str, poll_interval_s: float) -> None:
        super().__init__(dag_id=dag_id, run_id=run_id, poll_interval_s=poll_interval_s)
        self.dag_id = dag_id
        self.run_id = run_id
        self.poll_interval_s = poll_interval_s

    async def event(self) -> TriggerEvent:
        """Wait for the end of the run; its states are in the task's log."""
        logged: str | None = ""
        while True:
            try:
                state = await sync_to_async(state_of_dag_run)(self.dag_id, self.run_id)
            except AirflowRuntimeError as error:
                return TriggerEvent({"error": str(error)})  # type: ignore[no-untyped-call]
            if state != logged:
                self.log.info("run %s of %s: %s", self.run_id, self.dag_id, state or "deleted")
                logged = state
            if state not in LIVE:
                return TaskSuccessEvent()
            await asyncio.sleep(self.poll_interval_s)
