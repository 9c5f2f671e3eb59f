"""Call `steptime` in this process as a shell would, and other programs in processes of their own."""

import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from steptime.cli import main

CLI = str(Path(sys.executable).with_name("steptime"))


def steptime(*arguments):
    """Return the exit code of `steptime` with these arguments."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["steptime", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


def refusal(capsys, *arguments):
    """Return the one line that a refused command prints: it is on stderr, and the exit code is 1."""
    code = steptime(*arguments)
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (1, "", 1)
    assert printed.err.startswith("steptime: ")
    return printed.err


def has_python_311():
    """Return whether this machine has the Python that the trainer's packages are locked for."""
    return sys.version_info[:2] == (3, 11) or shutil.which("python3.11") is not None


def captured(command, *, check=False, **options):
    """Run a program to its end and keep what it prints; keywords are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


_GUARD = "import subprocess, sys; sys.stdin.buffer.read(1) or subprocess.run(sys.argv[1:])"


@contextmanager
def ended_if_killed(command, **options):
    """Run a program, such as one that stops a service, if this process ends within the block.

    Ctrl-C makes pytest-xdist kill its workers, which then stop nothing of what their fixtures have started.
    Keywords are those of `subprocess.Popen`.
    """
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    try:
        yield
    finally:
        guard.communicate(b"over")
