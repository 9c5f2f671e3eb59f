"""Why a DAG run has no results: the first task of it that failed, and the sentence that it left.

For Airflow's API server, whose session it uses.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

FAILURE_KEY = "failure"
"""XCom of a failed task: why it failed, in one sentence."""


def why_without_results(dag_id: str, dag_run_id: str) -> str | None:
    """`ended without results: check_params failed: …`; None if there is no such run, or it goes on."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import State

    with create_session() as session:
        run = DagRun.find_duplicate(dag_id, dag_run_id, session=session)
        if run is None or run.state not in State.finished_dr_states:
            return None
        first = first_failure(dag_id, dag_run_id, session)
    return "ended without results" if first is None else f"ended without results: {first}"


def first_failure(dag_id: str, dag_run_id: str, session: "Session") -> str | None:
    """`check_params failed: …` of the task that failed first; None if none did."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import and_, select

    left = and_(
        XComModel.dag_id == TaskInstance.dag_id,
        XComModel.run_id == TaskInstance.run_id,
        XComModel.task_id == TaskInstance.task_id,
        XComModel.map_index == TaskInstance.map_index,
        XComModel.key == FAILURE_KEY,
    )
    failed = (
        select(TaskInstance.task_id, XComModel.value)
        .outerjoin(XComModel, left)
        .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == dag_run_id)
        .where(TaskInstance.state == TaskInstanceState.FAILED)
        .order_by(TaskInstance.end_date)
        .limit(1)
    )
    with session.no_autoflush:
        first = session.execute(failed).first()
    if first is None:
        return None
    task_id, sentence = first
    return f"{task_id} failed: {sentence or 'its log has the reason'}"
