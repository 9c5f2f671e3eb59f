"""Jobs are followed on a local cluster of the test's own, by a clock that the test sets."""

from types import SimpleNamespace

import pytest
from local_home import a_run, home, planned

from steptime.tracking import following, log_following, patience

__all__ = ["a_run", "home", "planned"]  # fixtures


class Clock:
    """What the modules that wait take for the time, in seconds."""

    now = 10_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time stands until the test sets it."""
    clock = Clock()
    for module in (following, log_following, patience):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
        )
    return clock
