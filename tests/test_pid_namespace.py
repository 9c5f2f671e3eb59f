"""What changed code may do to the machine that `make mutants` runs on: nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ENTERS = "import os, signal, subprocess, sys; import pid_namespace; pid_namespace.enter(); "


def inside(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a namespace of its own; it ends when nothing holds its output any more."""
    return subprocess.run(
        [sys.executable, "-c", ENTERS + code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_sees_no_process_but_its_own() -> None:
    code = "print(sorted(name for name in os.listdir('/proc') if name.isdigit()), os.getpid(), os.getppid())"

    assert inside(code).stdout == "['1', '2'] 2 1\n"


def test_what_it_leaves_behind_ends_with_it() -> None:
    ended = inside("subprocess.Popen(['sleep', '3600'], start_new_session=True)")

    assert (ended.returncode, ended.stderr) == (0, ""), "and its output is closed before the time is up"


def test_what_others_leave_to_the_first_process_is_taken_in() -> None:
    leaves = "subprocess.run(['sh', '-c', 'sleep 0.2 & echo $!'], stdout=subprocess.PIPE).stdout"
    code = f"left = int({leaves}); [None for _ in iter(lambda: os.path.exists(f'/proc/{{left}}'), False)]"

    assert inside(code).returncode == 0, "else a process that has ended stays to be seen for ever"


@pytest.mark.long
def test_it_ends_as_its_process_does() -> None:
    assert inside("sys.exit(3)").returncode == 3
    assert inside("signal.alarm(1); signal.pause()").returncode == 128 + signal.SIGALRM


def test_it_ends_with_whoever_began_it() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", f"{ENTERS}print('begun', flush=True); signal.pause()"],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        program.kill()
        assert program.stdout.read() == b"", "nothing holds it any more"
