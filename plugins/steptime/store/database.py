"""Connections to the database of the metrics store, SQLite or PostgreSQL: one engine per process and address.

All functions are safe to call from several threads and processes. The first use of an empty database creates
the tables, and the first use of an older steptime's store adds what they lack.
"""

from __future__ import (
    annotations,  # SQLAlchemy 1.4, which Airflow 3.1 is released with, has no generic classes
)

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from sqlalchemy import Table, create_engine, event, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine, Result, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from steptime.errors import StoreUnavailable, SystemFailure, UserError, one_line
from steptime.store.schema import metadata, version
from steptime.waiting import duration, retrying

REVISION = "0003"
"""Revision of the schema. It is raised with each change of the tables."""

_LACKING = ("0001", "0002")
"""Older revisions that only lack tables, columns or indexes; a store of any other revision is refused."""

NAMES_AT_ONCE = 500
"""Most values in one query: databases limit the number of parameters."""

STORE_PATIENCE_S = 12 * 3600.0
"""How long a task waits for a store that does not answer: the default of a cluster's `patience_h`."""

StoreConnection = Connection
"""An open connection to the metrics store: a name for annotations outside of this package."""

Done = TypeVar("Done")
Work = TypeVar("Work", bound=Callable[..., Any])

_LONGEST_PAUSE_S = 60
_WAIT_S = 30  # for another writer; one publishing takes some 10 ms
_CONNECT_WITHIN_S = 10
_DEAD_SERVER = {
    **{"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3},
    "tcp_user_timeout": 60_000,  # ms
}
"""TCP settings that detect a dead PostgreSQL server within about a minute; the kernel's defaults take two
hours."""
_MISCONFIGURED = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist"),
    *("unable to open", "readonly database"),
)
"""Parts of the messages of errors that waiting does not resolve."""
_CREATION_LOCK = 0x7374657074696D65  # key of PostgreSQL's advisory lock: "steptime" in ASCII
_ADVICE = {
    "locked": "another process has been writing to it for long: try again",
    "file lock": "another process has been writing to it for long: try again",
    "disk is full": "free some space and try again: nothing of this run was stored",
    "No space left": "free some space and try again: nothing of this run was stored",
    "readonly": "make the file and its folder writable",
    "unable to open": "make its folder readable and writable",
    "not a database": "move the file away, or name another in STEPTIME_STORE_URL",
    "Permission denied": "make its folder readable and writable",
    "resolve host": "check that PostgreSQL runs and that STEPTIME_STORE_URL is right",
    "connection": "check that PostgreSQL runs and that STEPTIME_STORE_URL is right",
}

# A forked process must not use its parent's connections, hence the process id in the key.
_engines: dict[tuple[int, str], Engine] = {}
_prepared: set[tuple[int, str]] = set()


_reading: ContextVar[tuple[str, Connection] | None] = ContextVar("reading", default=None)
"""The address and the connection of `one_read`, within it."""


@contextmanager
def read_connection(url: str) -> Iterator[Connection]:
    """Open a connection for reading, or give that of `one_read`.

    Raises SystemFailure if the database fails (StoreUnavailable if waiting may help), UserError if `url` is
    not a database address or the store has the schema of another revision.
    """
    shared = _reading.get()
    with _named_failures(url):
        if shared is not None and shared[0] == url:
            yield shared[1]
        else:
            with _engine(url).connect() as connection:
                yield connection


@contextmanager
def one_read(url: str) -> Iterator[None]:
    """Let all that is read within come from one connection: a SQLite file as it is at the first of it.

    Raises the same errors as `read_connection`.
    """
    with read_connection(url) as connection:
        outside = _reading.set((url, connection))
        try:
            yield
        finally:
            _reading.reset(outside)


@contextmanager
def write_transaction(url: str) -> Iterator[Connection]:
    """Open a transaction: committed at the end, rolled back on an exception.

    Raises the same errors as `read_connection`.
    """
    with _named_failures(url), _for_writing(_engine(url)).begin() as connection:
        yield connection


