"""Jobs survive when processes of Airflow are killed."""

import re

import psutil
import pytest
from stand_ins.trainer_python import STAND_IN

from end_to_end.driving import command_of, kill, processes_of, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

SLOWLY = {"STAND_IN_STEP_S": "0.5"}
OF_SECONDS = {"cluster": STAND_IN, "max_steps": 40, "window": "10:39", "environment": SLOWLY}
"""Params of a run long enough to be struck while it trains."""
WAIT = "performance.wait"
_STEPS_CAME = re.compile(r"steps? \d+(-\d+)? of 0-\d+")
"""Several steps that arrive at once are one line; steps from long before are not shown."""


@pytest.fixture(autouse=True)
def _no_job_is_left(airflow):
    """End the jobs of a failed test, which would keep the cores from later tests."""
    yield
    airflow.cancel_jobs()


def new_jobs(airflow, before):
    return set(airflow.jobs()) - before


def training_of(airflow, job_name):
    """Return the processes that train for a job, which run in its folder."""
    directory = airflow.jobs()[job_name].directory
    found = []
    for process in processes_of(airflow.home):
        try:
            if process.cwd() == directory and "trainer" in command_of(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def wait_in_state(airflow, run, *states):
    def look():
        task = airflow.task(run, WAIT)
        return task if task is not None and task.state in states else None

    return wait_until(f"{WAIT} {' or '.join(states)}", look)


def started_training(airflow, before):
    """Return the name of the one new job, once it trains."""

    def look():
        names = new_jobs(airflow, before)
        return next(iter(names)) if names and training_of(airflow, next(iter(names))) else None

    return wait_until("the job's training", look)


def state_of(airflow, job_name):
    status = airflow.ended_job(job_name)
    return None if status is None else status.state


def test_a_killed_triggerer_comes_back_to_the_same_job(airflow):
    before = set(airflow.jobs())
    run = airflow.trigger(**OF_SECONDS)
    job_name = started_training(airflow, before)
    task = wait_in_state(airflow, run, "deferred")
    wait_until("its log's progress", lambda: _STEPS_CAME.search(airflow.log_text(run, task)))
    assert f"job {job_name}: running since" in airflow.log_text(run, task)
    triggerers = [
        process for process in processes_of(airflow.home) if "airflow triggerer" in command_of(process)
    ]
    assert triggerers, "no triggerer runs"
    kill(triggerers)

    assert airflow.ended(run).state == "success"
    assert new_jobs(airflow, before) == {job_name}, "a second job was submitted"
    assert state_of(airflow, job_name) == "succeeded"
