"""Write runs into the metrics store: measured, then valid or rejected, then published.

Each method is one idempotent transaction. Readers see a run once it has `published_at`: `publish` sets it for
a valid run, `store_verdict` for a rejected one.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.engine import Connection

from steptime.errors import UserError
from steptime.store import efficiency, schema
from steptime.store.columns import COLUMNS, COMPUTED
from steptime.store.database import dicts, insert, write_transaction
from steptime.store.run_models import Result, Verdict
from steptime.store.run_queries import unknown_run
from steptime.store.run_records import setup_sha256
from steptime.store.schema import checkpoints, is_valid, own_columns, readings, records, runs, validations

OnChange = Callable[[Connection, Mapping[str, Any]], None]

_CONTENT = {"submitted", "status", "measurement", "log"}
"""Fields of `Result` whose change replaces a stored run. The record is written only once."""
_UNCHECKED = {"state": "measured", "reason": None, "warnings": None, "published_at": None}
"""Values by column of a run that is measured and not checked yet."""


@dataclass(frozen=True)
class RunWriter:
    """Writes runs into the metrics store at `url`."""

    url: str
    values: Callable[[Result], Mapping[str, Any]]
    """Computes the values of a measured run by column, without those of `COMPUTED` and `_UNCHECKED`."""
    on_change: OnChange
    """Called within the transaction, with its connection and a run's row, if the published runs of the run's
    series have changed."""

    def store_measurement(self, result: Result) -> bool:
        """Store a measured run with its steps and record; return False if the store has the same already.

        What was stored when the run's log was read earlier is replaced, except for the record; the run must
        then be checked and published again. `on_change` is called if the run was published.
        """
        run = _row(result, self.values(result))
        steps = [asdict(step) for step in result.log.steps]
        children: dict[Table, list[dict[str, Any]]] = {
            schema.steps: steps,
            checkpoints: [checkpoint.model_dump() for checkpoint in result.log.checkpoints],
            validations: [],
            readings: [_reading(result) | {"not_finite": _not_finite(steps)}],
        }
        record = {
            "content": result.record,
            "sha256": hashlib.sha256(result.record.encode()).hexdigest(),
            "setup_sha256": setup_sha256(result.record),
        }
        with write_transaction(self.url) as connection:
            # Locked before the run's own row, in the same order by all writers: this prevents deadlocks.
            efficiency.lock(connection, run)
            was_published = connection.scalar(
                select(runs.c.id).where(is_valid, runs.c.job_name == result.job.name)
            )
            if not connection.execute(_upsert(connection.dialect.name), run).rowcount:
                return False
            # Not by RETURNING, which SQLAlchemy 1.4 does not have for SQLite.
            run_id = connection.execute(
                select(runs.c.id).where(runs.c.job_name == result.job.name)
            ).scalar_one()
            for table, rows in children.items():
                _replace_rows(connection, table, run_id, rows)
            first = insert(connection.dialect.name, records).values(run_id=run_id, **record)
            connection.execute(first.on_conflict_do_nothing(index_elements=[records.c.run_id]))
            if was_published:
                efficiency.compute(connection, run)
                self.on_change(connection, run)
        return True

    def store_verdict(self, job_name: str, verdict: Verdict) -> bool:
        """Store a measured run's checks, which make it valid or rejected; return False if already stored.

        `on_change` is called if the run was published and is now rejected. Raises UserError for an unknown
        run.
        """
        state = "valid" if verdict.valid else "rejected"
        checks = [_storable_row(check.model_dump()) for check in verdict.checks]
        stored = select(*own_columns(validations)).order_by(validations.c.position)
        with write_transaction(self.url) as connection:
            row = _locked_row(connection, job_name)
            before = list(dicts(connection.execute(stored.where(validations.c.run_id == row["id"]))))
            if (row["state"], before) == (state, checks):
                return False
            _replace_rows(connection, validations, row["id"], checks)
            if row["state"] == state:
                published_at = row["published_at"]
            else:
                published_at = None if verdict.valid else time.time()
            values = {"state": state, "reason": verdict.reason, "warnings": verdict.remarks}
            values = _storable_row(values) | {"published_at": published_at}
            connection.execute(runs.update().where(runs.c.id == row["id"]).values(values))
            if row["state"] == "valid" and row["published_at"] and not verdict.valid:
                efficiency.compute(connection, row)
                self.on_change(connection, row)
        return True

    def publish(self, job_name: str) -> bool:
        """Publish a valid run, that is, show it among the results; return False if it is already published.

        `on_change` is called. Raises UserError if the run is unknown, is not valid or has no step times.
        """
        with write_transaction(self.url) as connection:
            row = _locked_row(connection, job_name)
            if row["state"] != "valid":
                reason = f" {row['reason']}" if row["reason"] else ""
                raise UserError(f"{job_name} cannot be published: it is {row['state']}, not valid.{reason}")
            if row["step_time_mean_s"] is None:
                raise UserError(f"{job_name} cannot be published: it has no step times.")
            if row["published_at"] is not None:
                return False
            connection.execute(runs.update().where(runs.c.id == row["id"]).values(published_at=time.time()))
            efficiency.compute(connection, row)
            self.on_change(connection, row)
        return True


def _locked_row(connection: Connection, job_name: str) -> dict[str, Any]:
    """Return the row of a run, and lock all runs comparable with it until the transaction ends."""
    query = select(runs).where(runs.c.job_name == job_name)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise unknown_run(job_name)
    efficiency.lock(connection, dict(row))
    return dict(connection.execute(query).mappings().one())


@cache
def _upsert(dialect: str) -> Any:
    """Return a statement that inserts a run or replaces it; it changes no row with the same content.

    Cached, as building it takes longer than inserting a run.
    """
    added = insert(dialect, runs)
    names = (*(column.name for column in COLUMNS if column.name not in COMPUTED), "content_sha256")
    return added.on_conflict_do_update(
        index_elements=[runs.c.job_name],
        set_={name: added.excluded[name] for name in names if name != "job_name"},
        where=runs.c.content_sha256 != added.excluded.content_sha256,
    )


def _replace_rows(connection: Connection, table: Table, run_id: int, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(table.delete().where(table.c.run_id == run_id))
    if rows:
        connection.execute(table.insert(), list(_numbered(table, run_id, rows)))


def _numbered(table: Table, run_id: int, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for position, row in enumerate(rows):
        keys = {"run_id": run_id} | ({"position": position} if "position" in table.c else {})
        yield keys | _storable_row(row)


def _storable_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _storable(value) for name, value in row.items()}


def _storable(value: Any) -> Any:
    """Replace what JSON and PostgreSQL refuse: NaN and infinity by None, NUL in texts by U+FFFD."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _row(result: Result, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the table `runs` for a measured run with these values by column."""
    content_sha256 = hashlib.sha256(result.model_dump_json(include=_CONTENT).encode()).hexdigest()
    return _storable_row({**values, **_UNCHECKED, "content_sha256": content_sha256})


def _reading(result: Result) -> dict[str, Any]:
    """Return job status, measurement and log, without steps and checkpoints, as data for a JSON column.

    pydantic writes NaN as null, because PostgreSQL refuses NaN.
    """
    included, children = {"status", "measurement", "log"}, {"log": {"steps", "checkpoints"}}
    reading: dict[str, Any] = json.loads(result.model_dump_json(include=included, exclude=children))
    return reading


def _not_finite(steps: Sequence[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Return position, column and text of each number in the steps that is stored as NULL."""
    return [
        (position, name, str(value))
        for position, step in enumerate(steps)
        for name, value in step.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
