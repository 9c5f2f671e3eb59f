"""How long stored runs took, as a whole and a step, for what is expected of the next ones."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.results.database import read_connection
from steptime.results.store import Store


class RunTimes(NamedTuple):
    """Of one run."""

    job_s: float
    """From started to ended."""
    step_s: float
    """Mean step time."""
    steps: int
    """In its log."""


def latest(store: Store, key: Mapping[str, Any], limit: int) -> list[RunTimes]:
    """Of the latest valid runs with these values of columns of the store, as far as their times are known."""
    from sqlalchemy import func, select

    from steptime.results.schema import runs, step_files, steps

    counted = select(func.count()).where(steps.c.run_id == runs.c.id).scalar_subquery()
    moved = select(step_files.c.steps).where(step_files.c.run_id == runs.c.id).scalar_subquery()
    known = [
        runs.c.started_at.is_not(None),
        runs.c.ended_at.is_not(None),
        runs.c.step_time_mean_s.is_not(None),
    ]
    query = (
        select(runs.c.ended_at - runs.c.started_at, runs.c.step_time_mean_s, func.coalesce(moved, counted))
        .where(runs.c.state == "valid", *known, *(runs.c[name] == value for name, value in key.items()))
        .order_by(runs.c.submitted_at.desc(), runs.c.id.desc())
        .limit(limit)
    )
    with read_connection(store.url) as connection:
        return [RunTimes(*row) for row in connection.execute(store.readable(query))]
