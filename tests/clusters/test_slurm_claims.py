"""Who submits where several login nodes find the claim of one that died, at one moment.

Slurm's commands are stand-ins of a line, so that dozens of such moments take seconds; a real Slurm is in
test_slurm_login_nodes.py.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.clusters.base import JobSpec
from steptime.clusters.slurm import submit

NODES, MOMENTS = 3, 12


def programs(folder: Path) -> Path:
    """A controller whose queue is a file: a job is in it a while after sbatch was called."""
    found = folder / "bin"
    found.mkdir(parents=True)
    for name, text in {
        "squeue": f"cat {folder}/queue 2>/dev/null || :",
        "scontrol": ":",
        "sbatch": f"echo >>{folder}/submissions; sleep 0.3; echo 'job|{folder}/' >>{folder}/queue",
        "uname": "echo $NODE",
    }.items():
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o755)
    return found


def contenders(folder: Path, command: list[str]) -> list[subprocess.Popen[str]]:
    path = f"{programs(folder)}:/usr/bin:/bin"
    (folder / "squeue.claim").write_text("login9 1 1\n")
    return [
        subprocess.Popen(
            command,
            env={"PATH": path, "NODE": f"login{number}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(NODES)
    ]


@pytest.mark.long
def test_those_that_find_the_claim_of_a_dead_node_submit_once(
    make_spec: Callable[..., JobSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_patience_s", lambda: 1)
    moments = {}
    for number in range(MOMENTS):
        folder = tmp_path / str(number)
        command = submit.submit_command(make_spec("job", "true"), root=str(folder), folder=str(folder))
        # Every login node has a lock of its own: it keeps none from the others.
        moments[folder] = contenders(folder, command[command.index("sh") :])
    for folder, processes in moments.items():
        answers = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0] * NODES, answers
        assert {printed for printed, _ in answers} == {f"job|{folder}/\n"}
        assert (folder / "submissions").read_text() == "\n", "submitted more than once"
