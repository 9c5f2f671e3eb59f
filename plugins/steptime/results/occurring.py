"""What occurs in the store, looked up in its indexes: which series, their latest runs, values to select by.

The columns of a series are those of `schema.SERIES`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from steptime.results.database import ReadStore, dicts, read_connection

if TYPE_CHECKING:
    from sqlalchemy import CTE, ColumnElement, Connection, ScalarSelect


def each_series(connection: "Connection") -> "CTE":
    """Return a query of each series with each state that its runs have: the columns of `SERIES`, and `state`.

    SQLite reads the index once. PostgreSQL would take longer for that than for all else of a page; it finds
    to each combination the next one, which SQLite, in turn, looks for by its first column alone.
    """
    from sqlalchemy import select, tuple_

    from steptime.results.schema import SERIES, runs

    names = (*SERIES, "state")
    columns = [runs.c[name] for name in names]
    if connection.dialect.name == "sqlite":
        return select(*columns).distinct().cte("each_series")
    found = select(*columns).order_by(*columns).limit(1).cte("each_series", recursive=True)
    later = runs.alias("later")
    ordered = [later.c[name] for name in names]
    following = select(later.c.id).where(tuple_(*ordered) > tuple_(*found.c)).order_by(*ordered).limit(1)
    one_more = select(*columns).select_from(found).join(runs, runs.c.id == following.scalar_subquery())
    return found.union_all(one_more)


def latest(
    store: ReadStore, of: "CTE", column: str, place: int = 0, *, since: float = 0
) -> "ScalarSelect[Any]":
    """Return a column of the latest valid run of a series of `each_series`, or of the run `place` before it.

    It is NULL if that run was submitted before `since` (Unix time), or does not exist.
    """
    from sqlalchemy import select

    from steptime.results.schema import runs

    query = select(runs.c[column]).where(
        *same_series(of), runs.c.state == "valid", runs.c.submitted_at >= since
    )
    query = query.order_by(runs.c.submitted_at.desc(), runs.c.id.desc()).limit(1).offset(place)
    return store.readable(query).correlate(of).scalar_subquery()


def same_series(of: "CTE") -> "list[ColumnElement[bool]]":
    """Return the condition that a run is of a series of `each_series`."""
    from steptime.results.schema import SERIES, runs

    return [runs.c[name] == of.c[name] for name in SERIES]


def newest_of_each(store: ReadStore) -> list[dict[str, Any]]:
    """Return the valid run of each series that was submitted last, latest first."""
    from sqlalchemy import select

    from steptime.results.columns import COLUMNS
    from steptime.results.schema import runs

    with read_connection(store.url) as connection:
        found = each_series(connection)
        newest = select(latest(store, found, "id")).where(found.c.state == "valid")
        query = select(*(runs.c[column.name] for column in COLUMNS)).where(runs.c.id.in_(newest))
        query = query.order_by(runs.c.submitted_at.desc(), runs.c.id.desc())
        return list(dicts(connection.execute(query)))


def hidden(store: ReadStore) -> list[dict[str, Any]]:
    """Return the series with valid runs that the reader of the store may not read."""
    from sqlalchemy import select

    from steptime.results.schema import SERIES, runs

    if store.dags is None:
        return []
    dags = _each_value(runs.c.dag_id)  # nearly always the reader may read all of them
    unread = select(dags.c.value).where(dags.c.value.not_in(sorted(store.dags)))
    query = select(*(runs.c[name] for name in SERIES)).distinct()
    query = query.where(runs.c.state == "valid", runs.c.dag_id.in_(unread))
    with read_connection(store.url) as connection:
        return list(dicts(connection.execute(query)))


def occurring_values(store: ReadStore, names: Iterable[str]) -> dict[str, set[Any]]:
    """Return the values of these columns in all runs, rejected ones included; empty columns are left out."""
    from sqlalchemy import select

    from steptime.results.schema import runs

    with read_connection(store.url) as connection:
        series = each_series(connection)
        one = select(runs.c.id).where(*same_series(series), runs.c.state == series.c.state)
        query = select(series).where(store.readable(one).correlate(series).exists())
        of_series = list(dicts(connection.execute(query)))
        found = {}
        for name in names:
            if name in series.c:
                found[name] = {row[name] for row in of_series}
                continue
            each = _each_value(runs.c[name])
            one = select(runs.c.id).where(runs.c[name] == each.c.value)
            query = select(each.c.value).where(store.readable(one).correlate(each).exists())
            found[name] = set(connection.scalars(query))
    return found


def _each_value(column: "ColumnElement[Any]") -> "CTE":
    """The values of a column with which an index begins, and NULL: each is found from the one before it."""
    from sqlalchemy import func, select

    found = select(func.min(column).label("value")).cte("each_value", recursive=True)
    following = select(func.min(column)).where(column > found.c.value).correlate(found)
    return found.union_all(select(following.scalar_subquery()).where(found.c.value.is_not(None)))
