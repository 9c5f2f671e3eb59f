"""Airflow asked about its own tasks and DAG runs, in tasks and in triggers."""

from airflow.sdk import DagRunState
from airflow.sdk.types import RuntimeTaskInstanceProtocol

LIVE, ENDED = ("queued", "running"), ("success", "failed")
"""The states of a DAG run."""


def state_of(ti: RuntimeTaskInstanceProtocol, task_id: str) -> str | None:
    """Return the state of a task of the same mapped instance; None before it begins, once cleared or deleted.

    For tasks and for triggers. Raises AirflowRuntimeError if Airflow does not answer.
    """
    return state_of_task(ti.dag_id, ti.run_id, task_id, -1 if ti.map_index is None else ti.map_index)


def state_of_task(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str | None:
    """Return the same for a task of any DAG run."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
    )
    return next(iter(states.get(run_id, {}).values()), None)


def state_of_dag_run(dag_id: str, run_id: str) -> str | None:
    """Return `queued`, `running`, `success` or `failed`, or None for no such run. For tasks and triggers."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if not RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id]):
        return None
    return DagRunState(RuntimeTaskInstance.get_dagrun_state(dag_id, run_id)).value
