"""A Slurm behind jump hosts, and one whose login nodes go away: no job is lost, ended or doubled."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_service import MiniSlurm

from steptime.clusters.base import Cluster, JobSpec, JobState, JobStatus
from steptime.clusters.slurm import submit
from steptime.clusters.slurm.cluster import SlurmCluster, SlurmConfig, connect
from steptime.errors import OutOfReach

from .conftest import GatedJob
from .login_node import LoginNode
from .ssh_site import Site, connection, known

pytestmark = pytest.mark.slurm

MakeConfig = Callable[..., SlurmConfig]
MakeSpec = Callable[..., JobSpec]
EndOf = Callable[[Cluster, str], Awaitable[JobStatus]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]
Behind = Callable[[Sequence[LoginNode]], AbstractAsyncContextManager[SlurmCluster]]


@pytest.fixture
def nodes(slurm_of_session: MiniSlurm, tmp_path: Path) -> Iterator[list[LoginNode]]:
    """Two login nodes of the mini Slurm, which call themselves `login0` and `login1`."""
    nodes = [LoginNode(slurm_of_session, tmp_path / f"login{number}") for number in range(2)]
    for number, node in enumerate(nodes):
        node.command("uname", f'[ "$*" = -n ] && echo login{number} || exec $real "$@"')
    yield nodes
    for node in nodes:
        node.stop()
    slurm_of_session.command("scancel", "--me")


@pytest.fixture
def behind(make_slurm_config: MakeConfig) -> Behind:
    """A function that opens the mini Slurm behind login nodes, as one cluster with one connection."""

    @asynccontextmanager
    async def opened(nodes: Sequence[LoginNode]) -> AsyncIterator[SlurmCluster]:
        login = replace(nodes[0].login(conn_timeout=30), host="", port=None)
        config = make_slurm_config(login_nodes=[f"127.0.0.1:{node.port}" for node in nodes])
        async with connect(config, known({"mini_slurm": login})) as cluster:
            yield cluster

    return opened


def jobs_of(slurm: MiniSlurm, name: str) -> list[str]:
    """The ids of all jobs of a name that the controller has."""
    return slurm.command("squeue", "-h", "--states=all", f"--name={name}", "-o", "%A").split()


async def test_a_job_behind_two_jump_hosts(
    *,
    slurm_of_session: MiniSlurm,
    make_slurm_config: MakeConfig,
    make_gated: Callable[..., GatedJob],
    tmp_path: Path,
    end_of: EndOf,
    eventually: Eventually,
) -> None:
    """Submitted, polled, its log read while it grows, a second one cancelled."""
    site = Site(tmp_path / "site")
    keys = site.keys("user")
    outer, inner = (site.host(name, authorized=keys.public) for name in ("outer", "inner"))
    login = slurm_of_session.login
    connections = {
        "outer": connection(outer, keys),
        "inner": connection(inner, keys),
        "mini_slurm": replace(login, extra={**login.extra, "jump_connections": ["outer", "inner"]}),
    }
    try:
        async with connect(make_slurm_config(), known(connections)) as cluster:
            gated = make_gated("far", "echo step 1")
            job = await cluster.submit(gated.spec)
            await eventually(lambda: gated.pid)
            assert (await cluster.poll(["far"]))["far"].state is JobState.RUNNING
            assert await cluster.read(job.log_path) == b"step 1\n"
            gated.let_go()
            assert (await end_of(cluster, "far")).state is JobState.SUCCEEDED

            ended = make_gated("far-ended")
            await cluster.submit(ended.spec)
            await eventually(lambda: ended.pid)
            await cluster.cancel("far-ended")
            assert (await end_of(cluster, "far-ended")).state is JobState.CANCELLED
            assert outer.logins == inner.logins == 1, "all of it over one connection"
    finally:
        site.stop()


async def test_a_job_is_followed_over_the_login_nodes_that_are_there(
    *,
    nodes: list[LoginNode],
    behind: Behind,
    make_gated: Callable[..., GatedJob],
    slurm_of_session: MiniSlurm,
    end_of: EndOf,
    eventually: Eventually,
) -> None:
    """The first goes away, then the second, then both: the job is what it was whenever one answers."""
    async with behind(nodes) as cluster:
        gated = make_gated("followed", "echo step 1")
        job = await cluster.submit(gated.spec)
        await eventually(lambda: gated.pid)
        for away, there in ((0, 1), (1, 0)):
            nodes[away].stop()
            assert (await cluster.poll(["followed"]))["followed"].state is JobState.RUNNING
            assert await cluster.read(job.log_path) == b"step 1\n"
            assert nodes[there].logins == 1
            assert await cluster.find("followed") == await cluster.submit(gated.spec) == job
            nodes[away].start()
        for node in nodes:
            node.stop()
        with pytest.raises(OutOfReach, match="no login node of connection 'mini_slurm' can be used"):
            await cluster.poll(["followed"])
        gated.let_go()
        for node in nodes:
            node.start()
        assert (await end_of(cluster, "followed")).state is JobState.SUCCEEDED
    assert jobs_of(slurm_of_session, "followed") == [job.job_id]


async def test_a_login_node_that_goes_away_while_it_submits_does_not_make_a_second_job(
    *,
    nodes: list[LoginNode],
    behind: Behind,
    make_spec: MakeSpec,
    slurm_of_session: MiniSlurm,
    tmp_path: Path,
    end_of: EndOf,
    eventually: Eventually,
) -> None:
    """Not even where locks on the shared folder hold on one machine only, as Lustre's with `localflock`."""
    began, ended = tmp_path / "began", tmp_path / "ended"
    nodes[0].command("sbatch", f'touch {began}; sleep 2; $real "$@"; touch {ended}')
    nodes[1].command("flock", "exit 0")
    async with behind(nodes) as cluster:
        submitting = asyncio.create_task(cluster.submit(make_spec("doubled", "echo ran >> count")))
        await eventually(began.exists)
        nodes[0].stop()
        job = await submitting
        await eventually(ended.exists)
        assert (await end_of(cluster, "doubled")).state is JobState.SUCCEEDED
    assert jobs_of(slurm_of_session, "doubled") == [job.job_id]
    assert (Path(job.directory) / "count").read_text() == "ran\n"


