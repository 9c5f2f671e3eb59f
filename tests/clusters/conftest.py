"""Clusters to test on, small jobs, and waiting for a condition with a deadline."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins.runai import RunaiStandIn

from steptime.clusters.base import JobSpec
from steptime.clusters.connections import Connection
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.clusters.runai import cluster as runai_backend
from steptime.clusters.runai.cluster import RunaiConfig
from steptime.clusters.slurm import cluster as slurm_backend
from steptime.clusters.slurm.cluster import SlurmConfig
from steptime.mini_slurm import service

from .ssh_site import log_in, site, way, way_of_module

__all__ = ["log_in", "site", "way", "way_of_module"]


DEADLINE_S = 150
"""Only a failing test reaches it: everything here takes well under a second on an idle machine."""


MakeSlurmConfig = Callable[..., SlurmConfig]


class GatedJob:
    """A job that runs until the test lets it go on."""

    def __init__(self, spec):
        self.spec = spec
        self.folder = Path(spec.directory)

    @property
    def pid(self):
        """Return the process id of the script, or 0 before it runs."""
        file = self.folder / "pid"
        return int(file.read_text() or 0) if file.exists() else 0

    def let_go(self):
        (self.folder / "go").touch()


@pytest.fixture
def make_spec(tmp_path):
    """Return a function that describes a small job with a folder of its own."""

    def make(name, script, **fields):
        directory = tmp_path / "experiments" / name
        slots = fields.get("slots", 1)  # half of node1 for each in a Slurm job
        options = f"#SBATCH --nodelist=node1 --gres=gpu:{4 * slots}"
        return JobSpec(
            name=name,
            script=f"#!/usr/bin/env bash\n{options}\nset -eu\n{script}\n",
            directory=str(directory),
            log_path=str(directory / "log.out"),
            **{"slots": 1, "time_limit_s": 60, **fields},
        )

    return make


@pytest.fixture
def make_gated(make_spec):
    """Return a function that describes a job which runs until it is let go, after the commands `first`."""

    def make(name, first="", **fields):
        script = f"{first}\necho $$ > pid\nwhile test ! -e go; do sleep 0.02; done"
        return GatedJob(make_spec(name, script, **fields))

    return make


@pytest.fixture
def make_config(tmp_path):
    """Return a function that configures a local cluster of two slots in this test's folder."""

    def make(**fields):
        defaults = {
            "name": "here",
            "kind": "local",
            "gpu_type": "cpu",
            "work_dir": str(tmp_path / "work"),
            "slots": 2,
            "exclusive": False,
            "grace_s": 5,
        }
        return LocalConfig.model_validate({**defaults, **fields})

    return make


@pytest.fixture
async def local(make_config):
    """Yield a local cluster of two slots; jobs that a failing test leaves are ended."""
    async with LocalCluster(make_config()) as cluster:
        yield cluster
        for job in await cluster.live_jobs():
            await cluster.cancel(job.name)


@pytest.fixture
def runai_server(tmp_path):
    """Yield a stand-in for Run:ai with two GPUs, serving on a free port."""
    with RunaiStandIn(tmp_path / "runai", gpus=2).running() as stand_in:
        yield stand_in


@pytest.fixture
def runai_connections(runai_server):
    """Return the login to the stand-in, as Airflow would give it."""

    async def connection(name):
        return Connection(
            name=name,
            kind="runai",
            host=f"{runai_server.url}/api/v1",
            login=runai_server.application,
            password=runai_server.secret,
        )

    return connection


@pytest.fixture
def make_runai_config(tmp_path):
    """Return a function that configures a cluster on the stand-in, with the test's folder as its volume."""

    def make(**fields):
        defaults = {
            "name": "dgx",
            "kind": "runai",
            "gpu_type": "h100",
            "connection": "runai",
            "project": "llm",
            "image": "nvcr.io/nvidia/nemo:25.07.01",
            "work_dir": str(tmp_path / "work"),
            "pvcs": [{"claim": "workspace", "path": str(tmp_path)}],
            "gpus_per_node": 2,
            "grace_s": 5,
            "poll_interval_s": 0.05,
        }
        return RunaiConfig.model_validate({**defaults, **fields})

    return make


@pytest.fixture
def runai_with(make_runai_config, runai_connections):
    """Return a function that opens a cluster on the stand-in with these fields changed, for `async with`."""
    return lambda **fields: runai_backend.connect(make_runai_config(**fields), runai_connections)


@pytest.fixture
async def runai(runai_with):
    """Yield a Run:ai cluster; the stand-in ends the jobs that a failing test leaves."""
    async with runai_with() as cluster:
        yield cluster


@pytest.fixture
def make_slurm_config(tmp_path):
    """Return a function that configures a cluster on the mini Slurm, in this test's folder."""

    def make(**fields):
        defaults = {
            "name": "mini",
            "kind": "slurm",
            "gpu_type": "cpu",
            "connection": "mini_slurm",
            "work_dir": str(tmp_path),
        }
        return SlurmConfig.model_validate({**defaults, **fields})

    return make


@pytest.fixture
async def slurm(make_slurm_config, slurm_of_session):
    """Yield the mini Slurm as a cluster, over ssh; jobs that a failing test leaves are ended."""
    async with slurm_backend.connect(make_slurm_config(), slurm_of_session.connections) as cluster:
        yield cluster
    service.cancel_jobs(slurm_of_session.layout, print)


@pytest.fixture
def hasten_limit(request):
    """Return a function that ends a job's time limit in a second, as Slurm counts limits in minutes."""

    def hasten(job):
        if job.cluster == "mini":
            slurm = request.getfixturevalue("slurm_of_session")
            slurm.command("scontrol", "update", f"jobid={job.job_id}", "EndTime=now+1")

    return hasten


@pytest.fixture(params=["local", "runai", pytest.param("slurm", marks=pytest.mark.slurm)])
def cluster(request):
    """Return each kind of cluster in turn, so that a test with this fixture runs on every backend."""
    return request.getfixturevalue(request.param)


async def eventually(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.01)


async def end_of(cluster, name, deadline_s=DEADLINE_S):
    """Wait until a job has ended."""
    deadline = time.monotonic() + deadline_s
    while (status := (await cluster.poll([name]))[name]).state.is_live:
        assert time.monotonic() < deadline, f"job {name} is still {status}"
        await asyncio.sleep(0.01)
    return status
