"""A store of an earlier steptime is brought up to date with what it holds, on both kinds of database."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic import command

from steptime.recipes.models import Mode
from steptime.results import database, judgement_rows
from steptime.results.columns import COLUMNS, COMPUTED
from steptime.results.models import Result
from steptime.results.record import RunRecord
from steptime.results.store import Store
from steptime.results.writing import run_row

MakeResult = Callable[..., Result]


@contextmanager
def as_of(
    revision: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[sqlalchemy.Connection, Mapping[str, sqlalchemy.Table]]]:
    """A transaction of a steptime that knew no later revision, and the tables as they were."""
    upgrade = command.upgrade
    with monkeypatch.context() as earlier:
        earlier.setattr(command, "upgrade", lambda config, _: upgrade(config, revision))
        earlier.setattr(database, "REVISION", revision)
        earlier.setattr(database, "_create", database._upgrade)
        with database.write_transaction(url) as connection:
            tables = sqlalchemy.MetaData()
            tables.reflect(connection)
            yield connection, tables.tables
    database.close_engines()


def make_store_of_0001(url: str, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store as the first revision had it, with one published run."""
    with as_of("0001", url, monkeypatch) as (connection, tables):
        assert "records" not in tables
        runs = tables["runs"]
        row = _as_then(run_row(result))
        row = {name: value for name, value in row.items() if name in runs.c}
        run_id = connection.scalar(runs.insert().values(row).returning(runs.c.id))
        row = {"run_id": run_id, **_provenance_row(result)}
        connection.execute(tables["provenance"].insert().values(row))
        for position, checkpoint in enumerate(result.log.checkpoints):
            row = checkpoint.model_dump(exclude={"blocked_s"}) | {"duration_s": checkpoint.blocked_s}
            row |= {"run_id": run_id, "position": position}
            connection.execute(tables["checkpoints"].insert().values(row))


@pytest.fixture
def store_of_0001(
    store_url: str, make_result: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Result]:
    """A store as the first revision had it, with one published run; and that run."""
    result = make_result()
    make_store_of_0001(store_url, result, monkeypatch)
    return store_url, result


def _as_then(numbers: dict[str, Any]) -> dict[str, Any]:
    """Until revision 0004 the time of a save was the time that training waited for it."""
    then = {name: value for name, value in numbers.items() if name != "checkpoint_blocked_s"}
    return then | {"checkpoint_save_s": numbers["checkpoint_blocked_s"]}


def _provenance_row(result: Result) -> dict[str, Any]:
    """A row of the table `provenance`, as revision 0001 had it."""
    whole = json.loads(result.model_dump_json())
    submitted, log = whole["submitted"], whole["log"]
    provenance = submitted["made_by"]
    return {
        **{name: provenance[name] for name in ("steptime_version", "git_commit", "git_clean", "script")},
        "staged": provenance["staged"],
        "recipe": submitted["run"]["recipe"],
        **{"run": submitted["run"], "job": submitted["job"], "status": whole["status"]},
        "measurement": _as_then(whole["measurement"]),
        "versions": log["started"]["versions"],
        "log": {name: value for name, value in log.items() if name not in ("steps", "checkpoints")},
    }


