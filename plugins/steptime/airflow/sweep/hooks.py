"""What Airflow itself calls about tasks that hold slots of a pool: to give them these, and to end their runs.

For the first task of a DAG the list of pools is left in its state store.

Both are called inside a transaction of Airflow's scheduler or API server. They use its session, open none and
commit nothing, and query nothing for other tasks.
"""

import json
import logging
from typing import TYPE_CHECKING

from airflow import settings
from airflow.listeners import hookimpl as listens
from airflow.policies import hookimpl as is_policy

from steptime.airflow.rows import session_of, xcom_of
from steptime.airflow.slots.names import (
    ASK_OPERATOR,
    CHECK_OPERATORS,
    HOLD_OPERATOR,
    POOLS_KEY,
    STARTED_RUN_KEY,
    Asked,
    Pool,
    Slots,
    StartedRun,
)
from steptime.airflow.sweep.runs import (
    PLANNED_IN,
    RUN_OPERATOR,
    SLOTS_KEY,
    STOP_RUNS_PARAM,
    StopRuns,
)

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import TaskInstanceState
    from sqlalchemy.orm import Session

_log = logging.getLogger(__name__)

# For tasks that are not mapped Airflow 3.3.2 ignores policies that come from an entry point:
# it looks for some only if it has found an airflow_local_settings.
settings.task_instance_mutation_hook.is_noop = False  # type: ignore[attr-defined]


@is_policy
def task_instance_mutation_hook(task_instance: "TaskInstance", dag_run: "DagRun | None") -> None:
    """Give a cell, or a holder, its slots of a pool, whenever Airflow makes or clears the task.

    In a DAG, pool and slots belong to a task, and its mapped instances share them. A DAG that sets them would
    need a task for each cluster and number of GPUs, which depend on files that people edit while sweeps run.
    """
    if dag_run is None:
        return
    try:
        if task_instance.operator in CHECK_OPERATORS:
            _leave_pools(task_instance, dag_run)
        slots = _slots_of(task_instance, dag_run)
    except Exception:  # it would stop Airflow's scheduler; the task runs in the default pool instead
        _log.exception(
            "no pool slots for %s %d of %s", task_instance.task_id, task_instance.map_index, dag_run
        )
        return
    if slots is None:
        return
    task_instance.pool = slots.pool
    task_instance.pool_slots = slots.number
    # The largest first: small ones always find room, and would keep them waiting.
    task_instance.priority_weight = slots.number


def _slots_of(task_instance: "TaskInstance", dag_run: "DagRun") -> Slots | None:
    """What a task takes of a pool; None for the tasks that take nothing."""
    if task_instance.operator == HOLD_OPERATOR:
        return Asked.model_validate(dag_run.conf)
    if task_instance.operator == RUN_OPERATOR and task_instance.map_index >= 0:
        planned = xcom_of(dag_run, PLANNED_IN[task_instance.task_id], -1, SLOTS_KEY)
        return Slots.model_validate(planned[task_instance.map_index])
    return None


def _leave_pools(task_instance: "TaskInstance", dag_run: "DagRun") -> None:
    """Leave the pools where the task finds them: tasks have no way to ask Airflow for pools."""
    from airflow._shared.state import TaskScope
    from airflow.models.pool import Pool as AirflowPool
    from airflow.state import get_state_backend
    from sqlalchemy import select

    session = session_of(dag_run)
    with session.no_autoflush:
        found = [
            Pool(name=pool.pool, slots=pool.slots, include_deferred=pool.include_deferred).model_dump()
            for pool in session.scalars(select(AirflowPool))
        ]
        scope = TaskScope(dag_id=dag_run.dag_id, run_id=dag_run.run_id, task_id=task_instance.task_id)
        get_state_backend().set(scope, POOLS_KEY, json.dumps(found), session=session)


@listens
def on_task_instance_failed(
    previous_state: "TaskInstanceState | None", task_instance: "TaskInstance"
) -> None:
    """Mark the run as failed that a cell started, if a person failed that cell's `run` or the whole sweep.

    The same happens if somebody fails a run that asks for slots: else its holder would stay in the queue.

    Airflow's API server calls this, without a previous state, for each task that waited then. A task that
    fails by itself has a previous state: so no lost heartbeat, restart or time limit of Airflow's ends a
    training. The run's own tasks end its jobs.
    """
    operator = getattr(task_instance, "operator", None)
    if previous_state is not None or operator not in (RUN_OPERATOR, ASK_OPERATOR):
        return
    dag_run = task_instance.dag_run
    if operator == RUN_OPERATOR and (dag_run.conf or {}).get(STOP_RUNS_PARAM) == StopRuns.NEVER:
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