async def test_what_a_login_node_left_that_died_while_it_submitted(
    *,
    nodes: list[LoginNode],
    behind: Behind,
    make_spec: MakeSpec,
    slurm_of_session: MiniSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another node gives it the time that it could have taken; it itself knows that nobody is at it."""
    async with behind(nodes) as cluster:
        for left_by, patience_s in (("login1", 3), ("login0", 90)):
            monkeypatch.setattr(submit, "_CLAIM_LASTS_S", patience_s)
            name = f"claimed-{left_by}"
            claim = tmp_path / "clusters/mini/jobs" / name / "squeue.claim"
            claim.parent.mkdir(parents=True)
            claim.write_text(f"{left_by} 1 1\n")
            began = time.monotonic()
            job = await cluster.submit(make_spec(name, "true"))
            has_waited = time.monotonic() - began > patience_s
            assert has_waited == (left_by == "login1")
            assert jobs_of(slurm_of_session, name) == [job.job_id]
            assert not claim.exists()


async def test_two_login_nodes_that_wait_for_one_that_died_submit_once(
    *,
    nodes: list[LoginNode],
    behind: Behind,
    make_spec: MakeSpec,
    slurm_of_session: MiniSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second is patient with the first anew, who has just taken the place of the dead one."""
    monkeypatch.setattr(submit, "_CLAIM_LASTS_S", 15)  # longer than anybody takes to submit
    claim = tmp_path / "clusters/mini/jobs/shared/squeue.claim"
    claim.parent.mkdir(parents=True)
    claim.write_text("login9 1 1\n")
    for node in nodes:
        node.command("flock", "exit 0")
        node.command("sbatch", 'sleep 3; exec $real "$@"')
    spec = make_spec("shared", "true")
    async with behind(nodes[:1]) as first, behind(nodes[1:]) as second:
        jobs = await asyncio.gather(first.submit(spec), second.submit(spec))
    assert jobs[0] == jobs[1]
    assert jobs_of(slurm_of_session, "shared") == [jobs[0].job_id]
