"""What tests need again and again is made once in a process, and no disk is waited for.

`NO_SHORT_CUTS=1 .venv/bin/pytest …` does without, as `make mutants` does, which asks what calls a function.
"""

import functools
import os
import sqlite3
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import certifi
import pytest
from sqlalchemy import URL, Engine, event

from steptime.recipes import workloads
from steptime.results import database, row_checks

NO_SHORT_CUTS = "NO_SHORT_CUTS"
_migrate, _create, _create_engine = database._migrate, database._create, database._create_engine
_evaluate = row_checks._evaluate


@pytest.fixture(scope="session", autouse=True)
def workloads_read_once() -> Iterator[None]:
    """Let a workload that was read be read from then on, in whichever folder a test has it.

    As long as its text stays, and that of what it is held to. One that is wrong is read each time.
    """
    held_to = (workloads.gpus_file, workloads.flops_file, workloads.bridge_file)
    load, is_default = _once_by_text(workloads._load, held_to), _once_by_text(workloads._is_default, ())
    yield from _short_cuts(workloads, _load=load, _is_default=is_default)


def _short_cuts(module: Any, **instead: Callable[..., Any]) -> Iterator[None]:
    """Have these in place of what the module has by their names, unless tests are to do without."""
    with pytest.MonkeyPatch.context() as patched:
        for name, function in instead.items() if NO_SHORT_CUTS not in os.environ else ():
            patched.setattr(module, name, function)
        yield


def _once_by_text(read: Callable[..., Any], held_to: Sequence[Callable[[], Path]]) -> Callable[..., Any]:
    """A reader of a file that reads a text once; what it raises is not kept."""
    kept: dict[tuple[str, ...], Any] = {}

    @functools.lru_cache(maxsize=256)
    def read_once(path: Path, *states: Any) -> Any:
        files = (path, *(file() for file in held_to))
        texts = (path.name, *(file.read_text(encoding="utf-8") for file in files))
        if texts not in kept:
            kept[texts] = read(path, *states)
        return kept[texts]

    return read_once


@pytest.fixture(scope="session", autouse=True)
def rows_judged_once() -> Iterator[None]:
    """Let Great Expectations judge a table by the same rules once: each time takes it tenths of a second."""
    kept: dict[tuple[str, str], dict[str, list[Any]]] = {}

    def evaluate(run: Any, steps: Any, rules: Any) -> dict[str, list[Any]]:
        asked = repr(row_checks._table(run, steps).to_dict("list")), repr(rules)
        if asked not in kept:
            kept[asked] = _evaluate(run, steps, rules)
        return {name: list(found) for name, found in kept[asked].items()}

    yield from _short_cuts(row_checks, _evaluate=evaluate)


@pytest.fixture
def rows_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how Great Expectations is used: it judges each time."""
    monkeypatch.setattr(row_checks, "_evaluate", _evaluate)


@pytest.fixture(scope="session", autouse=True)
def stores_copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let a new store of SQLite begin as a copy of an empty one, which was made as any is."""
    empty: list[bytes] = []

    def migrate(engine: Engine) -> None:
        path, sqlite = Path(str(engine.url.database)), engine.url.get_backend_name() == "sqlite"
        if sqlite and not path.exists() and database._create is _create:  # else a test makes an earlier one
            if not empty:
                folder = tmp_path_factory.mktemp("empty-store")
                _migrate(database._create_engine(database._parse(f"sqlite:///{folder / 's.db'}")))
                empty.append((folder / "s.db").read_bytes())
            copy = path.with_name(f".{path.name}.copy-{os.getpid()}-{os.urandom(4).hex()}")
            copy.write_bytes(empty[0])
            with suppress(FileExistsError):  # another thread or process was first
                path.hardlink_to(copy)
            copy.unlink()
        _migrate(engine)

    yield from _short_cuts(database, _migrate=migrate)


class _ByKind(dict[tuple[Any, ...], Any]):
    """What SQLAlchemy keeps by dialect, kept by its name instead: each engine has a dialect of its own."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """Let all stores of a kind share the SQL that SQLAlchemy makes of a statement.

    It keeps that for one engine. Each test has an engine of its own, and made some thirty anew.
    """
    compiled = _ByKind()

    def create_engine(url: URL) -> Engine:
        engine = _create_engine(url)
        engine.update_execution_options(compiled_cache=compiled)
        return engine

    yield from _short_cuts(database, _create_engine=create_engine)


@pytest.fixture
def stores_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how a store is made: none is a copy."""
    monkeypatch.setattr(database, "_migrate", _migrate)


@pytest.fixture(scope="session", autouse=True)
def authorities_read_once() -> Iterator[None]:
    """Let clients of HTTP share the certificates that a process trusts: each read them for 20 ms."""
    make = ssl.create_default_context
    shared = functools.cache(partial(make, cafile=certifi.where()))

    def context(*purpose: Any, **told: Any) -> ssl.SSLContext:
        return make(*purpose, **told) if purpose or told != {"cafile": certifi.where()} else shared()

    yield from _short_cuts(ssl, create_default_context=context)


@pytest.fixture(scope="session", autouse=True)
def disks_not_waited_for() -> Iterator[None]:
    """Let SQLite not wait until the disk has it: what a test has written survives it, but no power cut."""

    def prepare(connection: Any, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", prepare)
    yield
    event.remove(Engine, "connect", prepare)
