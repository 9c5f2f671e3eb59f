"""What is asked of a store's database, and how that goes about it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy

from steptime.results.database import read_connection

Query = tuple[str, Any]
"""A statement as the driver gets it, with its values."""
_WORTH_READING = ("Scan", "Sort", "Limit", "Aggregate", "Join", "Nested", "Union", "Unique", "Gather")


@contextmanager
def noted() -> Iterator[list[Query]]:
    """What this process asks of any database, as long as the context lasts."""
    asked: list[Query] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)


def queries_of(call: Callable[[], Any]) -> list[Query]:
    """What a call reads."""
    with noted() as asked:
        call()
    return [one for one in asked if one[0].startswith(("SELECT", "WITH"))]


def plan(url: str, query: Query) -> list[str]:
    """The plan of a query, a line for each step, what is within another one indented."""
    statement, values = query
    with read_connection(url) as connection:
        if connection.dialect.name == "postgresql":
            lines = connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) {statement}", values).scalars().all()
            return [
                line for line in lines if any(word in line for word in _WORTH_READING) and ": " not in line
            ]
        depths = {0: -1}
        steps = []
        for number, parent, _, text in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values):
            depths[number] = depths[parent] + 1
            steps.append("  " * depths[number] + text)
        return steps
