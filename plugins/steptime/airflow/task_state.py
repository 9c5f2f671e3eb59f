"""Whether a task is over, so that nothing will resume it, and the end of the job that it then leaves."""

import logging
import time
from collections.abc import Callable

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.types import RuntimeTaskInstanceProtocol

from steptime.airflow.connections import airflow_connection
from steptime.clusters.config import load_cluster, open_cluster
from steptime.runs import launch
from steptime.store.ledger import Ledger

_log = logging.getLogger(__name__)

_ASKED_AGAIN_AFTER_S = 0.5
DELETED = "deleted"
"""Stands for the state of a task instance that no longer exists."""
OVER = (DELETED, "success", "failed", "skipped", "removed", "upstream_failed")
"""States of a task that has ended or was deleted. In all others, cleared included, it will go on."""


def task_is_over(ti: RuntimeTaskInstanceProtocol, job_name: str, info: Callable[[str], None]) -> bool:
    """Return whether the task instance has ended or was deleted, so that nothing will resume it.

    Airflow is asked twice, because it also calls `on_kill` when a task only moves to another triggerer or
    worker, or waits for its retry; this call blocks for half a second in between. If Airflow does not answer,
    the result is False, and the teardown `end` ends the job later.

    Args:
        ti: the task instance that `on_kill` was called for.
        job_name: name of the job that the message is about.
        info: gets a line with the result and its reason.
    """
    for moment_s in (0, _ASKED_AGAIN_AFTER_S):
        time.sleep(moment_s)
        try:
            state = _read_state(ti)
        except AirflowRuntimeError as error:
            info(f"Airflow cannot be asked about this task, so job {job_name} keeps running: {error}")
            return False
        if state not in OVER:
            info(f"this task is {state or 'cleared'} and will go on: job {job_name} keeps running for it")
            return False
    info(f"nothing will resume this task ({state}): cancelling job {job_name}")
    return True


def _read_state(ti: RuntimeTaskInstanceProtocol) -> str | None:
    """Return a task instance's state: None if it has not begun or was cleared, DELETED if it is gone.

    It can be called in a task and in a trigger. Raises AirflowRuntimeError if Airflow does not answer.
    """
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
    return next(iter(states.get(ti.run_id, {}).values()), DELETED)


async def cancel(cluster_name: str, job_name: str) -> None:
    """Connect to a cluster, cancel a job, and record that in the ledger."""
    async with open_cluster(load_cluster(cluster_name), airflow_connection) as cluster:
        await launch.end_job(cluster, job_name, Ledger(_log.warning))
