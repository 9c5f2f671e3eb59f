"""Clearing the wait of one cell among several: that cell trains again, and no other gets another job.

Airflow clears the `submit` of every mapped cell with it, because it is the setup of what is cleared.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from drills.scene import WAIT
from drills.site import CLUSTER, Site
from end_to_end.driving import wait_until

from steptime.airflow.rest import DagRun
from steptime.clusters.slurm.states import SACCT_FORMAT, JobRecord, read_sacct

pytestmark = [pytest.mark.drill, pytest.mark.slurm, pytest.mark.end_to_end, pytest.mark.timeout(1800)]

CLEARED = 1
"""The cell of two GPUs."""


@pytest.fixture(autouse=True)
def _mended(site: Site) -> Iterator[None]:
    yield
    site.restore()


def jobs_since(site: Site, began: int) -> list[JobRecord]:
    """Every job that the accounting has of this test."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(began))
    options = ["--duplicates", "--allocations", "--noheader", "--parsable2", f"--starttime={since}"]
    listed = site.slurm.command("env", "SLURM_TIME_FORMAT=%s", "sacct", *options, f"--format={SACCT_FORMAT}")
    jobs = [job for job in read_sacct(listed) if Path(job.directory).is_relative_to(site.work)]
    return [job for job in jobs if job.submitted_at >= began]


def jobs_of_cells(jobs: list[JobRecord]) -> Counter[str]:
    """How many jobs each cell has had, by its GPUs: a name is `<experiment>_<gpus>-<digest>-<attempt>`."""
    return Counter(job.name.rsplit("-", 2)[0].rpartition("_")[2] for job in jobs)


@pytest.mark.parametrize("cleared_when", ["it trains", "it has failed", "it has finished"])
def test_only_the_cleared_cell_gets_another_job(site: Site, cleared_when: str) -> None:
    began = int(time.time())
    training = site.gate("training")
    if cleared_when == "it trains":
        training.close()
    environment = {"STAND_IN_STEP_S": "0", **training.environment}
    if cleared_when == "it has failed":
        environment["STAND_IN"] = "out_of_memory"
    params = {"gpus": "1,2", "checkpoint": False, "cluster": CLUSTER, "environment": environment}
    run = site.airflow.client.trigger("llama31", params)
    if cleared_when == "it trains":
        wait_until("both cells waiting", lambda: _states(site, run) == ["deferred", "deferred"])
        wait_until("both cells training", lambda: training.arrived >= 2)
    else:
        site.airflow.ended(run)

    task = site.airflow.task(run, WAIT, CLEARED)
    assert task is not None
    site.airflow.clear(run, task)
    if cleared_when == "it trains":
        wait_until("the cleared cell training again", lambda: training.arrived >= 3)
        training.open()
    ended = site.airflow.ended(run)

    assert ended.state == ("failed" if cleared_when == "it has failed" else "success")
    jobs = jobs_since(site, began)
    assert jobs_of_cells(jobs) == {"1": 1, "2": 2}, [job.name for job in jobs]


def _states(site: Site, run: DagRun) -> list[str | None]:
    return [task.state if (task := site.airflow.task(run, WAIT, cell)) else None for cell in (0, CLEARED)]
