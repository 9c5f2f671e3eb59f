"""A process's rank: alone, under torchrun, and under Slurm's srun."""

import os
import sys
from pathlib import Path

import pytest
from called import captured

from trainer.errors import TrainerError
from trainer.launch import FIRST_PORT, ranks_of_srun, read_launch

STEP = {
    "SLURM_JOB_ID": "12005",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}
"""Variables of a task as srun starts it, on Slurm 22.05."""
TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Remove the variables of a launcher that may run these tests, and afterwards those that a test sets."""
    names = (*STEP, *TORCHRUN, "GROUP_RANK", "MASTER_PORT", "OMP_NUM_THREADS", "PMIX_RANK")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)


def launched(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_alone():
    launch = read_launch()
    assert (launch.rank, launch.world_size, launch.nodes, launch.threads) == (0, 1, 1, 1)
    assert not launch.by_launcher
    assert launch.on_one_host


def test_torchrun_says_it_all(monkeypatch):
    """This holds inside a Slurm job too."""
    launched(monkeypatch, {**STEP, **TORCHRUN, "OMP_NUM_THREADS": "3"})
    launch = read_launch()
    assert launch.threads == 3
    assert (launch.rank, launch.world_size, launch.local_world_size, launch.nodes) == (1, 2, 2, 1)
    assert (launch.by_launcher, launch.has_mpi) == (True, False)


def test_srun_is_read_where_torchrun_did_not_start_it(monkeypatch):
    launched(monkeypatch, {**STEP, "MASTER_ADDR": "n1", "MASTER_PORT": "20017"})
    launch = read_launch()
    assert (launch.rank, launch.world_size, launch.local_world_size, launch.nodes) == (5, 8, 4, 2)
    assert launch.by_launcher
    assert not launch.on_one_host


@pytest.mark.parametrize(
    ("environment", "has_mpi"),
    [
        (STEP, False),
        ({**STEP, "PMIX_RANK": "5"}, True),
        (
            {**STEP, **TORCHRUN, "PMIX_RANK": "5"},
            False,
        ),  # torchrun within a step starts no MPI for its ranks
    ],
)
def test_mpi_is_there_where_srun_was_told_to_start_it(monkeypatch, environment, has_mpi):
    """`--mpi=pmix` sets PMIX_RANK for each task, `--mpi=none` does not (observed on Slurm 22.05)."""
    launched(monkeypatch, environment)
    assert read_launch().has_mpi is has_mpi


def test_srun_in_torchruns_words():
    told = ranks_of_srun({**STEP, "MASTER_ADDR": "n1", "MASTER_PORT": "20017"})
    assert told == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "20017",
    }


@pytest.mark.parametrize("job_id", ["1", "45535", "99999", "4294967294"])
def test_ranks_without_a_port_meet_at_one_that_exists(job_id):
    step = {**STEP, "MASTER_ADDR": "n1", "SLURM_JOB_ID": job_id}
    step.pop("MASTER_PORT", None)
    assert FIRST_PORT <= int(ranks_of_srun(step)["MASTER_PORT"]) < 32768


def test_a_batch_script_is_no_rank():
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    assert ranks_of_srun(batch) == {}


def test_nodes_with_different_numbers_of_tasks_are_refused():
    with pytest.raises(
        TrainerError, match=r"different numbers of tasks on its nodes \(4,3\).*--ntasks-per-node"
    ):
        ranks_of_srun({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4,3"})


@pytest.mark.parametrize("address", ["127.0.1.1", "localhost"])
def test_nodes_that_share_a_host(monkeypatch, address):
    launched(monkeypatch, {**STEP, "MASTER_ADDR": address})
    assert read_launch().on_one_host


def test_a_plan_for_the_cpu_hides_the_gpus_of_its_machine():
    program = (
        "import os; from types import SimpleNamespace as Of; from trainer.environment import prepare; "
        "prepare(Of(threads=3, on_one_host={}), Of(gpu_type={!r}, backend='nemo')); "
        "names = ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'GLOO_SOCKET_IFNAME'); "
        "print([os.environ.get(name) for name in names])"
    )
    given = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "9"}

    def prepared(gpu_type, *, on_one_host=True):
        argv = [sys.executable, "-c", program.format(on_one_host, gpu_type)]
        return captured(argv, env=given, cwd=Path(__file__).parents[2]).stdout.strip()

    assert prepared("cpu") == "['', '3', 'lo']"
    assert prepared("cpu", on_one_host=False) == "['', '3', None]", "hosts meet over their network"
    assert prepared("h100") == "['0,1', '9', None]"
