"""Queries for judging: the runs of a series, their stored judgements, and accepted baselines.

`key` identifies a series, by values of columns of `runs`.
"""

from __future__ import (
    annotations,  # SQLAlchemy 1.4, which Airflow 3.1 is released with, has no generic classes
)

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.engine import Connection
from sqlalchemy.sql.expression import Select

from steptime.store.columns import COLUMNS, series_columns
from steptime.store.database import dicts, insert, read_connection
from steptime.store.run_queries import Store
from steptime.store.schema import accepted_levels, is_valid, judgements, own_columns, records, runs

Key = Mapping[str, Any]
YEAR_S = 365 * 86_400.0


@cache
def columns() -> tuple[str, ...]:
    """Return the names of the columns of the table `judgements`, without the one that names the run."""
    return tuple(column.name for column in own_columns(judgements))


def read_runs(connection: Connection, key: Key, numbers: Sequence[str]) -> list[dict[str, Any]]:
    """Return a series' valid runs, oldest first, that have a value other than 0 in a column of `numbers`."""
    in_series = [runs.c[name] == value for name, value in key.items()]
    has_number = or_(*(runs.c[name] != 0 for name in numbers))
    query = select(runs).where(is_valid, has_number, *in_series)
    return list(dicts(connection.execute(query.order_by(runs.c.submitted_at, runs.c.id))))


def run_id(connection: Connection, job_name: str) -> int:
    """Return the id of a run in the table `runs`, by its job name."""
    return int(connection.execute(select(runs.c.id).where(runs.c.job_name == job_name)).scalar_one())


def accepted_level(store: Store, job_name: str) -> dict[str, Any] | None:
    """Return who accepted a run as the start of a new baseline, when and why; None if nobody did."""
    with read_connection(store.url) as connection:
        level = accepted(connection, {"job_name": job_name}).get(job_name)
    return level and {name: value for name, value in level.items() if name != "job_name"}


def accept(connection: Connection, run_id: int, **accepted: Any) -> None:
    """Store that somebody accepted a run as the start of a new baseline; a later acceptance replaces it."""
    added = insert(connection.dialect.name, accepted_levels).values(run_id=run_id, **accepted)
    connection.execute(added.on_conflict_do_update(index_elements=[accepted_levels.c.run_id], set_=accepted))


def accepted(connection: Connection, key: Key) -> dict[str, dict[str, Any]]:
    """Return the accepted baselines of a series by the job name of their first run: note, person and time."""
    same = [runs.c[name] == value for name, value in key.items()]
    query = select(runs.c.job_name, *own_columns(accepted_levels)).join(accepted_levels).where(*same)
    return {row["job_name"]: dict(row) for row in connection.execute(query).mappings()}


def record(connection: Connection, job_name: str) -> str:
    """Return the record of a run, as JSON text."""
    query = select(records.c.content).join(runs).where(runs.c.job_name == job_name)
    return str(connection.execute(query).scalar_one())


def setup_sha256s(connection: Connection, key: Key, since: float = 0.0) -> dict[str, str | None]:
    """Return, by job name, a hash of the software and settings of the runs of a series since a Unix time.

    None for a run whose record cannot be read. The nodes of a run do not affect its hash.
    """
    in_series = [runs.c[name] == value for name, value in key.items()]
    query = select(runs.c.job_name, records.c.setup_sha256).join(records)
    query = query.where(*in_series, runs.c.submitted_at >= since)
    return {row.job_name: row.setup_sha256 for row in connection.execute(query)}


def write(connection: Connection, key: Key, rows: Mapping[int, Iterable[dict[str, Any]]]) -> None:
    """Replace the stored judgements of a series with `rows`, given by run id; unchanged rows are kept."""
    in_series = select(runs.c.id).where(*(runs.c[name] == value for name, value in key.items()))
    kept = {
        (row["run_id"], row["metric"], row["kind"]): row
        for row in dicts(connection.execute(select(judgements).where(judgements.c.run_id.in_(in_series))))
    }
    wanted = {
        (run_id, row["metric"], row["kind"]): {"run_id": run_id} | _as_json(row)
        for run_id, judged in rows.items()
        for row in judged
    }
    changed = [key for key in {**kept, **wanted} if kept.get(key) != wanted.get(key)]
    for run_id, metric, kind in (key for key in changed if key in kept):
        connection.execute(
            judgements.delete().where(
                judgements.c.run_id == run_id, judgements.c.metric == metric, judgements.c.kind == kind
            )
        )
    if added := [wanted[key] for key in changed if key in wanted]:
        connection.execute(judgements.insert(), added)


