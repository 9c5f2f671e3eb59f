"""A clock that the test sets, and the fixtures of runs, ledger and store."""

from types import SimpleNamespace

import pytest
from local_home import a_run, home, planned

from steptime.runs import following, log_following, patience
from tests.store.conftest import ledger_job, postgresql, postgresql_url, store, store_url

__all__ = [
    "a_run",
    "home",
    "ledger_job",
    "planned",
    "postgresql",
    "postgresql_url",
    "store",
    "store_url",
]  # fixtures


class Clock:
    """The time in seconds, as the modules that wait see it."""

    now = 10_000.0
    stepped = 0.0
    """The seconds by which the time of day was set forward."""


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still until the test sets it."""
    clock = Clock()
    for module in (following, log_following, patience):
        times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now + clock.stepped)
        monkeypatch.setattr(module, "time", times)
    return clock
