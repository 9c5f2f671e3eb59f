"""What Airflow's scheduler and API server hand over to listeners and policies, read in their own session."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session


def xcom_of(dag_run: "DagRun", task_id: str, map_index: int, key: str) -> Any:
    """Return what a task of the DAG run has left under a key, or None if it has not."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    session = session_of(dag_run)
    query = select(XComModel.value).where(
        XComModel.dag_id == dag_run.dag_id,
        XComModel.run_id == dag_run.run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == key,
    )
    with session.no_autoflush:
        return session.scalar(query)


def session_of(dag_run: "DagRun") -> "Session":
    """Return Airflow's session from which the DAG run came."""
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        raise RuntimeError(f"Airflow hands over {dag_run} without its session")
    return session
