"""The ledger of a test, on both kinds of database."""

from collections.abc import Callable

import pytest

from steptime.clusters.base import Installation
from steptime.results.models import Result
from steptime.runs.ledger import LedgerJob
from tests.results.conftest import postgresql, postgresql_url, store_url

__all__ = ["postgresql", "postgresql_url", "store_url"]  # fixtures

OURS = Installation(id="ours", address="http://airflow.example")


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store that the ledger is in."""
    monkeypatch.setenv("STEPTIME_STORE_URL", store_url)
    return store_url


@pytest.fixture
def ledger_job(make_result: Callable[..., Result]) -> Callable[..., LedgerJob]:
    """A job that is to be submitted; keywords are its fields."""

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
