"""Airflow asked about its own tasks, in tasks and in triggers."""

from airflow.sdk.types import RuntimeTaskInstanceProtocol

DELETED = "deleted"


def state_of(ti: RuntimeTaskInstanceProtocol) -> str | None:
    """Return a task instance's state: None before it begins and once it is cleared, or DELETED.

    For tasks and for triggers. Raises AirflowRuntimeError if Airflow does not answer.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
    return next(iter(states.get(ti.run_id, {}).values()), DELETED)
