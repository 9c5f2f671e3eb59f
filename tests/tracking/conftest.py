"""Jobs are followed on a local cluster of the test's own, by a clock that the test sets."""

from types import SimpleNamespace

import pytest
from local_home import a_run, home, planned

from steptime.tracking import following, log_following, patience

__all__ = ["a_run", "home", "planned"]  # fixtures


class Clock:
    """What the modules that wait take for the time, in seconds."""

    now = 10_000.0
    stepped = 0.0
    """By how much the time of day was set forward."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time stands until the test sets it."""
    clock = Clock()
    for module in (following, log_following, patience):
        times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now + clock.stepped)
        monkeypatch.setattr(module, "time", times)
    return clock
