"""A real PostgreSQL for the store's tests: a temporary server of their own, without network."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgresql_service import PostgreSQL, started_postgresql

from steptime.results.database import close_engines


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """Yield a running server."""
    with started_postgresql() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> Iterator[str]:
    """Yield the address of an empty database, always the same one, as creating another takes far longer."""
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    yield postgresql.url
    close_engines()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store; every test that takes it runs on both kinds of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'steptime.db'}"
    return str(request.getfixturevalue("postgresql_url"))
