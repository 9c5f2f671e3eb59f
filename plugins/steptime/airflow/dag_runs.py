"""What tasks do with other DAGs: start their runs."""

from http import HTTPStatus
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError


def start_dag_run(
    dag_id: str, run_id: str, conf: dict[str, Any], note: str | None = None, *, clear_existing: bool = False
) -> bool:
    """Start a run of a DAG; return False if Airflow has a run of that id. To be called in a task.

    With `clear_existing` all tasks of such a run are cleared instead, those that wait for jobs included.

    `TriggerDagRunOperator` does the same, but fails if the run exists, waits with a trigger that resumes the
    task, and takes a second to import.
    """
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    request = TriggerDagRun(
        dag_id=dag_id,
        run_id=run_id,
        conf=conf,
        logical_date=None,
        note=note,
        reset_dag_run=clear_existing,
    )
    try:
        answer = SUPERVISOR_COMMS.send(request)
    except AirflowRuntimeError as error:
        raise AirflowException(f"Airflow does not start {dag_id}: {error}") from None
    return not (isinstance(answer, ErrorResponse) and answer.error is ErrorType.DAGRUN_ALREADY_EXISTS)


def is_paused(ti: Any, dag_id: str) -> bool:
    """Return whether the runs of a DAG would wait for ever. To be called in a task.

    Raises AirflowFailException if there is no such DAG.
    """
    try:
        return bool(ti.get_dag(dag_id).is_paused)
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            raise AirflowFailException(
                f"Airflow has no DAG '{dag_id}': put its file among the DAGs, and clear this task"
            ) from None
        raise AirflowException(
            f"Airflow does not answer whether the DAG '{dag_id}' is paused: {error}"
        ) from None
