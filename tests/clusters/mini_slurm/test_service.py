"""The mini Slurm itself: jobs run and are accounted, what dies is started again, nothing is left behind."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from slurm_service import MiniSlurm

from steptime.clusters.mini_slurm import daemons, processes, service

pytestmark = pytest.mark.slurm


def eventually(condition: Callable[[], bool], what: str, *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.1)


def quiet(_phase: str) -> None:
    pass


def submit(slurm: MiniSlurm, script: str, *options: str) -> str:
    """The id of a job that is submitted as by a user: through ssh, the script on stdin."""
    return slurm.ssh("sbatch", "--parsable", *options, stdin=f"#!/bin/bash\n{script}\n").strip()


def accounted(slurm: MiniSlurm, job: str) -> str:
    """State and exit code of a job as the accounting has them."""
    return slurm.command("sacct", "-XnP", "-j", job, "-o", "State,ExitCode").strip()


def test_a_job_that_is_submitted_by_ssh_runs_on_stand_in_gpus_and_is_accounted(
    mini_slurm: MiniSlurm, tmp_path: Path
) -> None:
    output = tmp_path / "job.out"
    script = "srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'; exit 3"
    job = submit(mini_slurm, script, "--nodes=2", "--gres=gpu:8", "--exclusive", f"--output={output}")
    eventually(lambda: accounted(mini_slurm, job) == "FAILED|3:0", "the job in sacct")
    assert sorted(output.read_text().splitlines()[:2]) == [
        f"node{number} 0,1,2,3,4,5,6,7" for number in (1, 2)
    ]


def test_a_second_up_finds_it_running(mini_slurm: MiniSlurm) -> None:
    before = processes.daemons(mini_slurm.layout)
    layout, ran_already = service.up(mini_slurm.home, quiet)
    assert (layout, ran_already) == (mini_slurm.layout, True)
    assert processes.daemons(layout) == before
    now = service.status(mini_slurm.home)
    assert (now.healthy, now.problem, now.nodes) == (True, None, {"idle": 8})
    assert now.daemons == dict.fromkeys(daemons.ALL, True)


@pytest.mark.parametrize(
    "dead", [("slurmctld",), ("munged", "mariadbd", "slurmdbd"), ("sshd", "slurmd-node3")]
)
def test_up_starts_what_has_died_and_a_job_goes_on(mini_slurm: MiniSlurm, dead: tuple[str, ...]) -> None:
    job = submit(mini_slurm, "sleep 300", "--output=/dev/null")
    eventually(lambda: "RUNNING" in accounted(mini_slurm, job), "the job runs")
    for daemon in dead:
        # A controller that is killed so soon after a submit may not have saved the job yet.
        service.stop_daemon(mini_slurm.home, daemon, kill=daemon != "slurmctld")
    now = service.status(mini_slurm.home)
    assert not now.healthy
    assert now.problem
    assert all(name in now.problem for name in dead)
    _, ran_already = service.up(mini_slurm.home, quiet)
    assert not ran_already
    assert service.status(mini_slurm.home).healthy
    assert mini_slurm.command("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING"


def test_a_daemon_comes_back_alone(mini_slurm: MiniSlurm) -> None:
    service.stop_daemon(mini_slurm.home, "slurmdbd", kill=False)
    assert "slurmdbd" not in processes.daemons(mini_slurm.layout)
    service.start_daemon(mini_slurm.home, "slurmdbd")
    assert service.status(mini_slurm.home).healthy


def test_a_node_dies_with_its_jobs(mini_slurm: MiniSlurm) -> None:
    """Slurm's verdict comes half a minute later, when it has missed the node for long enough."""
    job = submit(mini_slurm, "srun sleep 300", "--nodes=2", "--nodelist=node[4-5]", "--output=/dev/null")
    eventually(lambda: len(processes.of_node(mini_slurm.layout, "node5")) >= 3, "slurmd, slurmstepd, sleep")
    on_node_4 = {process.pid for process in processes.of_node(mini_slurm.layout, "node4")}
    service.kill_node(mini_slurm.home, "node5")
    assert processes.of_node(mini_slurm.layout, "node5") == []
    assert "slurmd-node4" in processes.daemons(mini_slurm.layout)
    assert on_node_4, job


def test_down_ends_jobs_and_what_they_left_behind_and_keeps_the_accounting(mini_slurm: MiniSlurm) -> None:
    stray = "setsid --fork env --unset=STEPTIME_SLURM sleep 12345; sleep 12345"
    job = submit(mini_slurm, stray, "--export=NONE", "--output=/dev/null")
    eventually(lambda: len(sleepers()) == 2, "the job and its stray child")
    assert service.down(mini_slurm.home, quiet) is True
    assert processes.everything(mini_slurm.layout) == []
    assert sleepers() == []
    assert not service.status(mini_slurm.home).running
    assert service.down(mini_slurm.home, quiet) is False

    service.up(mini_slurm.home, quiet)
    assert accounted(mini_slurm, job).startswith("CANCELLED")


def sleepers() -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] in (["sleep", "12345"], ["/usr/bin/sleep", "12345"])
    ]
