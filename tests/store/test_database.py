"""The database below the metrics store: its schema, its indexes, and its failures."""

import socket
import sqlite3
from contextlib import closing

import psutil
import psycopg
import pytest
import sqlalchemy
import stored
from end_to_end.driving import wait_until

from steptime.errors import StoreUnavailable, SystemFailure, UserError
from steptime.store import database, schema
from steptime.store.run_queries import Store


@pytest.mark.parametrize("revision", ["0000", "0019"])
def test_a_store_of_another_revision_is_refused(store_url, make_result, revision):
    stored.write(Store(store_url), make_result())
    with database.write_transaction(store_url) as connection:
        connection.execute(
            sqlalchemy.text(f"UPDATE {schema.version.name} SET version_num = :it"),  # noqa: S608
            {"it": revision},
        )
    database.close_engines()

    with pytest.raises(
        UserError, match=rf"^the metrics store .* has the schema of revision {revision}, .* name a new store"
    ):
        Store(store_url).results()


def test_an_older_store_gets_what_it_lacks_and_keeps_its_rows(store_url, make_result):
    stored.write(Store(store_url), make_result(environment={"NCCL_ALGO": "Ring"}))
    before = Store(store_url).results()
    lacking = (
        ("incidents", "silenced_until", None),
        ("runs", "nvidia_driver", None),
        ("incidents", "state", "ix_incidents_state"),
    )
    with database.write_transaction(store_url) as connection:
        for table, column, index in lacking:
            if index is None:
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
            else:
                connection.exec_driver_sql(f"DROP INDEX {index}")
        connection.exec_driver_sql("DROP TABLE accepted_levels")
        connection.exec_driver_sql(f"UPDATE {schema.version.name} SET version_num = '0001'")  # noqa: S608
    database.close_engines()

    after = Store(store_url).results()

    assert after == [row | {"nvidia_driver": None} for row in before]
    with database.write_transaction(store_url) as connection:
        inspector = sqlalchemy.inspect(connection)
        for table in schema.metadata.sorted_tables:
            there = {column["name"] for column in inspector.get_columns(table.name)}
            assert there == {column.name for column in table.columns}
            indexes = {index["name"] for index in inspector.get_indexes(table.name)}
            assert indexes >= {index.name for index in table.indexes}
        assert database._revision(connection) == database.REVISION


def test_a_failed_creation_leaves_no_table(store_url, monkeypatch, make_result):
    create = database._create

    def create_and_fail(connection):
        create(connection)
        raise OSError("the machine failed")

    with monkeypatch.context() as patched:
        patched.setattr(database, "_create", create_and_fail)
        with pytest.raises(SystemFailure, match="the machine failed"):
            Store(store_url).results()

    assert stored.write(Store(store_url), make_result()), "the next one begins on an empty database"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "is not a database address"),
        ("mysql://host/db", "names a 'mysql' database, which is not supported"),
        ("sqlite:///results.db", "write an absolute path"),
        ("postgresql://ada:hunter@2@host/db", "more than one @: write one in the password as %40"),
    ],
)
def test_an_address_that_cannot_be_is_refused(url, sentence):
    with pytest.raises(UserError, match=sentence) as refused:
        Store(url).results()
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@/store?host=/nowhere",
        "postgresql:///store?user=ada&password=hunter2&host=/nowhere",
    ],
)
def test_a_server_that_is_not_there_is_named_without_the_password(url):

    with pytest.raises(
        SystemFailure, match=r"store postgresql://.*/store failed .*check that PostgreSQL runs"
    ) as failure:
        Store(url).results()
    assert "hunter2" not in str(failure.value)


def test_a_password_that_the_server_repeats_is_hidden(postgresql_url):
    with pytest.raises(SystemFailure, match=r'role "\*\*\*" does not exist') as failure:
        Store(f"{postgresql_url}&user=hunter2&password=hunter2").results()
    assert "hunter2" not in str(failure.value)


def test_a_database_that_the_server_lacks_is_not_waited_for(postgresql_url):
    with pytest.raises(SystemFailure, match='"nowhere" does not exist') as failure:
        Store(postgresql_url.replace("/postgres?", "/nowhere?")).results()
    assert not isinstance(failure.value, StoreUnavailable)


def test_a_locked_store_is_a_failure_of_the_system(tmp_path, make_result, monkeypatch):
    monkeypatch.setattr(database, "_WAIT_S", 0.1)
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    stored.write(store, make_result())
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SystemFailure, match=r"\(database is locked\).*another process.*try again"):
            stored.write(store, make_result("next"))
        assert len(store.results()) == 1, "reading goes on beside a writer"
        database.close_engines()
        assert len(store.results()) == 1, "and begins beside one"


def test_no_file_of_a_store_stays_open_after_its_use(tmp_path, make_result):
    """An open connection would be inherited by forks, and used by threads that SQLite refuses."""
    store = Store(f"sqlite:///{tmp_path / 'a' / 'folder' / 's.db'}")
    stored.write(store, make_result())
    assert len(store.results()) == 1
    assert not [file.path for file in psutil.Process().open_files() if str(tmp_path) in file.path]


def test_a_dead_server_is_noticed_within_a_minute(postgresql_url):
    with database.read_connection(postgresql_url) as connection:
        told = connection.connection.dbapi_connection.get_dsn_parameters()
    names = ("connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count")
    assert [int(told[name]) for name in names] == [10, 30, 10, 3], "in seconds, and a number of probes"
    assert int(told["tcp_user_timeout"]) == 60_000, "in milliseconds"


