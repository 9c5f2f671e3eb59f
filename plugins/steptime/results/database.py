"""Access to the database of the metrics store: one engine per process and address, at the newest schema.

SQLite and PostgreSQL. Safe to call from many threads and processes at once, on an empty database too.
"""

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from steptime.errors import SystemFailure, UserError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, Result, Select, Table

REVISION = max(file.name[1:5] for file in Path(__file__).with_name("migrations").glob("versions/r*.py"))
"""The schema's newest revision, of `r0017_made_sha256.py` 0017: a store that has it needs no migration."""

VERSION_TABLE = "steptime_store_version"
"""Where Alembic notes the revision; named so that the store may share a database with Airflow's tables."""

NAMES_AT_ONCE = 500
"""That one query asks for: databases limit how many values it may have."""

_WAIT_S = 30  # for another writer; one publishing takes some 10 ms
_CONNECT_WITHIN_S = 10
_PLAIN_FILE = re.compile(r"sqlite:///(/[^?#]+)")
_MIGRATION_LOCK = 0x7374657074696D65  # key of PostgreSQL's advisory lock: "steptime" in ASCII
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
_engines: dict[tuple[int, str], "Engine"] = {}
_migrated: set[tuple[int, str]] = set()


@contextmanager
def read_connection(url: str) -> "Iterator[Connection]":
    """Open a connection to read with.

    Raises SystemFailure if the database fails, UserError if the address is none.
    """
    with _named_failures(url), _engine(url).connect() as connection:
        yield connection


@contextmanager
def write_transaction(url: str) -> "Iterator[Connection]":
    """Open a transaction: committed at the end, undone whole by an exception. Raises as `read_connection`."""
    with _named_failures(url), _for_writing(_engine(url)).begin() as connection:
        yield connection


def read_rows(url: str, query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a query in SQL with values named as `:gpus`. Raises as `read_connection`.

    Of an SQLite file at the newest revision they are read without SQLAlchemy: to import that takes a third of
    a plan's time.
    """
    if plain := _PLAIN_FILE.fullmatch(url):
        path = f"file:{quote(plain[1])}?mode=ro"
        # What fails in here fails below, too, where the failure gets its sentence.
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(path, uri=True, timeout=_WAIT_S)) as connection,
        ):
            if connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() == (REVISION,):  # noqa: S608
                return connection.execute(query, values).fetchall()
    from sqlalchemy import text

    with read_connection(url) as reading:
        return [tuple(row) for row in reading.execute(text(query), values)]


def dicts(result: "Result[Any]") -> Iterator[dict[str, Any]]:
    """Return the rows as dicts by column name, in half the time of SQLAlchemy's own mappings."""
    names = tuple(result.keys())
    return (dict(zip(names, row, strict=True)) for row in result)


def insert(dialect: str, table: "Table") -> Any:
    """Return an INSERT that handles conflicts, which SQLAlchemy has for each kind of database apart."""
    from sqlalchemy.dialects import postgresql, sqlite

    kind = sqlite if dialect == "sqlite" else postgresql
    return kind.insert(table)


def load(
    connection: "Connection", table: "Table", names: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write many rows, of the values of these columns each, by the bulk load of the database's own driver.

    It takes a third of the time of SQLAlchemy's INSERT.
    """
    from sqlalchemy.exc import DBAPIError

    columns = ", ".join(f'"{name}"' for name in names)
    cursor: Any = connection.connection.cursor()
    try:
        if connection.dialect.name == "postgresql":
            with cursor.copy(f'COPY "{table.name}" ({columns}) FROM STDIN') as copy:
                for row in rows:
                    copy.write_row(row)
        else:
            values = ", ".join("?" for _ in names)
            cursor.executemany(f'INSERT INTO "{table.name}" ({columns}) VALUES ({values})', rows)  # noqa: S608
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(None, None, error) from error
    finally:
        cursor.close()


def lock_series(connection: "Connection", key: Mapping[str, Any]) -> None:
    """Until the transaction ends, let nobody else lock what has these values of the columns of `runs`.

    So the last writer of several sees what all have written. SQLite has one writer anyway.
    """
    if connection.dialect.name == "postgresql":
        content = json.dumps(dict(key))
        number = int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], signed=True)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")


class ReadStore(Protocol):
    """What is needed of a store by what it reads by itself, and so cannot import it."""

    url: str
    dags: frozenset[str] | None

    def readable(self, query: "Select[*tuple[Any, ...]]") -> "Select[*tuple[Any, ...]]":
        """Return a query of runs without those that the reader may not read."""
        ...

    def of_each(self, job_names: Sequence[str], query: "Select[*tuple[Any, ...]]") -> Iterator[Sequence[Any]]:
        """Return the rows that a query of runs has of these jobs, as far as the reader may read them."""
        ...


def exists(url: str) -> bool:
    """Return whether anything was written to an SQLite file yet; True for PostgreSQL.

    To read from a file that is not there would already create it.
    """
    if plain := _PLAIN_FILE.fullmatch(url):
        return Path(plain[1]).exists()  # without SQLAlchemy, as in `read_rows`
    parsed = _parse(url)
    return parsed.get_backend_name() != "sqlite" or Path(str(parsed.database)).exists()


def close_engines() -> None:
    """Close this process's connections; the next use opens them anew."""
    for key in [key for key in _engines if key[0] == os.getpid()]:
        _engines.pop(key).dispose()
        _migrated.discard(key)


def _engine(url: str) -> "Engine":
    key = (os.getpid(), url)
    engine = _engines.get(key)
    if engine is None:
        # Threads may both come here: the first to store its engine wins, and none has connected yet.
        engine = _engines.setdefault(key, _create_engine(_parse(url)))
    if key not in _migrated:
        _migrate(engine)
        _migrated.add(key)
    return engine


def _parse(url: str) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    valid = "sqlite:////path/to/steptime.db or postgresql://user:password@host/database"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise UserError(f"STEPTIME_STORE_URL is no database address: it must be like {valid}.") from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise UserError(
            f"STEPTIME_STORE_URL names a database of kind '{parsed.drivername}': it must be like {valid}."
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UserError(
            f"STEPTIME_STORE_URL names no file, so results would be lost: it must be like {valid}."
        )
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_absolute():
        raise UserError(
            f"STEPTIME_STORE_URL names '{parsed.database}', another file in every folder: "
            f"write the whole path, as in {valid.partition(' ')[0]}."
        )
    return parsed


def _create_engine(url: "URL") -> "Engine":
    from sqlalchemy import NullPool, create_engine, event

    if url.get_backend_name() == "postgresql":
        return create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={"connect_timeout": _CONNECT_WITHIN_S},
        )
    # SQLite opens in 0.1 ms, and a connection that is closed after use survives neither a fork nor a thread.
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _WAIT_S})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # begin transactions ourselves, so that they cover CREATE TABLE too
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: "Connection") -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))

    return engine


