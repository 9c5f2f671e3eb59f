"""A store of an earlier steptime is brought up to date with what it holds, on both kinds of database."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from alembic import command

from steptime.results import database, schema
from steptime.results.models import Result
from steptime.results.record import RunRecord
from steptime.results.store import Store, _run_row


@pytest.fixture
def store_of_0001(
    store_url: str, make_result: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Result]:
    """A store as the first revision had it, with one published run; and that run."""
    result = make_result()
    upgrade = command.upgrade
    with monkeypatch.context() as earlier:
        earlier.setattr(command, "upgrade", lambda config, _: upgrade(config, "0001"))
        earlier.setattr(schema, "REVISION", "0001")
        with database.writing(store_url) as connection:
            tables = sqlalchemy.MetaData()
            tables.reflect(connection)
            assert "records" not in tables.tables
            run_id = connection.scalar(
                tables.tables["runs"]
                .insert()
                .values(_row_of_0001(tables.tables["runs"], result))
                .returning(tables.tables["runs"].c.id)
            )
            row = {"run_id": run_id, **_provenance_row(result)}
            connection.execute(tables.tables["provenance"].insert().values(row))
    database.close_engines()
    return store_url, result


def _row_of_0001(runs: sqlalchemy.Table, result: Result) -> dict[str, Any]:
    """A row of the table `runs` without the columns that came later."""
    return {name: value for name, value in _run_row(result, "valid", None).items() if name in runs.c}


def _provenance_row(result: Result) -> dict[str, Any]:
    """A row of the table `provenance`, as revision 0001 had it."""
    whole = json.loads(result.model_dump_json())
    provenance, log = whole["provenance"], whole["log"]
    return {
        **{name: provenance[name] for name in ("steptime_version", "git_commit", "git_clean", "script")},
        "staged": provenance["staged"],
        "recipe": whole["run"]["recipe"],
        **{name: whole[name] for name in ("run", "job", "status", "measurement")},
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
    assert record.provenance == result.provenance.model_copy(update=unknown_then)


def test_what_was_read_is_kept(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    assert result.measurement is not None
    store = Store(url)

    reading = store.reading(result.job.name)

    assert reading["measurement"] == result.measurement.model_dump(mode="json")
    assert reading["log"]["path"] == result.log.path
    with database.reading(url) as connection:
        assert not sqlalchemy.inspect(connection).has_table("provenance")


def test_a_run_from_before_has_no_wall_times(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    assert result.measurement is not None
    row = Store(url).run(result.job.name)
    assert row["step_time_mean_s"] == result.measurement.step_time_mean_s
    assert row["wall_time_median_s"] is None


def test_a_run_from_before_can_be_published_again(store_of_0001: tuple[str, Result]) -> None:
    url, result = store_of_0001
    store = Store(url)
    before = store.record(result.job.name)
    anew = result.model_copy(update={"log": result.log.model_copy(update={"bytes_read": 9000})})

    assert store.publish(anew)

    assert store.record(result.job.name) == before
    assert store.reading(result.job.name)["log"]["bytes_read"] == 9000
    assert "provenance.environment.OMP_NUM_THREADS is only in the new one" in store.record_differences(anew)
