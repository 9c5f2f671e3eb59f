"""What Airflow itself calls about the tasks of a sweep, to end the runs that they have started.

It is called inside a transaction of Airflow's API server. It uses that session, opens none and commits
nothing, and queries nothing for other tasks.
"""

import logging
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl as listens

from steptime.airflow.rows import session_of, xcom_of
from steptime.airflow.sweep.runs import (
    RUN_OPERATOR,
    STARTED_RUN_KEY,
    STOP_RUNS_PARAM,
    StartedRun,
    StopRuns,
)

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import TaskInstanceState
    from sqlalchemy.orm import Session

_log = logging.getLogger(__name__)


@listens
def on_task_instance_failed(
    previous_state: "TaskInstanceState | None", task_instance: "TaskInstance"
) -> None:
    """Mark the run as failed that a cell started, if a person failed that cell's `run` or the whole sweep.

    Airflow's API server calls this, without a previous state, for each task that waited then. A task that
    fails by itself has a previous state: so no lost heartbeat, restart or time limit of Airflow's ends a
    training. The run's own tasks end its jobs.
    """
    if previous_state is not None or getattr(task_instance, "operator", None) != RUN_OPERATOR:
        return
    dag_run = task_instance.dag_run
    if (dag_run.conf or {}).get(STOP_RUNS_PARAM) == StopRuns.NEVER:
        return
    started = xcom_of(dag_run, task_instance.task_id, task_instance.map_index, STARTED_RUN_KEY)
    if started is not None:
        _mark_failed(StartedRun.model_validate(started), session_of(dag_run))


def _mark_failed(started: StartedRun, session: "Session") -> None:
    """What the button *Mark as failed* of a DAG run does; nothing if the run has ended or was deleted."""
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.utils.state import State

    run = DagRun.find_duplicate(started.dag_id, started.run_id, session=session)
    if run is None or run.state in State.finished_dr_states:
        return
    dag = DBDagBag(load_op_links=False).get_dag_for_run(dag_run=run, session=session)
    if dag is None:
        raise RuntimeError(f"Airflow has no DAG of {run}")
    set_dag_run_state_to_failed(dag=dag, run_id=run.run_id, commit=True, session=session)
    _log.info("marked run %s of %s as failed, as the task that started it was", run.run_id, run.dag_id)