def _for_writing(engine: "Engine") -> "Engine":
    """With SQLite, wait for other writers at the start: a reader that turns writer would fail at once."""
    return engine.execution_options(sqlite_begin="BEGIN IMMEDIATE")


def _migrate(engine: "Engine") -> None:
    with engine.connect() as connection:
        if _revision(connection) == REVISION:
            return
    with _only_one(engine), _for_writing(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        found = _revision(connection)
        if found is None:
            _create(connection)
        elif found != REVISION:
            _upgrade(connection)


def _revision(connection: "Connection") -> str | None:
    """The schema's revision; None for a database without a store."""
    from sqlalchemy import inspect, select

    # Without Alembic, which takes 0.4 s to import and is only needed for a store of an earlier revision.
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(select(_version().c.version_num))


def _version() -> "Table":
    """The table with the revision, as Alembic makes it."""
    from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, String, Table

    key = PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")
    return Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), nullable=False), key)


@contextmanager
def _only_one(engine: "Engine") -> Iterator[None]:
    """Let one process at a time change the schema of an SQLite database; PostgreSQL has a lock for that."""
    if engine.url.get_backend_name() != "sqlite":
        yield
        return
    from filelock import FileLock

    path = Path(str(engine.url.database))
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_WAIT_S):
        # Kept in the file: from now on readers and the one writer do not wait for each other.
        with closing(sqlite3.connect(path, timeout=_WAIT_S)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        yield


def _create(connection: "Connection") -> None:
    """Make the newest schema at once: through all revisions, with Alembic, it takes four times as long."""
    from steptime.results import schema

    schema.metadata.create_all(connection, checkfirst=False)
    version = _version()
    version.create(connection, checkfirst=False)
    connection.execute(version.insert().values(version_num=REVISION))


def _upgrade(connection: "Connection") -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SystemFailure(
            f"the metrics store cannot be brought up to date ({str(error).rstrip('.')}): if a newer steptime "
            "wrote it, update this one"
        ) from error


@contextmanager
def _named_failures(url: str) -> Iterator[None]:
    """Turn errors of databases and file systems into one sentence, without the password."""
    from sqlalchemy.exc import SQLAlchemyError

    parsed = _parse(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:  # the last: of a lock that is not given, too
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        advice = next(
            (advice for words, advice in _ADVICE.items() if words in reason),
            "check the database and its disk",
        )
        address = parsed.render_as_string()  # without the password
        raise SystemFailure(f"the metrics store {address} failed ({reason}): {advice}") from error
