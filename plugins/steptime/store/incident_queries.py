"""Queries of the table `incidents`. A row is a dict by column; `cells` is a JSON list."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.engine import Connection

from steptime.store.database import dicts
from steptime.store.schema import incidents as table


def read(
    connection: Connection,
    *,
    states: Collection[str] | None = None,
    closed_since: float | None = None,
    incident_id: int | None = None,
) -> list[dict[str, Any]]:
    """Return the incidents that match all filters, the latest opened first.

    Args:
        connection: to the metrics store.
        states: only incidents in these states; None for any.
        closed_since: Unix time; leave out incidents closed before it.
        incident_id: only this incident.
    """
    query = select(table).order_by(table.c.opened_at.desc(), table.c.id.desc())
    if states is not None:
        query = query.where(table.c.state.in_(states))
    if closed_since is not None:
        query = query.where(or_(table.c.closed_at.is_(None), table.c.closed_at >= closed_since))
    if incident_id is not None:
        query = query.where(table.c.id == incident_id)
    return list(dicts(connection.execute(query)))


def read_unnotified(connection: Connection, active: Collection[str], now: float) -> list[dict[str, Any]]:
    """Return the incidents whose current state people must still be notified of, the latest opened first.

    Silenced ones are left out; `now` is Unix time.

    People are not notified of series that got faster, of changed step times that somebody accepted, or of the
    end of an incident whose start they were not notified of. `active` are the states of incidents that are
    not closed.
    """
    is_new = and_(table.c.notified.is_(None), table.c.state.in_(active))
    query = (
        select(table)
        .where(table.c.direction != "faster", table.c.state != "accepted")
        .where(or_(is_new, table.c.notified != table.c.state))
        .where(or_(table.c.silenced_until.is_(None), table.c.silenced_until <= now))
        .order_by(table.c.opened_at.desc(), table.c.id.desc())
    )
    return list(dicts(connection.execute(query)))


def write(connection: Connection, incident_id: int | None, values: Mapping[str, Any]) -> int:
    """Insert an incident (`incident_id` None) or update these columns of one; return its id."""
    if incident_id is None:
        (added,) = connection.execute(table.insert(), dict(values)).inserted_primary_key  # type: ignore[misc]
        return int(added)
    connection.execute(table.update().where(table.c.id == incident_id).values(**values))
    return incident_id


def delete(connection: Connection, incident_ids: Collection[int]) -> None:
    """Delete incidents, after they were merged into another one."""
    if incident_ids:
        connection.execute(table.delete().where(table.c.id.in_(incident_ids)))
