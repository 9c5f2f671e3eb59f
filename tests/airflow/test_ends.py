"""How soon a triggerer sees that the process of its triggers has ended."""

import os
import signal
import time
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.execution_time.supervisor import WatchedSubprocess

from steptime.airflow.ends import see_ends_soon


def test_only_a_stop_is_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each other wait Airflow asks its database for triggers: once a second beside a training."""
    waits: list[float] = []

    def serve(
        watched: object,
        max_wait_time: float,
        raise_on_timeout: bool = False,
        expect_signal: int | None = None,
    ) -> None:
        waits.append(max_wait_time)

    monkeypatch.setattr(WatchedSubprocess, "_service_subprocess", serve)
    see_ends_soon()
    served: Any = WatchedSubprocess._service_subprocess
    served(None, 1)
    served(None, max_wait_time=10, raise_on_timeout=False, expect_signal=signal.SIGINT)
    assert waits == [1, 0.2]


def test_an_airflow_that_waits_otherwise_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(watched: object, limit_s: float) -> None:
        pass

    monkeypatch.setattr(WatchedSubprocess, "_service_subprocess", serve)
    with pytest.raises(TypeError, match="limit_s"):
        see_ends_soon()
    assert WatchedSubprocess._service_subprocess is serve


def lingers() -> None:
    """Be gone half a second after closing all that the parent could hear of."""
    os.closerange(0, 1024)
    time.sleep(0.5)
    os._exit(0)


@pytest.mark.service
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
