"""Ends a sweep and the runs that it has started, through Airflow's REST API."""

import time
from collections.abc import Iterator

from steptime.airflow.sweep.runs import PLANNED_IN, STARTED_RUN_KEY, StartedRun
from steptime.errors import SystemFailure, UserError, shown
from steptime.service.rest import AirflowClient, DagRun

SWEEP_TAG = "sweep"
"""Of the DAGs that run sweeps."""
_ENDED_WITHIN_S = 300.0
_POLL_S = 1.0


def find_sweep(client: AirflowClient, run_id: str) -> DagRun:
    """Find the DAG run of a sweep. Raises UserError if there is none of that id."""
    sweep = client.find_dag_run(run_id, tag=SWEEP_TAG)
    if sweep is None:
        raise UserError(
            f"Airflow at {client.url} has no sweep with the run id '{shown(run_id)}': 'steptime sweep run' "
            "prints it, and its page in Airflow shows it."
        )
    return sweep


def live_runs(client: AirflowClient, sweep: DagRun) -> list[DagRun]:
    """Return the DAG runs of its cells that are queued or running."""
    return [run for run in _started_runs(client, sweep) if not run.has_ended]


def cancel_sweep(client: AirflowClient, sweep: DagRun) -> list[DagRun]:
    """Mark a sweep's DAG run and those of its cells as failed; return what it has ended, once it has.

    Their own tasks end their jobs. Raises SystemFailure if something still runs after five minutes.
    """
    marked: dict[str, DagRun] = {}
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while True:
        # The sweep first, so that it starts nothing more; a cell may just be starting its run all the same.
        sweep = client.dag_run(sweep.dag_id, sweep.dag_run_id)
        live = ([] if sweep.has_ended else [sweep]) + live_runs(client, sweep)
        for run in live:
            if run.dag_run_id not in marked:
                client.mark_failed(run)
                marked[run.dag_run_id] = run
        if not live:
            return list(marked.values())
        if time.monotonic() > deadline:
            raise SystemFailure(
                f"{_ENDED_WITHIN_S:.0f} s after they were marked as failed, "
                f"{', '.join(run.dag_run_id for run in live)} have not ended: see "
                f"{client.run_address(live[0].dag_id, live[0].dag_run_id)}"
            )
        time.sleep(_POLL_S)


def _started_runs(client: AirflowClient, sweep: DagRun) -> Iterator[DagRun]:
    for task in client.task_instances(sweep.dag_id, sweep.dag_run_id):
        if task.task_id in PLANNED_IN and task.map_index >= 0:
            pushed = client.xcom(sweep, task, STARTED_RUN_KEY)
            if pushed is not None:
                started = StartedRun.model_validate(pushed)
                run = client.dag_run_if_any(started.dag_id, started.run_id)
                if run is not None:
                    yield run
