"""Steps of old runs: Parquet files beside the store, which hold what would else be most of its rows.

A file is written whole before the rows that it has are removed, in one transaction that names it for their
runs. One that no run names is left by a move that died: it may be deleted.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime import settings
from steptime.errors import SystemFailure
from steptime.files import write_whole
from steptime.results.database import ReadStore, read_connection, write_transaction

if TYPE_CHECKING:
    from sqlalchemy import Row, Select

MONTH_S = 30.44 * 86400
_RUNS_AT_ONCE = 2000
"""Some 100,000 rows of steps: moved within seconds."""
_ROW_GROUP = 20_000
"""Rows that are read to find one run's."""


def move_old_steps(
    store: ReadStore, months: float, *, now: float | None = None, at_once: int = _RUNS_AT_ONCE
) -> int:
    """Move the steps of the oldest runs, submitted `months` ago or earlier; return how many runs.

    Raises SystemFailure if the file cannot be written, or the database fails: then nothing was moved.
    """
    before = (time.time() if now is None else now) - months * MONTH_S
    with read_connection(store.url) as connection:
        runs = connection.execute(_with_old_steps(before, at_once)).all()
    if not runs:
        return 0
    newest = datetime.fromtimestamp(max(run.submitted_at for run in runs), UTC)
    path = settings.step_files_dir() / f"{newest:%Y-%m-%d}-{uuid.uuid4().hex[:12]}.parquet"
    _write(path, _rows(store, sorted(run.job_name for run in runs)))
    moved = _replace(store.url, runs, path.name)
    if not moved:
        path.unlink()
    return moved


def _with_old_steps(before: float, limit: int) -> "Select[*tuple[Any, ...]]":
    from sqlalchemy import exists, select

    from steptime.results.schema import runs, steps

    return (
        select(runs.c.id, runs.c.job_name, runs.c.submitted_at, runs.c.content_sha256)
        .where(runs.c.submitted_at < before, exists().where(steps.c.run_id == runs.c.id))
        .order_by(runs.c.submitted_at)
        .limit(limit)
    )


def _rows(store: ReadStore, job_names: Sequence[str]) -> list[dict[str, Any]]:
    """The steps of these runs, one run after the other: so a row group has few runs, all of their rows."""
    from sqlalchemy import select

    from steptime.results.schema import own_columns, runs, steps

    columns = (runs.c.job_name, *own_columns(steps))
    query = select(*columns).join(runs).order_by(runs.c.job_name, steps.c.position)
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in store.of_each(job_names, query)]


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    packed = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=_schema())
    parquet.write_table(table, packed, compression="zstd", row_group_size=_ROW_GROUP)
    try:
        write_whole(path, packed.getvalue().to_pybytes())
    except OSError as error:
        raise SystemFailure(
            f"steps of old runs cannot be moved to '{path}': {error.strerror or error}"
        ) from error


def _schema() -> Any:
    import pyarrow as pa
    from sqlalchemy import BigInteger, Double, Integer

    from steptime.results.schema import own_columns, steps

    types = {Integer: pa.int32(), BigInteger: pa.int64(), Double: pa.float64()}
    return pa.schema(
        [("job_name", pa.string()), *((one.name, types[type(one.type)]) for one in own_columns(steps))]
    )


def _replace(url: str, runs: "Sequence[Row[Any]]", file: str) -> int:
    """Name the file in place of the rows, for the runs that nobody has stored anew or moved meanwhile."""
    from sqlalchemy import select

    from steptime.results import schema

    steps, moved = schema.steps, 0
    with write_transaction(url) as connection:
        for run in runs:
            kept = select(schema.runs.c.content_sha256).where(schema.runs.c.id == run.id)
            if connection.scalar(kept.with_for_update()) != run.content_sha256:
                continue
            removed = connection.execute(steps.delete().where(steps.c.run_id == run.id)).rowcount
            if removed:
                named = {"run_id": run.id, "file": file, "steps": removed}
                connection.execute(schema.step_files.insert(), named)
                moved += 1
    return moved


def moved_steps(store: ReadStore, job_names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield job name and step, in order, of those of these runs whose steps were moved.

    Raises SystemFailure if a file is not there, or cannot be read.
    """
    from sqlalchemy import select

    from steptime.results.schema import runs, step_files

    query = select(runs.c.job_name, step_files.c.file).select_from(runs).join(step_files)
    of_file: dict[str, list[str]] = defaultdict(list)
    for job_name, file in store.of_each(job_names, query):
        of_file[file].append(job_name)
    for file, names in of_file.items():
        yield from _read(settings.step_files_dir() / file, names)


def _read(path: Path, job_names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path, filters=[("job_name", "in", list(job_names))])
    except FileNotFoundError:
        raise SystemFailure(
            f"the steps of '{job_names[0]}' were moved to '{path}', which is not there: put it back, or name "
            "the folder that has it in STEPTIME_STEP_FILES_DIR"
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise SystemFailure(f"'{path}', with the steps of old runs, cannot be read: {error}") from error
    for row in table.to_pylist():
        yield row.pop("job_name"), row