def test_connections_are_closed_and_made_anew(postgresql_url):
    """This includes connections to a server that was restarted."""

    def others(*, end=False):
        expression = "pg_terminate_backend(pid)" if end else "pid"
        with psycopg.connect(postgresql_url, autocommit=True) as connection:
            processes = connection.execute(
                f"SELECT {expression} FROM pg_stat_activity WHERE datname = current_database() "  # noqa: S608
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return len(processes.fetchall())

    store = Store(postgresql_url)
    assert store.results() == []
    assert others(end=True) == 1
    assert store.results() == [], "in place of the connection that was ended"
    database.close_engines()
    wait_until("the end of all connections", lambda: others() == 0)


@pytest.mark.long
def test_a_server_that_never_answers_is_given_up(monkeypatch, request):
    monkeypatch.setattr(database, "_CONNECT_WITHIN_S", 2)
    waits = []  # psycopg's own limit is 130 s

    def note(_dialect, _record, _arguments, options):
        waits.append(options.get("connect_timeout"))

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "do_connect", note)
    request.addfinalizer(lambda: sqlalchemy.event.remove(sqlalchemy.engine.Engine, "do_connect", note))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(SystemFailure, match="check that PostgreSQL runs"):
            Store(f"postgresql://ada@127.0.0.1:{port}/store?sslmode=disable").results()
    assert waits == [2]


def test_what_belongs_to_a_run_goes_with_it(store_url, make_result):
    stored.write(Store(store_url), make_result())
    belonging = [table for table in schema.metadata.sorted_tables if "run_id" in table.c]
    with database.write_transaction(store_url) as connection:

        def rows():
            return {table.name for table in belonging if connection.execute(table.select()).first()}

        assert rows() >= {"steps", "validations", "readings", "records"}
        connection.execute(schema.runs.delete())
        assert rows() == set()


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path, make_result, request):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    stored.write(store, make_result())

    def fill(connection, _record):
        connection.execute("PRAGMA max_page_count = 1")  # SQLite raises it to the file's size

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", fill)
    request.addfinalizer(lambda: sqlalchemy.event.remove(sqlalchemy.engine.Engine, "connect", fill))

    with pytest.raises(SystemFailure, match=r"disk is full.*free some space"):
        stored.write(store, make_result("big", max_steps=5000))
    assert [row["job_name"] for row in store.results()] == ["pretrain_llama3.1_tiny_fp32_2-1a2b3c4d"]


def test_a_file_that_is_no_store_is_left_alone(tmp_path):
    (tmp_path / "notes.db").write_text("These are notes, and more than a hundred bytes of them. " * 4)

    with pytest.raises(SystemFailure, match=r"file is not a database.*move the file away"):
        Store(f"sqlite:///{tmp_path / 'notes.db'}").results()


LOCKED = "another process has been writing to it for long: try again"
FULL = "free some space and try again: nothing of this run was stored"
CLOSED = "make its folder readable and writable"
SERVER = "check that PostgreSQL runs and that STEPTIME_STORE_URL is right"


@pytest.mark.parametrize(
    ("reason", "advice", "waits"),
    [
        ("database is locked", LOCKED, True),
        ("The file lock 'x' could not be acquired", LOCKED, True),
        ("database or disk is full", FULL, True),
        ("could not extend file: No space left on device", FULL, True),
        ("attempt to write a readonly database", "make the file and its folder writable", False),
        ("unable to open database file", CLOSED, False),
        ("file is not a database", "move the file away, or name another in STEPTIME_STORE_URL", True),
        ("Permission denied: 'x'", CLOSED, True),
        ('could not translate host name "x": could not resolve host', SERVER, True),
        ("connection refused", SERVER, True),
        ("password authentication failed for user x", "check the database and its disk", False),
        ("no password supplied", "check the database and its disk", False),
        ("no pg_hba.conf entry for host", "check the database and its disk", False),
        ('database "x" does not exist', "check the database and its disk", False),
        ("disk I/O error", "check the database and its disk", True),
    ],
)
def test_each_failure_has_its_advice_and_is_waited_for_if_that_may_help(tmp_path, reason, advice, waits):
    failed = sqlalchemy.exc.OperationalError("SELECT 1", {}, Exception(reason))
    with (
        pytest.raises(SystemFailure) as told,
        database.read_connection(f"sqlite:///{tmp_path / 's.db'}"),
    ):
        raise failed
    assert str(told.value).endswith(f" failed ({reason}): {advice}")
    assert isinstance(told.value, StoreUnavailable) is waits


def test_what_is_read_at_once_comes_from_one_connection(tmp_path, make_result):
    """In a SQLite file a run that is written meanwhile is not half seen; another store is read as ever."""
    stores = [Store(f"sqlite:///{tmp_path / name}.db") for name in ("read", "other")]
    for store in stores:
        stored.write(store, make_result("before"))
    with database.one_read(stores[0].url):
        assert stores[0].count() == 1
        for store in stores:
            stored.write(store, make_result("meanwhile"))
        with database.read_connection(stores[0].url) as one, database.read_connection(stores[0].url) as same:
            assert one is same
        assert [store.count() for store in stores] == [1, 2]
    assert [store.count() for store in stores] == [2, 2]
