"""Call `steptime` in this process as a shell would, and other programs in processes of their own."""

import shutil
import subprocess
import sys

import pytest

from steptime.cli import main


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
