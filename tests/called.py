"""Call the program in this process, as a shell would."""

import sys

import pytest

from steptime.cli import main


def steptime(*arguments: str) -> int | str | None:
    """Return the exit code of `steptime` with these arguments."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["steptime", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a refused command prints: it is on stderr, and the exit code is 1."""
    code = steptime(*arguments)
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (1, "", 1)
    assert printed.err.startswith("steptime: ")
    return printed.err
