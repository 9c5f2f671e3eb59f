"""Incidents: cells that got slower or faster together, stored until their times are usual again.

An incident opens when cells are reported as slower or faster. It is confirmed when the first of its cells is,
and closes when all cells have returned to their usual level or a person accepts the new level. Findings
describe each cell today; incidents remember the common cause, the onset, and people's notes.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from steptime.errors import UserError
from steptime.judging import judgements
from steptime.judging.detection import Direction, SeriesState
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series
from steptime.store import incident_queries
from steptime.store.database import read_connection, write_transaction
from steptime.store.run_queries import Store
from steptime.wording import date

IncidentKind = Literal["change", "node", "cluster", "family", "cell"]
"""What the cells have in common. `family`: workload, size, data type and mode. `cell`: it is a single one."""
IncidentState = Literal["open", "confirmed", "accepted", "fixed", "ended", "new level", "dismissed"]
"""`dismissed`: confirmation runs confirmed no cell. `fixed`: it was confirmed, and the slower level is over.
`ended`: it was confirmed, and the faster level is over. `new level`: the faster level is the usual one."""
ACTIVE: tuple[IncidentState, ...] = ("open", "confirmed")
"""States of incidents that are not closed."""


SLOW_ON_NODE = "slow on the node"
"""State of a cell of a node's incident: it is usual on other nodes."""
SLOWER_ON_NODE = "slower on the node"
"""State of a cell of a node's incident that is slower or faster on other nodes, too."""
NEW_LEVEL = "at a new level"
"""State of a cell whose faster level is its usual one now."""
AT_USUAL = ("returned", NEW_LEVEL)
"""States of cells that are no longer slower or faster than usual."""


