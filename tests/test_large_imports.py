"""Modules that are imported without being run, and without a search for garbage."""

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptime.large_imports import put_off, uncollected


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which the module `seldom.used` notes that it has run."""
    noted = tmp_path / "runs"
    package = tmp_path / "seldom"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "used.py").write_text(
        f"with open({str(noted)!r}, 'a') as file:\n    file.write('once ')\nFOUR = 4\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield noted
    for name in ("seldom", "seldom.used"):
        sys.modules.pop(name, None)


def test_a_module_that_is_put_off_runs_once_when_it_is_used(runs: Path) -> None:
    with put_off("seldom", "seldom.used"):
        used = importlib.import_module("seldom.used")
    assert not runs.exists()

    assert used.FOUR == 4
    assert importlib.import_module("seldom.used").FOUR == 4
    assert runs.read_text() == "once "


def test_nothing_is_put_off_afterwards(runs: Path) -> None:
    with put_off("seldom", "seldom.used"):
        pass

    importlib.import_module("seldom.used")

    assert runs.exists()


def test_what_is_not_installed_cannot_be_imported() -> None:
    with put_off("nobody_has_this"), pytest.raises(ModuleNotFoundError, match="nobody_has_this"):
        importlib.import_module("nobody_has_this")


def test_nothing_is_searched_for_garbage_meanwhile_and_what_is_there_not_later() -> None:
    before = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
            imported = [[] for _ in range(3)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
        assert not any(one is imported for one in gc.get_objects())
    finally:
        gc.unfreeze()


def test_where_searches_were_off_they_stay_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
