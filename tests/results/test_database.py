"""The database below the metrics store: its schema, its indices, and what goes wrong with it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from steptime.errors import SystemFailure, UserError
from steptime.results import database, migrations, schema
from steptime.results.models import Result
from steptime.results.store import Store

MakeResult = Callable[..., Result]


def test_the_migrations_make_the_schema(store_url: str) -> None:
    Store(store_url).results()

    with database.read_connection(store_url) as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, schema.metadata) == []
        # What Alembic does not compare.
        found = sqlalchemy.MetaData()
        found.reflect(connection)
        assert {name: keys_of(found.tables[name]) for name in schema.metadata.tables} == {
            name: keys_of(table) for name, table in schema.metadata.tables.items()
        }
        assert context.get_current_revision() == schema.REVISION


def keys_of(table: sqlalchemy.Table) -> list[tuple[object, ...]]:
    """Its primary key, and what becomes of its rows as others are deleted."""
    primary = [(table.primary_key.name, *(column.name for column in table.primary_key.columns))]
    foreign = [
        (key.name, *key.column_keys, key.referred_table.name, key.ondelete)
        for key in table.foreign_key_constraints
    ]
    return [*primary, *sorted(foreign, key=str)]


def test_the_newest_revision_is_the_one_the_schema_names() -> None:
    scripts = ScriptDirectory(str(Path(str(migrations.__file__)).parent))

    assert scripts.get_heads() == [schema.REVISION]


def test_a_store_of_a_newer_steptime_is_left_alone(store_url: str, make_result: MakeResult) -> None:
    Store(store_url).publish(make_result())
    with database.write_transaction(store_url) as connection:
        connection.execute(sqlalchemy.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))  # noqa: S608
    database.close_engines()

    with pytest.raises(SystemFailure, match=r"cannot be brought up to date .*9999.* update this one"):
        Store(store_url).results()


def test_a_failed_migration_leaves_no_table(
    store_url: str, monkeypatch: pytest.MonkeyPatch, make_result: MakeResult
) -> None:
    upgrade = database._upgrade

    def upgrade_and_fail(connection: sqlalchemy.Connection) -> None:
        upgrade(connection)
        raise OSError("the machine failed")

    with monkeypatch.context() as patched:
        patched.setattr(database, "_upgrade", upgrade_and_fail)
        with pytest.raises(SystemFailure, match="the machine failed"):
            Store(store_url).results()

    assert Store(store_url).publish(make_result()), "the next one begins on an empty database"


def test_listing_uses_the_indices_and_stays_quick(
    tmp_path: Path, make_result: MakeResult, statements: list[tuple[str, Any]]
) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    store = Store(url)
    store.publish(make_result("job"))
    with database.write_transaction(url) as connection:
        (row,) = connection.execute(sqlalchemy.select(schema.runs)).mappings().all()
        rows = [
            {**row, "id": number, "job_name": f"job{number}", "dag_run_id": f"run{number // 5}"}
            for number in range(2, 10_001)
        ]
        connection.execute(schema.runs.insert(), rows)
    statements.clear()
    assert len(store.results()) == 10_000
    assert len(store.runs_of("llama31", "run7")) == 5
    store.choices()

    selects = [statement for statement in statements if "FROM runs" in statement[0]]
    assert len(selects) == 3, "one query for a listing, whatever its length"
    assert not any("steps " in statement for statement, _ in selects)
    with closing(sqlite3.connect(tmp_path / "s.db")) as plain:
        plans = [
            " ".join(step[3] for step in plain.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))
            for statement, parameters in selects[:2]
        ]
    assert "USING INDEX ix_runs_submitted_at" in plans[0]
    assert "USING INDEX ix_runs_dag_id_dag_run_id" in plans[1]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "is no database address"),
        ("mysql://host/db", "a database of kind 'mysql'"),
        ("sqlite://", "names no file, so results would be lost"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_an_address_that_cannot_be_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Store(url).results()


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    url = f"postgresql://ada:hunter2@/store?host={tmp_path}"

    with pytest.raises(SystemFailure, match=r"ada:\*\*\*@.*check that PostgreSQL runs") as failure:
        Store(url).results()
    assert "hunter2" not in str(failure.value)


def test_a_locked_store_is_a_failure_of_the_system(
    tmp_path: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_WAIT_S", 0.1)
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    store.publish(make_result())
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SystemFailure, match=r"database is locked.*another process.*try again"):
            store.publish(make_result("next"))
        assert len(store.results()) == 1, "reading goes on beside a writer"


def test_a_full_disk_leaves_the_store_as_it_was(
    tmp_path: Path, make_result: MakeResult, request: pytest.FixtureRequest
) -> None:
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    store.publish(make_result())

    def fill(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite raises it to what the file has

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", fill)
    request.addfinalizer(lambda: sqlalchemy.event.remove(sqlalchemy.Engine, "connect", fill))

    with pytest.raises(SystemFailure, match=r"disk is full.*free some space"):
        store.publish(make_result("big", max_steps=5000))
    assert [row["job_name"] for row in store.results()] == ["pretrain_llama3.1_tiny_fp32_2-1a2b3c4d"]


def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("These are notes, and more than a hundred bytes of them. " * 4)

    with pytest.raises(SystemFailure, match=r"file is not a database.*move the file away"):
        Store(f"sqlite:///{tmp_path / 'notes.db'}").results()