@dataclass(frozen=True)
class IncidentCell:
    """One series of runs (cell) of an incident: how much it changed, and its current state."""

    series: Series
    job_name: str
    """Job name of its newest judged run."""
    dag_id: str | None
    began_with: str
    """Job name of the run with which the level began; of the newest judged run if it only leans."""
    change: float
    """Change of the level against the baseline: 0.03 is 3 % slower."""
    seconds: float
    usual_s: float
    state: str
    """`confirmed`, `suspected`, `leaning` (moves with the others, but is not suspected itself), `returned`,
    `NEW_LEVEL`, `SLOW_ON_NODE` or `SLOWER_ON_NODE`."""

    @classmethod
    def of(cls, series: Series, judgement: Judgement, direction: Direction) -> Self:
        """Describe a series as part of an incident, from its judgement.

        Its state is `suspected` or `confirmed` if it is so in `direction`; else it is `leaning`: it changed
        in the same direction as the others, but too little to be suspected. The series must have a baseline.
        """
        series_state, run = judgement.series_state, judgement.run
        return cls(
            series,
            run.job_name,
            run.row["dag_id"],
            judgement.began_with,
            judgement.level_change,
            series_state.against.mean * (1 + judgement.level_change),
            series_state.against.mean,
            series_state.state if stands_out(series_state, direction) else "leaning",
        )

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> Self:
        """Read a cell from an item of the column `cells` of the table `incidents`."""
        return cls(Series.from_row(values["series"]), **{k: v for k, v in values.items() if k != "series"})

    def is_newest_step(self, latest: Judgement) -> bool:
        """Return whether the cell of the incident is about the reported slowdown of its series.

        It may also be about an earlier one, which that is on top of: the one with the nearest baseline.
        """
        against = latest.series_state.against.mean
        return all(abs(self.usual_s - against) <= abs(self.usual_s - step.usual_s) for step in latest.earlier)

    @property
    def as_json(self) -> dict[str, Any]:
        """The cell as JSON, an item of the column `cells` of the table `incidents`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "series"}
        return {"series": self.series.key, **plain}


@dataclass(frozen=True)
class Incident:
    """Series of runs (cells) that got slower or faster together, with the cause. Times are Unix times."""

    id: int | None
    """None before it is stored."""
    cluster: str
    direction: Direction
    kind: IncidentKind
    subject: str
    """The change, the nodes, the size, data type and workload, or what changed in one cell; may be empty."""
    state: IncidentState
    opened_at: float
    since: float
    earliest: float
    latest: float
    """The level began between `earliest` and `latest`."""
    evidence: str
    """What supports it, in a sentence; empty if cells are hidden from the reader."""
    nodes: tuple[str, ...]
    """The nodes in common if the kind is `node`, else empty."""
    cells: tuple[IncidentCell, ...]
    change: float
    """Median change of the cells: 0.03 is 3 % slower."""
    judged_cells: int
    """Number of judged cells of the cluster at the last update."""
    confirmed_at: float | None = None
    closed_at: float | None = None
    note: str = ""
    noted_by: str | None = None
    noted_at: float | None = None
    silenced_until: float | None = None
    """Until then it counts apart, and nobody is notified of it; None if it is not silenced."""
    silenced_by: str | None = None
    notified: IncidentState | None = None
    """The state that people were last notified of."""
    hidden_cells: int = 0
    """Number of cells that `cells` lacks because the reader may not see their DAGs."""

    @classmethod
    def stored(cls, row: Mapping[str, Any]) -> Self:
        """Read an incident from a row of the table `incidents`."""
        cells = tuple(map(IncidentCell.stored, row["cells"]))
        return cls(**(dict(row) | {"nodes": tuple(row["nodes"]), "cells": cells}))

    @property
    def as_row(self) -> dict[str, Any]:
        """The incident as a row of the table `incidents`, without the id."""
        apart = {"id", "hidden_cells"}
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        return plain | {"cells": [cell.as_json for cell in self.cells]}

    @property
    def affected(self) -> tuple[IncidentCell, ...]:
        """The cells (series) that have not returned to usual, most changed first; every cell if all have."""
        affected = [cell for cell in self.cells if cell.state not in AT_USUAL] or self.cells
        return tuple(sorted(affected, key=lambda cell: -abs(cell.change)))

    @property
    def is_silenced(self) -> bool:
        """Whether the incident is active, and somebody silenced it until a time that is still to come."""
        return self.state in ACTIVE and self.silenced_until is not None and time.time() < self.silenced_until

    @property
    def silence(self) -> str:
        """The silence as text, as in `silenced until 2026-12-03 by ada`; empty if it is not silenced."""
        if not self.is_silenced or self.silenced_until is None:
            return ""
        return f"silenced until {date(self.silenced_until)} by {self.silenced_by}"

    def may_be_changed(self, may_edit: Callable[[str | None], bool]) -> bool:
        """Return whether the reader sees all cells, and `may_edit` is true of the affected cells' DAG ids."""
        return not self.hidden_cells and all(may_edit(cell.dag_id) for cell in self.affected)

    @property
    def title(self) -> str:
        """One line that says which cells changed on which cluster, by how much, since when and why."""
        affected = self.affected
        if len(self.cells) == 1:
            who = f"{affected[0].series.label} on {self.cluster}"
        elif len(affected) < len(self.cells):
            who = f"{self.cluster}: {len(affected)} of {len(self.cells)} cells still"
        else:
            who = f"{self.cluster}: {len(affected)} cells"
        began, until = date(self.earliest), date(self.latest)
        between = "" if began == until else f" (between {began} and {until})"
        return (
            f"{who} {abs(100 * self.change):.1f} % {self.direction} since {date(self.since)}{between}, "
            f"{self._cause}"
        )

    @property
    def sentence(self) -> str:
        """A text with state, title and evidence, and the number of judged cells of the cluster."""
        what = {
            state: state.capitalize() for state in ("confirmed", "fixed", "ended", "accepted", "new level")
        }
        what["open"] = "Suspected"
        of = f" ({len(self.affected)} of {self.judged_cells} judged cells)" if len(self.cells) > 1 else ""
        return (
            f"{what.get(self.state, 'Not confirmed by confirmation runs')}: {self.title}{of}. {self.evidence}"
        )

    @property
    def _cause(self) -> str:
        return self.subject or "no recorded change" + (" in common" if len(self.cells) > 1 else "")


def mark_notified(store: Store, incident: Incident) -> None:
    """Record that people were notified of the incident's current state."""
    with write_transaction(store.url) as connection:
        incident_queries.write(connection, incident.id, {"notified": incident.state})


def incidents(store: Store, *, closed_since: float | None = None) -> list[Incident]:
    """Return the active incidents, confirmed ones first, then those closed since `closed_since` (Unix time).

    Silenced ones come after the other active ones.

    If the store's user may read only some DAGs, cells of other DAGs are left out, and incidents with no other
    cells.
    """
    with read_connection(store.url) as connection:
        states = ACTIVE if closed_since is None else None
        rows = incident_queries.read(connection, states=states, closed_since=closed_since)
    visible = filter(None, (_visible_part(store, Incident.stored(row)) for row in rows))
    order: dict[str, int] = {"confirmed": 0, "open": 1}
    return sorted(
        visible,
        key=lambda incident: (
            2 if incident.is_silenced else order.get(incident.state, 3),
            incident.direction == "faster",
            -len(incident.affected),
            incident.since,
        ),
    )


