"""A real PostgreSQL, a temporary server without network, and jobs of the ledger."""

import psycopg
import pytest
from postgresql_service import started_postgresql

from steptime.clusters.base import Installation
from steptime.store.database import close_engines
from steptime.store.ledger import LedgerJob

OURS = Installation(id="ours", address="http://airflow.example")


@pytest.fixture(scope="session")
def postgresql():
    """Yield a running server."""
    with started_postgresql() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql):
    """Yield the address of an empty database, always the same one, as creating another takes far longer."""
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    yield postgresql.url
    close_engines()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """Return the address of an empty store; every test that takes it runs on both kinds of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'steptime.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def store(store_url, monkeypatch):
    """Return the address of the store that has the ledger."""
    monkeypatch.setenv("STEPTIME_STORE_URL", store_url)
    return store_url


@pytest.fixture
def ledger_job(make_result):
    """Return a function that makes a job that is not submitted yet; keywords are its fields."""

    def make(name="job-1", **fields):
        submitted = make_result(name).submitted
        return LedgerJob.model_validate(
            {
                "name": name,
                "installation_id": OURS.id,
                "installation_address": OURS.address,
                "dag_id": "steptime_llama3.1-25.04",
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
                "provenance": submitted.provenance,
                "directory": submitted.job.directory,
                "log_path": submitted.job.log_path,
                "created_at": 1000.0,
                **fields,
            }
        )

    return make
