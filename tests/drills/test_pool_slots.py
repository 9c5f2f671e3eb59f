"""A cluster's pool bounds all that runs there: what people start and what sweeps start, in a whole Airflow.

The cluster has two GPUs by its file, the Slurm behind it has more: only the pool holds anything back.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.driving import wait_until

from drills.scene import CELL
from drills.site import BOUNDED, BOUNDED_SWEEP, SWEEP_DAG, TRAINING_DAG, Site
from steptime.airflow.slots.names import ASK_TASK, HOLD_TASK, SLOTS_DAG
from steptime.airflow.slots.pools import pool_name, pool_of
from steptime.clusters.config import load_cluster
from steptime.clusters.slurm.states import SQUEUE_FORMAT, read_squeue
from steptime.service.rest import DagRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.slurm,
    pytest.mark.end_to_end,
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
]

GPUS = 2
POOL = pool_name(BOUNDED)


@pytest.fixture(autouse=True)
def _mended(site: Site) -> Iterator[None]:
    site.require_dags()
    yield
    site.restore()


@pytest.fixture
def start(site: Site) -> Callable[..., DagRun]:
    """Starts a run by hand that stops in the middle of its steps."""

    def start(gpus: str = "1") -> DagRun:
        environment = {"STAND_IN_STEP_S": "0.1", **site.gate("training").environment}
        params = {"gpus": gpus, "checkpoint": False, "cluster": BOUNDED, "environment": environment}
        return site.airflow.client.trigger(TRAINING_DAG, params)

    return start


def live_gpus(site: Site) -> int:
    """GPUs of the jobs that squeue has."""
    listed = site.slurm.command(
        "env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", f"--Format={SQUEUE_FORMAT}"
    )
    mine = [job for job in read_squeue(listed) if Path(job.directory).is_relative_to(site.work)]
    return sum(job.in_queue for job in mine)


def states(site: Site, dag_id: str, task_id: str) -> "Counter[str | None]":
    """Of a task in all running DAG runs of a DAG, how often each state."""
    client = site.airflow.client
    runs = [run for run in client.running_dag_runs() if run.dag_id == dag_id]
    tasks = [task for run in runs for task in client.task_instances(run.dag_id, run.dag_run_id)]
    return Counter(
        task.state for task in tasks if task.task_id == task_id and (task_id != CELL or task.map_index >= 0)
    )


def test_a_sweep_and_a_run_by_hand_together_never_exceed_the_pool(
    site: Site, start: Callable[..., DagRun]
) -> None:
    site.gate("training").close()
    by_hand = start()
    sweep = site.airflow.client.trigger(SWEEP_DAG, {"sweep": BOUNDED_SWEEP})

    def all_ask() -> bool:
        """Two of three have their slots, and train; the third has asked."""
        asking = states(site, SLOTS_DAG, HOLD_TASK) + states(site, SWEEP_DAG, CELL)
        return site.gate("training").arrived == GPUS and asking == {"deferred": GPUS, "scheduled": 1}

    wait_until("two that train and one that waits", all_ask, 180)
    assert (live_gpus(site), site.airflow.occupied_slots(POOL)) == (GPUS, GPUS)
    site.gate("training").open()

    seen: list[tuple[int, int]] = []

    def ended() -> bool:
        seen.append((live_gpus(site), site.airflow.occupied_slots(POOL)))
        runs = [site.airflow.client.dag_run(run.dag_id, run.dag_run_id) for run in (by_hand, sweep)]
        return all(run.has_ended for run in runs)

    wait_until("the end of all", ended, 300)
    assert max(jobs for jobs, _ in seen) <= GPUS
    assert max(slots for _, slots in seen) <= GPUS
    assert {site.airflow.ended(run).state for run in (by_hand, sweep)} == {"success"}
    _all_slots_are_free(site)


def test_a_missing_pool_is_refused_before_anything_waits(site: Site, start: Callable[..., DagRun]) -> None:
    site.airflow.delete_pool(POOL)
    try:
        by_hand = start()
        sweep = site.airflow.client.trigger(SWEEP_DAG, {"sweep": BOUNDED_SWEEP})
        told = {_told(site, run, task) for run, task in ((by_hand, "check_params"), (sweep, "check_sweep"))}
    finally:
        config = load_cluster("mini-slurm").model_copy(update={"name": BOUNDED, "gpus": GPUS})
        site.airflow.client.set_pools([pool_of(config).model_dump(mode="json")])
    make = "'steptime sweep pools > pools.json' and there 'airflow pools import pools.json' make it."
    assert told == {f"this Airflow has no pool '{POOL}': {make}"}
    assert live_gpus(site) == 0
    # With the pool made, clearing the refused task is all there is to do.
    site.airflow.clear(by_hand, _task(site, by_hand, "check_params"))
    checked: Callable[[], bool] = lambda: _task(site, by_hand, "check_params").state == "success"  # noqa: E731
    wait_until("params that are not refused", checked, 120)


def test_a_run_that_is_cancelled_while_it_waits_for_slots_leaves_the_queue(
    site: Site, start: Callable[..., DagRun]
) -> None:
    site.gate("training").close()
    first = start(gpus="2")
    wait_until("a training", lambda: site.gate("training").arrived > 0, 120)
    second = start()

    def waits() -> DagRun | None:
        """What waits to hold the slots of the second run."""
        asks = site.airflow.task(second, ASK_TASK)
        holders = [run for run in site.airflow.client.running_dag_runs() if run.dag_id == SLOTS_DAG]
        found = [run for run in holders if _task(site, run, HOLD_TASK).state == "scheduled"]
        return found[0] if found and asks and asks.state == "deferred" else None

    holder = wait_until("a run that waits for slots", waits, 120)
    site.airflow.mark_run_failed(second)

    assert site.airflow.ended(second, 60).state == "failed"
    site.airflow.ended(holder, 60)
    assert _task(site, holder, HOLD_TASK).state in ("failed", "skipped"), "it never had the slots"
    assert (live_gpus(site), site.airflow.occupied_slots(POOL)) == (1, GPUS), "the first one trains on"
    site.gate("training").open()
    assert site.airflow.ended(first, 120).state == "success"
    _all_slots_are_free(site)


def _all_slots_are_free(site: Site) -> None:
    wait_until("free slots", lambda: site.airflow.occupied_slots(POOL) == 0, 60)
    running: Any = lambda: [run for run in site.airflow.client.running_dag_runs() if run.dag_id == SLOTS_DAG]  # noqa: E731
    wait_until("the end of all that hold slots", lambda: not running(), 60)


def _task(site: Site, run: DagRun, task_id: str) -> Any:
    found = site.airflow.task(run, task_id)
    assert found is not None, f"{run.dag_run_id} has no task {task_id}"
    return found


def _told(site: Site, run: DagRun, task_id: str) -> str | None:
    """Why a task has failed, in its DAG run's way to end."""
    assert site.airflow.ended(run, 120).state == "failed"
    lines = site.airflow.client.log(run.dag_id, run.dag_run_id, _task(site, run, task_id))
    return next((line.error for line in lines if line.error), None)
