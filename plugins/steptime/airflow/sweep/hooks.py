"""What Airflow itself calls about the cells of a sweep: to give them pool slots, and to end their runs.

Both are called inside a transaction of Airflow's scheduler or API server. They use its session, open none and
commit nothing; of tasks that are no cell's they ask nothing.
"""

import logging
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl as listens
from airflow.policies import hookimpl as is_policy

from steptime.airflow.sweep.runs import (
    CHECK_TASK,
    RUN_OPERATOR,
    RUN_TASK,
    SLOTS_KEY,
    STARTED_RUN_KEY,
    STOP_RUNS_PARAM,
    Slots,
    StartedRun,
    StopRuns,
)

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import TaskInstanceState
    from sqlalchemy.orm import Session

_log = logging.getLogger(__name__)


@is_policy
def task_instance_mutation_hook(task_instance: "TaskInstance", dag_run: "DagRun | None") -> None:
    """Give a cell its slots of its cluster's pool, whenever Airflow makes or clears its `run`.

    Pool and slots belong to a task, and its mapped instances share them. A DAG that sets them has a task for
    each cluster and number of GPUs, and which there are follows from files that people edit while sweeps run.
    """
    if dag_run is None or task_instance.operator != RUN_OPERATOR or task_instance.map_index < 0:
        return
    try:
        checked = _xcom(dag_run, CHECK_TASK, -1, SLOTS_KEY)
        slots = Slots.model_validate(checked[task_instance.map_index])
    except Exception:  # it would stop Airflow's scheduler; the cell runs in the default pool instead
        _log.exception("no pool slots for cell %d of %s", task_instance.map_index, dag_run)
        return
    task_instance.pool = slots.pool
    task_instance.pool_slots = slots.number
    # The largest first: small ones always find room, and would keep them waiting.
    task_instance.priority_weight = slots.number


@listens
def on_task_instance_failed(
    previous_state: "TaskInstanceState | None", task_instance: "TaskInstance"
) -> None:
    """Where a person marked a cell's `run`, or the whole sweep, as failed: mark the run that it started, too.

    Airflow's API server calls this, without a previous state, for each task that waited then. What fails by
    itself has one: no lost heartbeat, restart or time limit of Airflow's ends a training. The run's own tasks
    end its jobs.
    """
    if previous_state is not None or getattr(task_instance, "operator", None) != RUN_OPERATOR:
        return
    sweep = task_instance.dag_run
    if (sweep.conf or {}).get(STOP_RUNS_PARAM) == StopRuns.NEVER:
        return
    told = _xcom(sweep, RUN_TASK, task_instance.map_index, STARTED_RUN_KEY)
    if told is not None:
        _mark_failed(StartedRun.model_validate(told), _session(sweep))


def _mark_failed(started: StartedRun, session: "Session") -> None:
    """What the button *Mark as failed* of a DAG run does; nothing where the run has ended or was deleted."""
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
    _log.info("marked run %s of %s as failed, as the sweep's task was", run.run_id, run.dag_id)


def _xcom(dag_run: "DagRun", task_id: str, map_index: int, key: str) -> Any:
    """What a task of the DAG run has left under a key; None where it has not."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    session = _session(dag_run)
    query = select(XComModel.value).where(
        XComModel.dag_id == dag_run.dag_id,
        XComModel.run_id == dag_run.run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == key,
    )
    with session.no_autoflush:
        return session.scalar(query)


def _session(dag_run: "DagRun") -> "Session":
    """Airflow's, that the DAG run came from."""
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        raise RuntimeError(f"Airflow hands over {dag_run} without its session")
    return session
