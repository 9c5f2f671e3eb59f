"""Login nodes of a Slurm that go away: no job is lost, ended or doubled."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from steptime.clusters.base import JobState
from steptime.clusters.slurm.cluster import connect
from steptime.errors import OutOfReach, SystemFailure

from .conftest import end_of, eventually
from .login_node import LoginNode
from .ssh_site import known

pytestmark = pytest.mark.slurm


@pytest.fixture
def nodes(slurm_of_session, tmp_path):
    """Yield two login nodes of the mini Slurm."""
    nodes = [LoginNode(slurm_of_session, tmp_path / f"login{number}") for number in range(2)]
    yield nodes
    for node in nodes:
        node.stop()
    slurm_of_session.command("scancel", "--me")


@pytest.fixture
def behind(make_slurm_config):
    """Return a function that opens the mini Slurm behind several login nodes, as one cluster."""

    @asynccontextmanager
    async def opened(nodes):
        login = replace(nodes[0].login(conn_timeout=30), host="", port=None)
        config = make_slurm_config(login_nodes=[f"127.0.0.1:{node.port}" for node in nodes])
        async with connect(config, known({"mini_slurm": login})) as cluster:
            yield cluster

    return opened


def jobs_of(slurm, name):
    """Return the ids of the controller's jobs of that name, in order."""
    return slurm.command("squeue", "-h", "--states=all", "--sort=i", f"--name={name}", "-o", "%A").split()


def states_of(slurm, name):
    """Return the states of the controller's jobs of that name, ordered by id."""
    return slurm.command("squeue", "-h", "--states=all", "--sort=i", f"--name={name}", "-o", "%T").split()


async def test_a_login_node_that_goes_away_while_it_submits_does_not_make_a_second_job(
    nodes, behind, make_spec, slurm_of_session, tmp_path
):
    """The first node's sbatch goes on only after the second node's job has been released."""
    began, go_on = tmp_path / "began", tmp_path / "go-on"
    nodes[0].command("sbatch", f'touch {began}; while [ ! -e {go_on} ]; do sleep 0.1; done; exec $real "$@"')
    async with behind(nodes) as cluster:
        submitting = asyncio.create_task(cluster.submit(make_spec("doubled", "echo ran >> count")))
        await eventually(began.exists)
        nodes[0].stop()
        job = await submitting
        go_on.touch()
        await eventually(lambda: len(jobs_of(slurm_of_session, "doubled")) == 2)
        assert (await end_of(cluster, "doubled")).state is JobState.SUCCEEDED
        await eventually(lambda: states_of(slurm_of_session, "doubled")[1] == "CANCELLED")
        nodes[1].stop()
        with pytest.raises(OutOfReach, match="no login node of connection 'mini_slurm' can be used"):
            await cluster.poll(["unheard-of"])
    assert jobs_of(slurm_of_session, "doubled")[0] == job.job_id
    assert (Path(job.directory) / "count").read_text() == "ran\n"


async def test_a_job_whose_submitter_was_gone_before_its_release_is_released(
    nodes, behind, make_spec, slurm_of_session, tmp_path
):
    began = tmp_path / "began"
    nodes[0].command(
        "scontrol", f'[ "$1" != release ] || {{ touch {began}; kill -9 $PPID; exit 1; }}; exec $real "$@"'
    )
    spec = make_spec("left-held", "echo ran >> count")
    async with behind(nodes) as cluster:
        with pytest.raises(SystemFailure):
            await cluster.submit(spec)
        assert (await cluster.poll(["left-held"]))["left-held"].state is JobState.QUEUED
        nodes[0].stop()
        job = await cluster.submit(spec)
        assert (await end_of(cluster, "left-held")).state is JobState.SUCCEEDED
    assert jobs_of(slurm_of_session, "left-held") == [job.job_id]
    assert (Path(job.directory) / "count").read_text() == "ran\n"


async def test_login_nodes_that_submit_at_the_same_time_start_one_job(
    nodes, behind, make_spec, slurm_of_session, tmp_path
):
    """Each calls sbatch before the other has finished."""
    for number, node in enumerate(nodes):
        node.command(
            "sbatch",
            f"touch {tmp_path}/at-{number}\n"
            f"while [ ! -e {tmp_path}/at-{1 - number} ]; do sleep 0.02; done\n"
            'exec $real "$@"',
        )
    spec = make_spec("shared", "echo ran >> count; sleep 1")
    async with behind(nodes[:1]) as first, behind(nodes[1:]) as second:
        jobs = await asyncio.gather(first.submit(spec), second.submit(spec))
        assert (await end_of(first, "shared")).state is JobState.SUCCEEDED
    assert jobs[0] == jobs[1]
    assert states_of(slurm_of_session, "shared") == ["COMPLETED", "CANCELLED"]
    assert jobs_of(slurm_of_session, "shared")[0] == jobs[0].job_id
    assert (Path(jobs[0].directory) / "count").read_text() == "ran\n"
