"""The local cluster's queue: which job waits for which, and what waiting costs."""

import os
import signal
from pathlib import Path

import pytest

from steptime.clusters.base import JobState
from steptime.clusters.local.cluster import LocalCluster
from steptime.clusters.local.state import JobFolder
from steptime.errors import UserError

from .conftest import end_of, eventually

pytestmark = pytest.mark.long


async def test_exclusive_jobs_run_one_after_the_other_in_the_order_of_their_submission(
    make_config, make_spec, tmp_path
):
    order = tmp_path / "order"
    async with LocalCluster(make_config(exclusive=True, slots=4)) as cluster:
        names = [f"job-{number}" for number in range(3)]
        for name in names:
            await cluster.submit(make_spec(name, f"echo {name} begins >> {order}; echo ends >> {order}"))
        ends = [await end_of(cluster, name) for name in names]
    assert {end.state for end in ends} == {JobState.SUCCEEDED}
    assert order.read_text().splitlines() == [line for name in names for line in (f"{name} begins", "ends")]


async def test_small_jobs_share_the_machine_and_never_overtake_a_large_one(local, make_spec, make_gated):
    first, second, large = make_gated("first"), make_gated("second"), make_gated("large", slots=2)
    for spec in (first.spec, second.spec, large.spec, make_spec("small", "true")):
        await local.submit(spec)
    await eventually(lambda: first.pid and second.pid)  # at the same time
    first.let_go()
    await end_of(local, "first")
    states = await local.poll(["second", "large", "small"])
    assert [status.state for status in states.values()] == ["running", "queued", "queued"]
    assert states["large"].reason == "waits for 2 of 2 slots"
    second.let_go()
    await eventually(lambda: large.pid)
    assert (await local.poll(["small"]))["small"].state is JobState.QUEUED
    large.let_go()
    assert (await end_of(local, "small")).state is JobState.SUCCEEDED


@pytest.mark.parametrize("ends_first", [0, 1])
async def test_a_small_job_starts_as_soon_as_any_earlier_one_ends(local, make_gated, ends_first):
    running = [make_gated("first"), make_gated("second")]
    third, fourth = make_gated("third"), make_gated("fourth")
    for job in (*running, third, fourth):
        await local.submit(job.spec)
    await eventually(lambda: all(job.pid for job in running))
    running[ends_first].let_go()
    await eventually(lambda: third.pid)
    states = await local.poll(["first", "second", "fourth"])
    assert states[running[1 - ends_first].spec.name].state is JobState.RUNNING
    assert states["fourth"].state is JobState.QUEUED
    assert [job.name for job in await local.live_jobs()] == [
        running[1 - ends_first].spec.name,
        "third",
        "fourth",
    ]
    third.let_go()
    await eventually(lambda: fourth.pid)


async def test_a_waiting_runner_that_is_killed_does_not_hold_up_the_others(local, make_spec, make_gated):
    first = make_gated("first", slots=2)
    await local.submit(first.spec)
    specs = [make_spec(name, "echo ran >> count", slots=2) for name in ("second", "third", "fourth")]
    for spec in specs:
        await local.submit(spec)
    for job in (JobFolder(local._state, name) for name in ("third", "second")):
        await eventually(job.runner_pid)
        pid = job.runner_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert (await local.poll(["fourth"]))["fourth"].state is JobState.QUEUED
    first.let_go()
    assert (await end_of(local, "fourth")).state is JobState.SUCCEEDED
    # The killed ones never started: submitted again, they go to the end of the queue.
    await local.submit(specs[0])
    assert (await end_of(local, "second")).state is JobState.SUCCEEDED
    assert (Path(specs[0].directory) / "count").read_text() == "ran\n"


async def test_a_job_larger_than_the_machine_is_refused(local, make_spec):
    with pytest.raises(UserError, match=r"needs 3 slots and here has 2: .* in config/clusters/here\.yaml"):
        await local.submit(make_spec("large", "true", slots=3))
    assert await local.find("large") is None
