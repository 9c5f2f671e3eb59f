"""What a fixture has started ends also if the process of its tests is killed, as pytest-xdist's by Ctrl-C."""

import os
import signal
import time

import pytest
from called import ended_if_killed


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_service_is_ended_if_its_process_is_killed_and_only_then(tmp_path, is_killed):
    ended = tmp_path / "ended"
    child = os.fork()
    if not child:
        with ended_if_killed(["touch", ended]):
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)

    if is_killed:
        deadline = time.monotonic() + 60
        while not ended.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert ended.exists() == is_killed
