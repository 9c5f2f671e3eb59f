"""Submitting from several login nodes at once, where no lock holds between them.

Slurm's commands are stand-ins of a line; a real Slurm is in test_slurm_login_nodes.py.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.clusters.base import JobSpec
from steptime.clusters.slurm import submit

NODES, FOLDERS, PATIENCE_S = 3, 4, 12


def programs(folder: Path, *, sbatch_takes_s: float) -> Path:
    """A controller whose queue is a file: a job is in it some time after sbatch was called."""
    found = folder / "bin"
    found.mkdir(parents=True)
    for name, text in {
        "flock": ":",  # every login node has locks of its own
        "squeue": f"cat {folder}/queue 2>/dev/null || :",
        "scontrol": ":",
        "sbatch": (
            f"echo >>{folder}/submissions; sleep {sbatch_takes_s}; echo 'job|{folder}/' >>{folder}/queue"
        ),
        "uname": "echo $NODE",
    }.items():
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o755)
    return found


def contenders(folder: Path, command: list[str], *, sbatch_takes_s: float) -> list[subprocess.Popen[str]]:
    path = f"{programs(folder, sbatch_takes_s=sbatch_takes_s)}:/usr/bin:/bin"
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
@pytest.mark.parametrize(
    ("left_by_a_dead_node", "sbatch_takes_s"),
    [
        pytest.param(True, 0.3, id="a dead node has left a claim"),
        pytest.param(False, 3 * PATIENCE_S, id="sbatch takes longer than a claim lasts"),
    ],
)
def test_login_nodes_submit_once(
    make_spec: Callable[..., JobSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    left_by_a_dead_node: bool,
    sbatch_takes_s: float,
) -> None:
    monkeypatch.setattr(submit, "_CLAIM_LASTS_S", PATIENCE_S)
    monkeypatch.setattr(submit, "_RENEW_S", 1)
    started = {}
    for number in range(FOLDERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        if left_by_a_dead_node:
            (folder / "squeue.claim").write_text("login9 1 1\n")
        command = submit.submit_command(make_spec("job", "true"), root=str(folder), folder=str(folder))
        started[folder] = contenders(folder, command, sbatch_takes_s=sbatch_takes_s)
    for folder, processes in started.items():
        answers = [process.communicate(timeout=300) for process in processes]
        assert [process.returncode for process in processes] == [0] * NODES, answers
        assert {printed for printed, _ in answers} == {f"job|{folder}/\n"}
        assert (folder / "submissions").read_text() == "\n", "submitted more than once"
        assert not (folder / "squeue.claim").exists()


def test_a_submission_whose_claim_was_taken_while_it_stood_still_submits_nothing(
    make_spec: Callable[..., JobSpec], tmp_path: Path
) -> None:
    command = submit.submit_command(make_spec("job", "true"), root=str(tmp_path), folder=str(tmp_path))
    found, claim = programs(tmp_path, sbatch_takes_s=0), tmp_path / "squeue.claim"
    # The last command before sbatch, during which another node takes the claim.
    (found / "scontrol").write_text(f"#!/bin/sh\necho 'login2 7 7' >{claim}\n")

    env = {"PATH": f"{found}:/usr/bin:/bin", "NODE": "login1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{claim} was taken while this submission stood still\n"
    assert not (tmp_path / "submissions").exists()
    assert claim.read_text() == "login2 7 7\n", "it is the other node's"
