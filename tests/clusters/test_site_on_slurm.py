"""Settings of a cluster's file in jobs on the real Slurm: NUMA nodes, and nodes that are refused."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from staged import staged_files

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.clusters.slurm.node_check import REFUSED, REPORT
from steptime.recipes.models import Performance

from .conftest import end_of

pytestmark = pytest.mark.slurm

Trained = Callable[..., Awaitable[tuple[Path, list[str]]]]


@pytest.fixture
def trained(
    slurm,
    make_slurm_config,
    make_result,
    tmp_path,
):
    """Return a function that runs a job of two ranks, each a line of shell, on a cluster with these fields.

    It returns the job's folder and the lines of its log.
    """

    async def train(line, launch, **site):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{line}\n")
        python.chmod(0o755)
        staged = staged_files(python, tmp_path)
        run = make_result(gpus=2).run.model_copy(update={"performance": launch})
        job = await slurm.submit(job_spec(run, staged, make_slurm_config(**site), identity="x", started=0))
        said = Path(job.log_path)
        assert (await end_of(slurm, job.name)).state is JobState.SUCCEEDED, said.read_text()
        return Path(job.directory), said.read_text().splitlines()

    return train


async def test_each_rank_runs_on_the_numa_node_of_its_local_rank_where_there_is_one(trained):
    """Two ranks share a node; on a machine with only one NUMA node the second rank is not bound."""
    if shutil.which("numactl") is None:
        pytest.fail("numactl is missing: apt-get install --yes numactl")
    folder, log = await trained(
        'echo "on ${STEPTIME_NUMA_NODE:-none}" $(numactl --show) >"rank$SLURM_PROCID"',
        Performance(ranks_per_numa_node=1),
        gpus_per_node=2,
    )
    has_second = Path("/sys/devices/system/node/node1").exists()
    said = [(folder / f"rank{rank}").read_text() for rank in range(2)]
    for rank, bound in ((0, True), (1, has_second)):
        if bound:
            assert said[rank].startswith(f"on {rank} policy: bind ")
            assert f" membind: {rank}" in said[rank]
            assert f" cpubind: {rank} " in said[rank]
        else:
            assert said[rank].startswith("on none policy: default ")
    told = ["steptime: rank 1 is not bound to NUMA node 1: libnuma: Warning: node argument 1 is out of range"]
    assert log == ([] if has_second else told)


@pytest.mark.parametrize(
    ("gpu_option", "gpus_per_node", "seen"), [("gres", 1, ["0", "0"]), ("gpus", 2, ["0,1", "0,1"])]
)
async def test_ranks_see_the_gpus_that_are_asked_for(trained, gpu_option, gpus_per_node, seen):
    """The two ranks are first on two nodes, then on one."""
    folder, _ = await trained(
        'echo "$CUDA_VISIBLE_DEVICES" >"rank$SLURM_PROCID"',
        Performance(),
        gpus_per_node=gpus_per_node,
        gpu_option=gpu_option,
    )
    assert [(folder / f"rank{rank}").read_text().strip() for rank in range(2)] == seen


async def test_only_a_job_that_names_refused_nodes_failed_by_the_clusters_fault(slurm, make_spec):
    """A training that happens to end with the check's exit code has itself failed."""
    report = '{"nodes": [{"node": "node1", "faults": ["it burns"]}, {"node": "node2", "faults": []}]}'
    for name, script in {
        "refused": f"echo '{report}' >{REPORT}; exit {REFUSED}",
        "ends-so": f"exit {REFUSED}",
        "other": f"echo '{report}' >{REPORT}; exit 1",
    }.items():
        await slurm.submit(make_spec(name, script))
    ends = {name: await end_of(slurm, name) for name in ("refused", "ends-so", "other")}
    assert {name: (end.cluster_fault, end.failed_nodes, end.reason) for name, end in ends.items()} == {
        "refused": (True, ("node1",), "the node check refused node1: it burns"),
        "ends-so": (False, (), f"exit code {REFUSED}"),
        "other": (False, (), "exit code 1"),
    }
    assert (await slurm.poll(["refused"]))["refused"] == ends["refused"]


async def test_a_check_that_hangs_is_ended_and_the_training_begins(trained):
    _, said = await trained(
        'test "$2" = trainer || exec sleep 600; echo "trains as $SLURM_PROCID"',
        Performance(),
        gpus_per_node=1,
        node_check={"time_limit_s": 2},
    )
    # Before these lines srun may print that it waits for the first step to leave the nodes.
    assert sorted(said[-2:]) == ["trains as 0", "trains as 1"]
    assert len([line for line in said[:-2] if "no node is judged, the training begins" in line]) == 1
