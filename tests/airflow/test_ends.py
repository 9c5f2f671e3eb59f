"""How soon a triggerer sees that the process of its triggers has ended."""

import os
import signal
import time
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.execution_time.supervisor import WatchedSubprocess

from steptime.airflow.ends import see_ends_soon

pytestmark = pytest.mark.service


def lingers() -> None:
    """Be gone half a second after closing all that the parent could hear of."""
    os.closerange(0, 1024)
    time.sleep(0.5)
    os._exit(0)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # Airflow's own
def test_a_triggerer_sees_that_the_process_of_its_triggers_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    airflows: Any = WatchedSubprocess._service_subprocess
    monkeypatch.setattr(WatchedSubprocess, "_service_subprocess", airflows)  # put back afterwards
    see_ends_soon()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # also of the process: it ends by itself
    watched = WatchedSubprocess.start(id=uuid4(), target=lingers)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    asked = time.monotonic()
    watched.kill(escalation_delay=5, force=True)
    assert time.monotonic() - asked < 4, "it was seen only when the time for the signal was over"
    assert watched._exit_code == 0
    watched.stdin.close()
