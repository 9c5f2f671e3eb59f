"""What a drill has started is gone after it, though it does not end when it is asked."""

import signal
import subprocess

import psutil
import pytest

from drills.site import end_with_children

_DEAF = "trap '' TERM; sleep 600 & echo up; wait"


@pytest.mark.long
def test_what_does_not_end_in_time_is_killed_with_its_children() -> None:
    process = subprocess.Popen(["sh", "-c", _DEAF], stdout=subprocess.PIPE, text=True)  # noqa: S607
    assert process.stdout
    with process.stdout as output:
        assert output.readline() == "up\n"
    (child,) = psutil.Process(process.pid).children()

    end_with_children(process, grace_s=0.2)

    assert process.returncode == -signal.SIGKILL
    child.wait(10)
