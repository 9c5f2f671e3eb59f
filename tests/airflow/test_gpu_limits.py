"""A job beyond the limit on GPUs waits in `submit`, deferred, and a person may end the wait."""

import asyncio

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from sync_ledger import ledger

from steptime.clusters.base import JobState
from steptime.runs import launch
from steptime.runs.launch import end_job
from steptime.store.ledger import Ledger

from .conftest import logged, submit_task, task_of

pytestmark = pytest.mark.long


@pytest.fixture
def one_gpu(home, monkeypatch):
    """Limit the test's cluster to one GPU at a time."""
    monkeypatch.setattr(launch, "_ASKED_EVERY_S", 0.05)
    path = home.parent / "config" / "clusters" / "local.yaml"
    path.write_text(f"{path.read_text()}gpus: 1\n")


@pytest.fixture
def submit(one_gpu, a_run, staged, make_context):
    """Return a function that executes the task `submit` of a mapped instance."""

    def submit(map_index):
        run = a_run(STAND_IN="hang").model_copy(update={"repeat": map_index + 1})
        return submit_task(run, staged).execute(make_context(map_index=map_index))

    return submit


def waiting(submit, map_index):
    """Return the trigger that `submit` defers to."""
    with pytest.raises(TaskDeferred) as deferred:
        submit(map_index)
    assert deferred.value.method_name == "go_on"
    return deferred.value.trigger


async def fire(trigger):
    """Wait for a trigger as a triggerer does, after making it again from what Airflow stores."""
    _, arguments = trigger.serialize()
    async for _ in type(trigger)(**arguments).run():
        return


def test_a_job_is_submitted_once_another_has_ended(submit, cluster):
    first = submit(0)
    triggers = []
    said = logged(lambda: triggers.append(waiting(submit, 1)))
    needs = "needs 1 of the 1 GPUs that jobs on cluster 'local' may hold at a time: 1 are in use"
    assert [needs in line for line in said].count(True) == 1
    [job] = [job for job in ledger.open_jobs("local") if job.name != first["job"]]
    assert asyncio.run(cluster.find(job.name)) is None

    asyncio.run(end_job(cluster, first["job"], Ledger(print)))
    asyncio.run(fire(triggers[0]))

    assert submit(1)["job"] == job.name
    assert asyncio.run(cluster.poll([job.name]))[job.name].state.is_live


def test_a_job_whose_task_is_gone_makes_room_for_the_next(submit, cluster, make_context):
    """Here `submit` was marked as failed, so `end` runs."""
    first = submit(0)
    waiting(submit, 1)
    trigger = waiting(submit, 2)
    task_of("performance.end").execute(make_context(map_index=1, task_id="performance.end"))
    asyncio.run(end_job(cluster, first["job"], Ledger(print)))

    asyncio.run(fire(trigger))

    handle = submit(2)
    states = {job.name: job.state for job in ledger.open_jobs("local")}
    assert states == {handle["job"]: JobState.QUEUED}


@pytest.mark.usefixtures("one_gpu")
def test_a_run_that_never_fits_is_refused(planned, staged, make_context):
    with pytest.raises(
        AirflowFailException, match=r"jobs on cluster local may hold at most 1 together: .* raise gpus in"
    ):
        submit_task(planned(gpus="2").runs[0], staged).execute(make_context())
