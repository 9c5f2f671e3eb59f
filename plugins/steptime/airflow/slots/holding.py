"""The operators of the DAG that holds slots: hold them, and hold them again if they were lost."""

from typing import NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from pydantic import ValidationError

from steptime.airflow.dag_runs import start_dag_run
from steptime.airflow.slots.names import SLOTS_DAG, Asked
from steptime.airflow.slots.triggers import NeedTrigger, is_needed


class HoldSlotsOperator(BaseOperator):
    """Holds the slots that Airflow gave it, deferred, until the DAG run that asked for them has ended."""

    ui_color: str = "#f3ece2"

    def execute(self, context: Context) -> NoReturn:
        """Hold. The trigger ends the task: resumed in a worker it would queue for its slots again."""
        asked = asked_for(context)
        self.log.info(
            "holding %d slots of %s for %s of %s", asked.number, asked.pool, asked.run_id, asked.dag_id
        )
        raise TaskDeferred(
            trigger=NeedTrigger(dag_id=asked.dag_id, run_id=asked.run_id), method_name="execute_complete"
        )

    def execute_complete(self, context: Context, event: object) -> NoReturn:  # noqa: ARG002
        """Never called: the trigger has ended the task."""
        raise AirflowException(f"an event that nobody sends: {event}")


class HoldAgainOperator(BaseOperator):
    """Starts another run in this one's place if the slots are still needed, however `hold` ended."""

    ui_color: str = "#eeeeee"

    def execute(self, context: Context) -> None:
        """Look, and start it."""
        asked = asked_for(context)
        if not is_needed(asked.dag_id, asked.run_id):
            self.log.info("%s of %s needs no slots any more", asked.run_id, asked.dag_id)
            return
        name, _, number = context["ti"].run_id.rpartition("__")
        run_id = f"{name}__{int(number) + 1}"
        start_dag_run(SLOTS_DAG, run_id, asked.model_dump(mode="json"))
        self.log.warning(
            "%s of %s goes on, and its %d slots of %s were let go: until %s holds them, another run may take "
            "them, too",
            asked.run_id,
            asked.dag_id,
            asked.number,
            asked.pool,
            run_id,
        )


def asked_for(context: Context) -> Asked:
    """Return what the DAG run was started with. Raises AirflowFailException if a person has started it."""
    try:
        return Asked.model_validate(context["dag_run"].conf or {})
    except ValidationError:
        raise AirflowFailException(
            f"runs of {SLOTS_DAG} are started by the runs that need the slots: start the DAG of a workload"
        ) from None
