"""Fixtures of the ledger, on both kinds of database, and a clock that the test sets."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from local_home import a_run, home, planned

from steptime.clusters.base import Installation
from steptime.results.models import Result
from steptime.runs import following, log_following, patience
from steptime.runs.ledger import LedgerJob
from tests.results.conftest import postgresql, postgresql_url, store_url

__all__ = ["a_run", "home", "planned", "postgresql", "postgresql_url", "store_url"]  # fixtures

OURS = Installation(id="ours", address="http://airflow.example")


class Clock:
    """The time in seconds, as the modules that wait see it."""

    now = 10_000.0
    stepped = 0.0
    """The seconds by which the time of day was set forward."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that stands still until the test sets it."""
    clock = Clock()
    for module in (following, log_following, patience):
        times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now + clock.stepped)
        monkeypatch.setattr(module, "time", times)
    return clock


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the store that has the ledger."""
    monkeypatch.setenv("STEPTIME_STORE_URL", store_url)
    return store_url


@pytest.fixture
def ledger_job(make_result: Callable[..., Result]) -> Callable[..., LedgerJob]:
    """Return a function that makes a job that is not submitted yet; keywords are its fields."""

    def make(name: str = "job-1", **fields: object) -> LedgerJob:
        submitted = make_result(name).submitted
        return LedgerJob.model_validate(
            {
                "name": name,
                "installation_id": OURS.id,
                "installation_address": OURS.address,
                "dag_id": "llama31",
                "dag_run_id": "manual",
                "run_after": 100.0,
                "task_group": "performance",
                "map_index": 0,
                "cell": submitted.run.name,
                "attempt": 1,
                "max_tries": 2,
                "cluster": "eos",
                "account": None,
                "gpus": 2,
                "time_limit_s": 600,
                "run": submitted.run,
                "request": submitted.request,
                "made_by": submitted.made_by,
                "directory": submitted.job.directory,
                "log_path": submitted.job.log_path,
                "created_at": 1000.0,
                **fields,
            }
        )

    return make