def test_what_ran_becomes_a_record(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    store = Store(url)

    kept = store.record(result.job.name)

    assert kept["sha256"] == hashlib.sha256(kept["content"].encode()).hexdigest()
    record = RunRecord.model_validate_json(kept["content"])
    assert (record.run, record.job, record.status) == (result.run, result.job, result.status)
    assert record.versions["nemo"] == "2.7.3"
    assert record.nodes == ("localhost",)
    unknown_then: dict[str, Any] = {"options": {}, "environment": {}}
    assert record.provenance == result.submitted.made_by.model_copy(update=unknown_then)


def test_what_was_read_is_kept(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    assert result.measurement is not None
    store = Store(url)

    reading = store.parsed_log(result.job.name)

    assert reading["measurement"] == result.measurement.model_dump(mode="json")
    assert reading["log"]["path"] == result.log.path
    with database.read_connection(url) as connection:
        assert not sqlalchemy.inspect(connection).has_table("provenance")


def test_a_run_from_before_has_no_wall_times(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    assert result.measurement is not None
    row = Store(url).run(result.job.name)
    assert row["step_time_mean_s"] == result.measurement.step_time_mean_s
    assert row["wall_time_median_s"] is None


@pytest.fixture
def store_of_0005(tmp_path: Path) -> Store:
    """A store that a steptime of revision 0005 wrote: a valid run, a checkpoint save, and a rejected run."""
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(Path(__file__).with_name("store_of_0005.sql").read_text())
    return Store(f"sqlite:///{path}")


def test_a_store_of_before_gets_the_columns_that_are_new(
    store_of_0005: Store, make_result: MakeResult
) -> None:
    rows = {row["job_name"]: row for row in store_of_0005.results(include_rejected=True)}

    assert {name: (row["state"], row["gpu_hours"]) for name, row in rows.items()} == {
        "tiny-2": ("valid", 2 * 38.5 / 3600),
        "tiny-2-save": ("valid", 2 * 38.5 / 3600),
        "bad": ("rejected", None),
    }
    assert {row["published_step_time_s"] for row in rows.values()} == {None}
    anew = make_result("tiny-2", max_steps=4)
    assert store_of_0005.publish(anew)
    fresh = {column.name: column.take(anew) for column in COLUMNS if column.take}
    fresh |= dict.fromkeys(COMPUTED)
    assert store_of_0005.run("tiny-2") | {"published_at": 0} == fresh | {"published_at": 0}
    assert rows["tiny-2"] | {"published_at": 0} == fresh | {"published_at": 0}
    assert len(store_of_0005.steps("tiny-2")) == 4
    assert [row["job_name"] for row in store_of_0005.results(search="Llama tiny-2-SAVE")] == ["tiny-2-save"]
    assert store_of_0005.parsed_log("tiny-2-save")["log"]["format"] == "nemo2", "it was stored as `dialect`"


def test_a_run_from_before_can_be_published_again(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    store = Store(url)
    before = store.record(result.job.name)
    anew = result.model_copy(update={"log": result.log.model_copy(update={"bytes_read": 9000})})

    assert store.publish(anew)

    assert store.record(result.job.name) == before
    assert store.parsed_log(result.job.name)["log"]["bytes_read"] == 9000
    assert "provenance.environment.OMP_NUM_THREADS is only in the new one" in store.record_differences(anew)


@pytest.mark.parametrize(
    ("asynchronous", "transfers", "took_s"),
    [
        (True, [{"kind": "save", "duration_s": 0.946, "blocked_s": 0.15}], 0.946),
        (True, None, None),
        (False, None, 0.146),
    ],
)
def test_a_save_and_the_wait_for_it_become_two_numbers(
    store_url: str,
    make_result: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    *,
    asynchronous: bool,
    transfers: list[dict[str, Any]] | None,
    took_s: float | None,
) -> None:
    """The trainer's record knows how long an asynchronous save took; without it nobody does."""
    result = make_result(mode=Mode.CHECKPOINT_SAVE)
    (save,) = result.log.checkpoints
    ended = {"state": "completed"} | ({} if transfers is None else {"checkpoints": transfers})
    update = {"asynchronous": asynchronous, "duration_s": took_s}
    log = {"checkpoints": (save.model_copy(update=update),), "ended": ended}
    result = result.model_copy(update={"log": result.log.model_copy(update=log)})
    make_store_of_0001(store_url, result, monkeypatch)
    store = Store(store_url)

    row, reading = store.run(result.job.name), store.parsed_log(result.job.name)

    assert (row["checkpoint_save_s"], row["checkpoint_blocked_s"]) == (took_s, 0.146)
    assert store.checkpoints(result.job.name) == [each.model_dump() for each in result.log.checkpoints]
    measured = reading["measurement"]
    assert (measured["checkpoint_save_s"], measured["checkpoint_blocked_s"]) == (took_s, 0.146)


def test_a_run_from_before_is_marked_by_its_publication(
    store_url: str, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    with as_of("0017", store_url, monkeypatch) as (connection, tables):
        runs = tables["runs"]
        for mode, over in (
            ("performance", 1.05),
            ("performance", 1.06),
            ("checkpoint_load", 1.0),
            ("performance", None),
        ):
            row = {
                name: value
                for name, value in run_row(make_result(f"{mode}-{over}")).items()
                if name in runs.c
            }
            connection.execute(runs.insert().values(row | {"mode": mode, "step_time_over_published": over}))

    rows = {row["job_name"]: row["against_publication"] for row in Store(store_url).results()}

    assert rows == {
        "performance-1.05": "passes",
        "performance-1.06": "below",
        "checkpoint_load-1.0": None,
        "performance-None": None,
    }


def test_what_nobody_was_notified_of_is_still_to_be_notified(
    store_url: str, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_result()
    with as_of("0014", store_url, monkeypatch) as (connection, tables):
        runs = tables["runs"]
        row = {name: value for name, value in run_row(result).items() if name in runs.c}
        run_id = connection.scalar(runs.insert().values(row).returning(runs.c.id))
        kept = {"raised_by": run_id, "about": run_id, "verdict": "suspected"}
        connection.execute(tables["untold"].insert().values(kept))

    store = Store(store_url)

    assert judgement_rows.pending(store, result.job.name) == {result.job.name: "suspected"}
