"""Steps of old runs in Parquet files: read as before, moved once, and never lost."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from steptime import settings
from steptime.errors import SystemFailure, UserError
from steptime.results import archive, run_times, step_files
from steptime.results.database import read_connection
from steptime.results.models import Result
from steptime.results.step_files import MONTH_S, move_old_steps
from steptime.results.store import Store

MakeResult = Callable[..., Result]
NOW = 1.8e9
OLD, NEW = NOW - 7 * MONTH_S, NOW - 5 * MONTH_S


@pytest.fixture
def store(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_result: MakeResult) -> Store:
    """Two old runs and a new one, in a store of either kind."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    store = Store(store_url)
    for name, submitted_at in (("old-1", OLD), ("old-2", OLD + 60), ("new", NEW)):
        store.publish(make_result(name, submitted_at=submitted_at))
    return store


def rows_left(store: Store) -> int:
    with read_connection(store.url) as connection:
        return int(connection.scalar(text("SELECT count(*) FROM steps")) or 0)


def files() -> list[Path]:
    return sorted(settings.step_files_dir().iterdir())


def seen(store: Store) -> Mapping[str, Any]:
    """All that readers get of steps."""
    names = ["old-1", "old-2", "new"]
    times = store.step_times(names)
    key = {"workload": store.run("new")["workload"]}
    return {"times": times, "expected": run_times.latest(store.url, key, 9)} | {
        n: store.steps(n) for n in names
    }


def test_steps_that_were_moved_are_read_as_before(store: Store) -> None:
    before, rows = seen(store), rows_left(store)
    assert move_old_steps(store, months=6, now=NOW) == 2
    assert rows_left(store) == rows / 3
    assert seen(store) == before
    assert len(files()) == 1


def test_what_was_moved_is_not_moved_again(store: Store) -> None:
    move_old_steps(store, months=6, now=NOW)
    assert move_old_steps(store, months=6, now=NOW) == 0
    assert len(files()) == 1


def test_as_many_runs_as_asked_for_are_moved_at_a_time_the_oldest_first(store: Store) -> None:
    assert move_old_steps(store, months=6, now=NOW, at_once=1) == 1
    assert [path.stem.rpartition("-")[0] for path in files()] == ["2026-06-16"]
    assert move_old_steps(store, months=6, now=NOW, at_once=1) == 1
    assert move_old_steps(store, months=6, now=NOW, at_once=1) == 0


def test_a_run_that_is_read_anew_has_its_new_steps(store: Store, make_result: MakeResult) -> None:
    move_old_steps(store, months=6, now=NOW)
    again = make_result("old-1", submitted_at=OLD)
    steps = tuple(replace(step, loss=0.5) for step in again.log.steps)
    store.publish(again.model_copy(update={"log": again.log.model_copy(update={"steps": steps})}))
    assert {step["loss"] for step in store.steps("old-1")} == {0.5}
    assert len(store.steps("old-1")) == len(steps)
    assert move_old_steps(store, months=6, now=NOW) == 1, "they are moved as any others"
    assert {step["loss"] for step in store.steps("old-1")} == {0.5}


def test_a_run_that_is_read_anew_meanwhile_stays_as_it_is(
    store: Store, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the rows and removing them somebody has published the run again."""
    write = step_files._write

    def write_and_publish(*arguments: Any) -> None:
        write(*arguments)
        again = make_result("old-1", submitted_at=OLD)
        steps = tuple(replace(step, loss=0.5) for step in again.log.steps)
        store.publish(again.model_copy(update={"log": again.log.model_copy(update={"steps": steps})}))

    monkeypatch.setattr(step_files, "_write", write_and_publish)
    assert move_old_steps(store, months=6, now=NOW) == 1
    assert {step["loss"] for step in store.steps("old-1")} == {0.5}


def test_a_move_that_dies_after_its_file_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = seen(store), step_files._write

    def write_and_die(*arguments: Any) -> None:
        write(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(step_files, "_write", write_and_die)
    with pytest.raises(KeyboardInterrupt):
        move_old_steps(store, months=6, now=NOW)
    assert seen(store) == before
    monkeypatch.undo()
    monkeypatch.setenv("STEPTIME_HOME", str(settings.step_files_dir().parents[1]))


def test_a_file_that_is_gone_is_named(store: Store) -> None:
    move_old_steps(store, months=6, now=NOW)
    files()[0].unlink()
    with pytest.raises(
        SystemFailure, match=r"steps of 'old-1' were moved to '.*parquet', which is not there"
    ):
        store.steps("old-1")


def test_archives_have_the_steps_and_not_the_name_of_their_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.steps("old-1")
    move_old_steps(store, months=6, now=NOW)
    archive.write_archive(store, store.results(), tmp_path / "all.tar.zst")
    other = Store(f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "elsewhere"))
    archive.restore(other, tmp_path / "all.tar.zst", tmp_path / "restored")
    assert other.steps("old-1") == before


@pytest.mark.parametrize("months", ["0", "-1", "six", "1.5"])
def test_a_setting_that_is_no_number_of_months_is_refused(
    months: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_KEEP_STEPS_MONTHS", months)
    with pytest.raises(UserError, match=f"STEPTIME_KEEP_STEPS_MONTHS '{months}' is no number of months"):
        settings.keep_steps_months()
