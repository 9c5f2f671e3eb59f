"""Airflow asked about its own tasks and DAG runs, in tasks and in triggers."""

from airflow.sdk import DagRunState
from airflow.sdk.types import RuntimeTaskInstanceProtocol

LIVE, ENDED = ("queued", "running"), ("success", "failed")
"""The states of a DAG run."""

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


def state_of_dag_run(dag_id: str, run_id: str) -> str | None:
    """Return `queued`, `running`, `success` or `failed`, or None for no such run. For tasks and triggers."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if not RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id]):
        return None
    return DagRunState(RuntimeTaskInstance.get_dagrun_state(dag_id, run_id)).value