def wait_for_store(
    work: Callable[[], Done], warn: Callable[[str], None], patience_s: float | None = None
) -> Done:
    """Call `work` until the store answers, with growing pauses between calls; return its result.

    `work` must be idempotent. Each failed call is reported to `warn`. Raises StoreUnavailable after
    `patience_s` seconds, by default STORE_PATIENCE_S.
    """
    return while_unavailable(warn, patience_s)(work)()


def while_unavailable(warn: Callable[[str], None], patience_s: float | None) -> Callable[[Work], Work]:
    """Return a decorator for a function or coroutine function, which `wait_for_store` describes."""
    patience_s = STORE_PATIENCE_S if patience_s is None else patience_s
    return retrying(
        StoreUnavailable,
        longest_s=_LONGEST_PAUSE_S,
        timeout_s=patience_s,
        before_sleep=lambda state: warn(
            f"{state.outcome and state.outcome.exception()}. The store is asked again in "
            f"{state.upcoming_sleep:.0f} s, and for up to {duration(patience_s)} in all"
        ),
    )


def dicts(result: Result[Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a result as dicts by column name."""
    names = tuple(result.keys())
    return (dict(zip(names, row, strict=True)) for row in result)


def insert(dialect: str, table: Table) -> Any:
    """Return an INSERT statement for `sqlite` or `postgresql` to which ON CONFLICT can be added."""
    kind = sqlite if dialect == "sqlite" else postgresql
    return kind.insert(table)


def lock_series(connection: Connection, key: Mapping[str, Any]) -> None:
    """Lock the runs with these column values until the transaction ends.

    Concurrent writers of a series take turns, so the last one sees what all others wrote.
    """
    lock(connection, json.dumps(dict(key)))


def lock(connection: Connection, name: str) -> None:
    """Take a named lock until the transaction ends; not needed in SQLite, which has one writer at a time."""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")


def database_exists(url: str) -> bool:
    """Return whether the SQLite file exists (reading would create it); always True for PostgreSQL."""
    parsed = _parse(url)
    return parsed.get_backend_name() != "sqlite" or Path(str(parsed.database)).exists()


def shown_address(url: str) -> str:
    """Return the path of the SQLite file, or PostgreSQL's host, port and database; no user or password."""
    return _shown(_parse(url))


def close_engines() -> None:
    """Close this process's database connections; the next use opens new ones."""
    for key in [key for key in _engines if key[0] == os.getpid()]:
        _engines.pop(key).dispose()
        _prepared.discard(key)


def _shown(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    # The query may name a host as well as a password.
    host = url.host or next(iter(url.normalized_query.get("host", ())), "")
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{host}{port}/{url.database or ''}"


def _engine(url: str) -> Engine:
    key = (os.getpid(), url)
    engine = _engines.get(key)
    if engine is None:
        # Threads may both come here: the first to store its engine wins, and none has connected yet.
        engine = _engines.setdefault(key, _create_engine(_parse(url)))
    if key not in _prepared:
        _prepare_tables(engine)
        _prepared.add(key)
    return engine


def _parse(url: str) -> URL:
    valid = "sqlite:////path/to/steptime.db or postgresql://user:password@host/database"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise UserError(f"STEPTIME_STORE_URL is not a database address: write one like {valid}.") from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise UserError(
            f"STEPTIME_STORE_URL names a '{parsed.drivername}' database, which is not supported: write an "
            f"address like {valid}."
        )
    if "@" in (parsed.host or ""):
        raise UserError("STEPTIME_STORE_URL has more than one @: write one in the password as %40.")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UserError(
            f"STEPTIME_STORE_URL names no file, so results would be lost: write an address like {valid}."
        )
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_absolute():
        raise UserError(
            f"STEPTIME_STORE_URL has the relative path '{parsed.database}', which is another file in every "
            f"folder that steptime is started in: write an absolute path, as in {valid.partition(' ')[0]}."
        )
    return parsed


def _create_engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return create_engine(
            url.set(drivername="postgresql+psycopg2"),
            future=True,
            pool_pre_ping=True,
            connect_args={"connect_timeout": _CONNECT_WITHIN_S, **_DEAD_SERVER},
        )
    # SQLite opens in 0.1 ms, and a connection that is closed after use survives neither a fork nor a thread.
    engine = create_engine(url, future=True, poolclass=NullPool, connect_args={"timeout": _WAIT_S})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # begin transactions ourselves, so that they cover CREATE TABLE too
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if begin := connection.get_execution_options().get("sqlite_begin", "BEGIN"):
            connection.exec_driver_sql(begin)

    return engine


def _for_writing(engine: Engine) -> Engine:
    """Return an engine whose SQLite transactions take the write lock when they begin.

    A transaction waits for the lock there. One that begins as a reader fails if its first write has to wait.
    """
    return engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")


def _prepare_tables(engine: Engine) -> None:
    """Make the tables of an empty database, or add what those of an older revision lack.

    Raises UserError for a store of another revision.
    """
    with engine.connect() as connection:
        revision = _revision(connection)
    if revision is None or revision in _LACKING:
        with _only_one(engine), _for_writing(engine).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
            revision = _revision(connection)
            if revision is None:
                _create(connection)
                return
            if revision in _LACKING:
                _add_what_is_lacking(connection)
                return
    if revision != REVISION:
        raise UserError(
            f"the metrics store {_shown(engine.url)} has the schema of revision {one_line(revision)}, and "
            f"this steptime needs {REVISION}: name a new store in STEPTIME_STORE_URL, or use the steptime "
            "that wrote this one."
        )


def _revision(connection: Connection) -> str | None:
    """Return the revision of the schema; None if the database has no store."""
    if not inspect(connection).has_table(version.name):
        return None
    return connection.scalar(select(version.c.version_num))


@contextmanager
def _only_one(engine: Engine) -> Iterator[None]:
    """Let only one process create the tables in a SQLite file; PostgreSQL has its own lock for that."""
    if engine.url.get_backend_name() != "sqlite":
        yield
        return
    path = Path(str(engine.url.database))
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_WAIT_S):
        # The file remembers it: with a write-ahead log, readers and the one writer do not block each other.
        with engine.execution_options(sqlite_begin=None).connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        yield


def _create(connection: Connection) -> None:
    metadata.create_all(connection)
    connection.execute(version.insert().values(version_num=REVISION))


def _add_what_is_lacking(connection: Connection) -> None:
    """Add tables, columns and indexes of today's schema to a store of an older one; its rows stay."""
    metadata.create_all(connection)
    inspector = inspect(connection)
    for table in metadata.sorted_tables:
        present = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    connection.execute(version.update().values(version_num=REVISION))


@contextmanager
def _named_failures(url: str) -> Iterator[None]:
    """Raise errors of databases and file systems as SystemFailure, in one sentence without the password.

    StoreUnavailable if waiting may help. The folder of a SQLite file is created.
    """
    parsed = _parse(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        yield
    except (SQLAlchemyError, OSError) as error:  # filelock's time-out is an OSError
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        advice = next(
            (advice for words, advice in _ADVICE.items() if words in reason),
            "check the database and its disk",
        )
        for secret in (parsed.password, *parsed.normalized_query.get("password", ())):
            reason = reason.replace(str(secret), "***") if secret else reason
        is_away = not any(words in reason for words in _MISCONFIGURED) and (
            isinstance(error, (OperationalError, InterfaceError))
            or (isinstance(error, DBAPIError) and error.connection_invalidated)
            or "read-only transaction" in reason  # PostgreSQL's standby, before a failover is complete
        )
        failure = StoreUnavailable if is_away else SystemFailure
        raise failure(f"the metrics store {_shown(parsed)} failed ({reason}): {advice}") from error
