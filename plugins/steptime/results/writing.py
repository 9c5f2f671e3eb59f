"""Writing a run into the metrics store: its row and what belongs to it, in one transaction."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from steptime.results import efficiency
from steptime.results.charges import write_taken
from steptime.results.columns import COLUMNS
from steptime.results.database import insert, write_transaction
from steptime.results.differences import made_sha256
from steptime.results.models import Result
from steptime.results.record import recorded_attempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table

    Then = Callable[[Connection], None]


def write(url: str, result: Result, then: "Then | None" = None) -> bool:
    """Store a run with all that belongs to it; return False if exactly this is there already.

    `then` is called within the same transaction, once the run is in it. The run's row is the lock: concurrent
    writers of one run take turns.
    """
    from steptime.results import schema

    run = run_row(result)
    children = {
        schema.steps: [asdict(step) for step in result.log.steps],
        schema.checkpoints: [checkpoint.model_dump() for checkpoint in result.log.checkpoints],
        schema.validations: [check.model_dump() for check in result.verdict.checks],
        schema.readings: [_parsed_log_row(result)],
    }
    sha256 = hashlib.sha256(result.record.encode()).hexdigest()
    with write_transaction(url) as connection:
        # Before the run's own row, for all in this order: they never wait for each other in a circle.
        efficiency.lock(connection, run)
        run_id = connection.scalar(_upsert(connection.dialect.name), run)
        if run_id is None:
            return False
        for table, rows in children.items():
            connection.execute(table.delete().where(table.c.run_id == run_id))
            if rows:
                connection.execute(table.insert(), list(_numbered(table, run_id, rows)))
        record = {
            "run_id": run_id,
            "content": result.record,
            "sha256": sha256,
            "made_sha256": made_sha256(result.record),
        }
        kept = insert(connection.dialect.name, schema.records).values(record)
        connection.execute(kept.on_conflict_do_nothing(index_elements=[schema.records.c.run_id]))
        ends = {attempt.job.name: attempt.status for attempt in recorded_attempts(result.record)}
        ends |= {result.job.name: result.status}
        write_taken(connection, result.run, ends, dag_run=result.submitted.made_by.dag_run)
        efficiency.compute(connection, run)
        if then is not None:
            then(connection)
    return True


@cache
def _upsert(dialect: str) -> Any:
    """What inserts a run or replaces it, and gives its id, or None if the same content is there already.

    Kept: to make it takes longer than to insert a run.
    """
    from steptime.results.schema import runs

    added = insert(dialect, runs)
    names = (*(column.name for column in COLUMNS if column.take), "content_sha256")
    return added.on_conflict_do_update(
        index_elements=[runs.c.job_name],
        set_={name: added.excluded[name] for name in names if name != "job_name"},
        where=runs.c.content_sha256 != added.excluded.content_sha256,
    ).returning(runs.c.id)


def _numbered(table: "Table", run_id: int, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for position, row in enumerate(rows):
        place = {"run_id": run_id} | ({"position": position} if "position" in table.c else {})
        yield place | {name: _storable(value) for name, value in row.items()}


def _storable(value: Any) -> Any:
    """Without what JSON and PostgreSQL refuse: NaN and infinity in numbers, NUL (of a torn log) in text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def run_row(result: Result) -> dict[str, Any]:
    """Return the row of `runs` that a result is stored as."""
    row = {column.name: column.take(result) for column in COLUMNS if column.take}
    row["content_sha256"] = hashlib.sha256(result.model_dump_json().encode()).hexdigest()
    return {name: _storable(value) for name, value in row.items()}


def _parsed_log_row(result: Result) -> dict[str, Any]:
    # Through pydantic's JSON, which knows no NaN: PostgreSQL refuses it.
    measured = result.measurement
    measurement = None if measured is None else json.loads(measured.model_dump_json())
    log = json.loads(result.log.model_dump_json(exclude={"steps", "checkpoints"}))
    return {"measurement": measurement, "log": log}