def rows_with_judgements(store: Store, key: Key, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Return valid runs with their judgements against the series' history, newest first.

    `key` selects runs by column values. The columns of the judgement are None for a run without one.
    `drift` describes a slow drift of the step time up to this run; None if there is none.
    """
    query = _with_judgements().where(*(runs.c[name] == value for name, value in key.items())).limit(limit)
    with read_connection(store.url) as connection:
        return list(dicts(connection.execute(store.readable(query))))


def latest_rows_with_judgements(store: Store, since: float | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest `limit` valid runs of each series, if submitted since `since` (Unix time).

    By default since a year before the newest run of the store. They are newest first, in rows as those of
    `rows_with_judgements`.
    """
    since = _of_the_last_year() if since is None else since
    with read_connection(store.url) as connection:
        query = _with_judgements().where(runs.c.id.in_(_latest_of_each_series(store, limit, since)))
        return list(dicts(connection.execute(query)))


def latest_numbers(store: Store, limit: int) -> dict[tuple[Any, ...], list[dict[str, float | None]]]:
    """Return the step and checkpoint times of the newest `limit` valid runs of each series, oldest run first.

    Only runs of the year before the newest run of the store are looked at, so this takes no longer each year.
    The keys are the values of `series_columns()`; each run has seconds or None by column.
    """
    series = series_columns()
    checkpoints = ("checkpoint_blocked_s", "checkpoint_save_s", "checkpoint_load_s")
    numbers = ("steady_step_time_s", "step_time_mean_s", *checkpoints)
    query = select(*(runs.c[name] for name in (*series, *numbers)))
    query = query.where(runs.c.id.in_(_latest_of_each_series(store, limit, _of_the_last_year())))
    by_series: dict[tuple[Any, ...], list[dict[str, float | None]]] = {}
    with read_connection(store.url) as connection:
        for row in connection.execute(query.order_by(runs.c.submitted_at, runs.c.id)):
            values, times = row[: len(series)], row[len(series) :]
            by_series.setdefault(values, []).append(dict(zip(numbers, times, strict=True)))
    return by_series


def by_job(
    store: Store, *, since: float | None = None, names: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the stored judgements of valid runs by job name: of those with `names`, or of all since a time.

    `since` is a Unix time.

    Each has the columns of the table `judgements`, against the history of the series, and `drift`, which
    describes a slow drift of the step time up to this run. All are None for a run without a judgement.
    """
    query = _judged(runs.c.job_name, *own_columns(judgements))
    if names is not None:
        columns = query.selected_columns.keys()
        read = (dict(zip(columns, row, strict=True)) for row in store.read_each(names, query))
        return {row["job_name"]: row for row in read}
    if since is not None:
        query = query.where(runs.c.submitted_at >= since)
    with read_connection(store.url) as connection:
        return {row["job_name"]: row for row in dicts(connection.execute(store.readable(query)))}


def p_values(store: Store, since: float, until: float) -> list[dict[str, Any]]:
    """Return the p-values of the valid runs submitted from `since` to `until` (Unix times), oldest first.

    Each row has the columns of `series_columns()`, `submitted_at`, `series_state` and `direction`. `p_value`
    is the one-sided p-value for that direction (`slower` if it is None); None if too few runs precede the
    run. All three are None for a run without a stored judgement.
    """
    series = [runs.c[name] for name in series_columns()]
    judged = [judgements.c[name] for name in ("series_state", "direction", "p_value")]
    against_history = and_(judgements.c.run_id == runs.c.id, judgements.c.kind == "history")
    query = select(*series, runs.c.submitted_at, *judged).outerjoin(judgements, against_history)
    query = query.where(is_valid, runs.c.submitted_at.between(since, until))
    with read_connection(store.url) as connection:
        return list(dicts(connection.execute(store.readable(query.order_by(runs.c.submitted_at, runs.c.id)))))


def times_with_baselines(store: Store, since: float, until: float, key: Key) -> list[dict[str, Any]]:
    """Return the valid runs submitted from `since` to `until` (Unix times), with their baselines.

    `key` selects runs by column values. Oldest first; each has the columns of `series_columns()`, `job_name`,
    `submitted_at`, `nodes`, `seconds` (the step time that is judged), `series_state`, `began_at` (Unix time
    of the run with which a suspected or confirmed change began, else None), `baseline_mean_s`,
    `baseline_deviation` and `baseline_runs`. Runs without a stored judgement are left out.
    """
    names = (*series_columns(), "job_name", "submitted_at", "nodes")
    judged = ("series_state", "baseline_mean_s", "baseline_deviation", "baseline_runs")
    seconds = func.coalesce(func.nullif(runs.c.steady_step_time_s, 0), runs.c.step_time_mean_s)
    began_at = judgements.c.rests_on["onset", "at"].as_float().label("began_at")
    query = select(
        *(runs.c[name] for name in names),
        *(seconds.label("seconds"), began_at),
        *(judgements.c[name] for name in judged),
    ).join(judgements, and_(judgements.c.run_id == runs.c.id, judgements.c.kind == "history"))
    query = query.where(is_valid, runs.c.submitted_at.between(since, until))
    query = query.where(*(runs.c[name] == value for name, value in key.items()))
    with read_connection(store.url) as connection:
        return list(dicts(connection.execute(store.readable(query.order_by(runs.c.submitted_at, runs.c.id)))))


def _of_the_last_year() -> Any:
    """Select the Unix time a year before the newest run of the store."""
    return select(func.max(runs.c.submitted_at) - YEAR_S).scalar_subquery()


def newest_of_each(store: Store) -> list[dict[str, Any]]:
    """Return the newest valid run of each series, newest first."""
    query = select(*(runs.c[column.name] for column in COLUMNS)).where(
        runs.c.id.in_(_latest_of_each_series(store, 1))
    )
    with read_connection(store.url) as connection:
        return list(dicts(connection.execute(query.order_by(runs.c.submitted_at.desc(), runs.c.id.desc()))))


def _latest_of_each_series(store: Store, limit: int, since: Any = None) -> Select[tuple[int]]:
    """Select the ids of the newest valid runs of each series that the store's user may read.

    With `since` (Unix time), only of those submitted at or after it: older runs are not looked at.
    """
    latest_first = func.row_number().over(
        partition_by=[runs.c[name] for name in series_columns()],
        order_by=(runs.c.submitted_at.desc(), runs.c.id.desc()),
    )
    valid = select(runs.c.id, latest_first.label("rank")).where(is_valid)
    if since is not None:
        valid = valid.where(runs.c.submitted_at >= since)
    ranked = store.readable(valid).subquery()
    return select(ranked.c.id).where(ranked.c.rank <= limit)


def hidden(store: Store) -> list[dict[str, Any]]:
    """Return the series with valid runs that the store's user may not read."""
    if store.dags is None:
        return []
    with read_connection(store.url) as connection:
        # The index has the DAGs of all runs; most readers may read all of them.
        every = connection.scalars(select(runs.c.dag_id).distinct().where(runs.c.dag_id.is_not(None)))
        others = sorted(set(every) - store.dags)
        if not others:
            return []
        query = select(*(runs.c[name] for name in series_columns())).distinct()
        return list(dicts(connection.execute(query.where(is_valid, runs.c.dag_id.in_(others)))))


def _with_judgements() -> Select[*tuple[Any, ...]]:
    """Select valid runs, newest first, with the columns of their judgement against the history."""
    query = _judged(*(runs.c[column.name] for column in COLUMNS), *own_columns(judgements))
    return query.order_by(runs.c.submitted_at.desc(), runs.c.id.desc())


def _judged(*wanted: Any) -> Select[*tuple[Any, ...]]:
    """Select these columns of valid runs and of their judgement against the history, and their `drift`."""
    drifts = judgements.alias()
    against_history = and_(judgements.c.run_id == runs.c.id, judgements.c.kind == "history")
    return (
        select(*wanted, drifts.c.rests_on.label("drift"))
        .select_from(runs)
        .outerjoin(judgements, against_history)
        .outerjoin(drifts, and_(drifts.c.run_id == runs.c.id, drifts.c.kind == "drift"))
        .where(is_valid)
    )


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row as it is read back: JSON has no tuples."""
    as_read: dict[str, Any] = json.loads(json.dumps(row))
    return as_read