def find_incident(store: Store, incident_id: int) -> Incident:
    """Return an incident by its id. Raises UserError if it does not exist or the reader may not see it."""
    rows = []
    if abs(incident_id) <= sys.maxsize:  # what databases can take
        with read_connection(store.url) as connection:
            rows = incident_queries.read(connection, incident_id=incident_id)
    visible = next(filter(None, (_visible_part(store, Incident.stored(row)) for row in rows)), None)
    if visible is None:
        raise UserError(f"there is no incident {incident_id}: 'steptime incidents' lists them.")
    return visible


def comment(store: Store, incident_id: int, *, note: str, author: str, now: float | None = None) -> Incident:
    """Set the note of an incident. Raises UserError if there is no such incident."""
    find_incident(store, incident_id)
    noted = {"note": note, "noted_by": author, "noted_at": time.time() if now is None else now}
    with write_transaction(store.url) as connection:
        incident_queries.write(connection, incident_id, noted)
    return find_incident(store, incident_id)


def silence(
    store: Store, incident_id: int, *, until: float, note: str, author: str, now: float | None = None
) -> Incident:
    """Let an active incident count apart until a time (Unix time), without notifications.

    If it is still active then, it counts again, and people are notified once more.

    Raises UserError if there is no such incident, if it is closed, or if the time is past.
    """
    now = time.time() if now is None else now
    _require_active(find_incident(store, incident_id), "silenced")
    if until <= now:
        raise UserError(f"{date(until)} is past: silence the incident until a later time.")
    _write_silence(store, incident_id, until, author)
    return comment(store, incident_id, note=note, author=author, now=now)


def end_silence(store: Store, incident_id: int) -> Incident:
    """Let a silenced incident count again. Raises UserError if there is no such incident, or no silence."""
    if not find_incident(store, incident_id).is_silenced:
        raise UserError(f"incident {incident_id} is not silenced.")
    _write_silence(store, incident_id, None, None)
    return find_incident(store, incident_id)


def _write_silence(store: Store, incident_id: int, until: float | None, author: str | None) -> None:
    with write_transaction(store.url) as connection:
        values = {"silenced_until": until, "silenced_by": author, "notified": None}
        incident_queries.write(connection, incident_id, values)


def silenced_cells(store: Store, judged: Mapping[Series, Judgement]) -> dict[Series, float]:
    """Return until when series are silenced (Unix time) whose newest change is that of a silenced incident.

    `judged` has the newest judgement of each series.
    """
    return {
        cell.series: incident.silenced_until
        for incident in incidents(store)
        if incident.silenced_until is not None and incident.is_silenced
        for cell in incident.cells
        if cell.series in judged
        and cell.state != SLOWER_ON_NODE
        and judged[cell.series].series_state.direction == incident.direction
        and cell.is_newest_step(judged[cell.series])
    }


def _require_active(incident: Incident, what: str) -> None:
    if incident.state not in ACTIVE:
        raise UserError(
            f"incident {incident.id} is {incident.state}: only an open or confirmed one can be {what}."
        )


def accept(store: Store, incident_id: int, *, note: str, author: str, now: float | None = None) -> Incident:
    """Accept the current times of an incident's affected series as new baselines, and close the incident.

    The incident of a node is only closed: its series are usual on other nodes.

    Raises UserError if there is no such incident, or if it is already closed.
    """
    now = time.time() if now is None else now
    accepted = find_incident(store, incident_id)
    _require_active(accepted, "accepted")
    for cell in () if accepted.kind == "node" else accepted.affected:
        first = cell.began_with
        if cell.state == "leaning":
            first = store.results(since=accepted.since, **cell.series.key)[-1]["job_name"]
        judgements.accept(store, first, note=note, accepted_by=author, now=now)
    comment(store, incident_id, note=note, author=author, now=now)
    with write_transaction(store.url) as connection:
        incident_queries.write(connection, accepted.id, {"state": "accepted", "closed_at": now})
    return find_incident(store, incident_id)


def _visible_part(store: Store, incident: Incident) -> Incident | None:
    """Return an incident with the cells that the reader may see, without evidence if that is not all.

    None if the reader may see none.
    """
    if store.dags is None:
        return incident
    cells = tuple(cell for cell in incident.cells if cell.dag_id is None or cell.dag_id in store.dags)
    if len(cells) == len(incident.cells):
        return incident
    hidden = len(incident.cells) - len(cells)
    return replace(incident, cells=cells, evidence="", hidden_cells=hidden) if cells else None


def stands_out(series_state: SeriesState, direction: Direction) -> bool:
    """Return whether a series is suspected or confirmed to have got slower or faster, as `direction` says."""
    return series_state.state in ("suspected", "confirmed") and series_state.direction == direction
