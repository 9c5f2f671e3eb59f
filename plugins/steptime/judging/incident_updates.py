"""Update the stored incidents: group the current findings, and match the groups with stored incidents."""

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steptime.durations import WEEK_S
from steptime.judging.common_causes import TOGETHER_S, CommonCause
from steptime.judging.common_properties import common_property
from steptime.judging.comparison import compare_stored
from steptime.judging.detection import Direction
from steptime.judging.findings import Comparison, Finding
from steptime.judging.incidents import (
    ACTIVE,
    AT_USUAL,
    NEW_LEVEL,
    SLOW_ON_NODE,
    SLOWER_ON_NODE,
    Incident,
    IncidentCell,
    IncidentKind,
    IncidentState,
    stands_out,
)
from steptime.judging.judgements import judgements_since, series_judgements
from steptime.judging.node_effects import NodeRun, is_usual_again
from steptime.judging.node_evidence import read_node_runs
from steptime.judging.node_pairs import newest_node_sweep
from steptime.judging.record_changes import changed_to, is_notable
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series
from steptime.store import incident_queries, judgement_queries
from steptime.store.database import lock_series, write_transaction
from steptime.store.run_queries import Store

_NAMED: tuple[IncidentKind, ...] = ("change", "node")
"""Kinds with a known cause: a cell belongs to one such incident, and these absorb incidents of other kinds.
"""

SHRUNK = 0.75
"""An incident whose change falls below this part of what it was is ending; its new estimates do not count."""


@dataclass(frozen=True)
class Group:
    """Cells that got slower or faster by a common cause, or within a week of each other; or a single one."""

    kind: IncidentKind
    cluster: str
    subject: str
    direction: Direction
    evidence: str
    change: float
    """Median change: 0.03 is 3 % slower."""
    findings: tuple[Finding, ...]
    cause: CommonCause | None = None
    """None for the kinds `family` and `cell`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the slow nodes if the kind is `node`, else empty."""
        return self.cause.nodes if self.cause else ()

    @property
    def explained(self) -> frozenset[Series]:
        """The cells whose slowdown or speed-up a known cause explains."""
        return self.cause.cells if self.cause else frozenset()

    def cell(self, finding: Finding) -> IncidentCell:
        """Describe one of the findings as a cell of the incident."""
        cell = IncidentCell.of(finding.series, finding.judgement, self.direction)
        if self.cause is None or finding.series not in self.cause.changes:
            return cell
        change = self.cause.changes[finding.series]
        if finding.series in self.explained:
            return replace(cell, change=change, seconds=cell.usual_s * (1 + change), state=SLOW_ON_NODE)
        return replace(cell, change=change, seconds=cell.seconds * (1 + change), state=SLOWER_ON_NODE)

    def explains(self, incident: Incident) -> bool:
        """Return whether an incident has the same known cause (a change or a node) as this group."""
        return self.kind in _NAMED and (self.kind, _cause_key(self.kind, self.subject)) == (
            incident.kind,
            _cause_key(incident.kind, incident.subject),
        )

    def absorbs(self, incident: Incident) -> bool:
        """Return whether an incident without a known cause is about the same cells as this group.

        A node must explain all cells that are still slow: the cause of the others may be another.
        """
        if incident.kind in _NAMED:
            return False
        if self.kind == "node" and not self.explained.issuperset(cell.series for cell in incident.affected):
            return False
        latest = {finding.series: finding.judgement for finding in self.findings}
        return any(
            cell.series in latest and cell.is_newest_step(latest[cell.series]) for cell in incident.cells
        )


def update_incidents(store: Store, *, now: float | None = None) -> list[Incident]:
    """Update the stored incidents from the last week's runs; return those that people must be notified of.

    Call it after runs were judged. It is idempotent: an incident is returned on every call until
    `mark_notified`.

    Args:
        store: with all runs; one restricted to some DAGs would give wrong incidents.
        now: Unix time.
    """
    now = time.time() if now is None else now
    with write_transaction(store.url) as connection:
        lock_series(connection, {"table": "incidents"})
        comparison = compare_stored(store, judgements_since(store, now - WEEK_S))
        active = [Incident.stored(row) for row in incident_queries.read(connection, states=ACTIVE)]

        def is_accepted(incident: Incident) -> bool:
            levels = (judgement_queries.accepted(connection, cell.series.key) for cell in incident.cells)
            return any(
                level["accepted_at"] >= incident.opened_at
                for accepted in levels
                for level in accepted.values()
            )

        groups = [_with_node_sweep(group, store) for group in group_findings(comparison)]
        updated, merged = reconcile(
            active,
            comparison,
            groups,
            lambda series: series_judgements(store, series, limit=1),
            runs_on_nodes=read_node_runs(store, now),
            now=now,
        )
        for incident in updated:
            closed = close_returned(incident, now, is_accepted)
            if closed not in active:
                incident_queries.write(connection, closed.id, closed.as_row)
        incident_queries.delete(connection, [incident.id for incident in merged if incident.id is not None])
        return [*map(Incident.stored, incident_queries.read_unnotified(connection, ACTIVE, now))]


def reconcile(
    active: Sequence[Incident],
    comparison: Comparison,
    groups: Sequence[Group],
    read_judgements: Callable[[Series], Sequence[Judgement]],
    *,
    runs_on_nodes: Sequence[NodeRun],
    now: float,
) -> tuple[list[Incident], list[Incident]]:
    """Match groups with the active incidents; return the updated and new ones, and those merged into others.

    `groups` are those of `comparison`. `read_judgements` returns the judgements of a series, newest first.
    `runs_on_nodes` are the training runs of the last weeks, to see whether a node is usual again.
    """
    left, updated, merged = list(active), list[Incident](), list[Incident]()
    for group in groups:
        alike = [
            incident
            for incident in left
            if (incident.cluster, incident.direction) == (group.cluster, group.direction)
        ]
        same = [incident for incident in alike if group.explains(incident)]
        latest = {finding.series: finding.judgement for finding in group.findings}
        taken = {
            cell.series
            for incident in (*alike, *updated)
            if incident.kind == "change" and group.kind != "node" and incident not in same
            if incident.direction == group.direction
            for cell in incident.cells
            if cell.state not in AT_USUAL
            and cell.series in latest
            and cell.is_newest_step(latest[cell.series])
        }
        rest = replace(group, findings=tuple(one for one in group.findings if one.series not in taken))
        if not rest.findings:
            continue
        cells = {finding.series for finding in rest.findings}
        sharing = [incident for incident in alike if incident not in same and rest.absorbs(incident)]
        earlier = sorted((*same, *sharing), key=lambda incident: (incident.opened_at, incident.id or 0))
        judged_cells = sum(finding.series["cluster"] == group.cluster for finding in comparison.findings)
        opened = _opened(rest, judged_cells, now)
        joined = _merged(opened, earlier, rest) if earlier else opened
        updated.append(_with_current_states(joined, cells, read_judgements, runs_on_nodes))
        merged += earlier[1:]
        left = [incident for incident in left if incident not in earlier]
    left = [_with_current_states(incident, (), read_judgements, runs_on_nodes) for incident in left]
    return updated + left, merged


def group_findings(comparison: Comparison) -> list[Group]:
    """Group the series that got slower or faster by what they have in common, each in one group.

    Groups with a known cause (a change or a node) come first, then the largest.
    """
    by_series = {finding.series: finding for finding in comparison.findings}
    groups = [
        Group(
            cause.kind,
            cause.cluster,
            "" if cause.kind == "cluster" else cause.name,
            cause.direction,
            cause.sentence,
            cause.change,
            tuple(by_series[series] for series in cause.about if series in by_series),
            cause,
        )
        for cause in comparison.causes
    ]
    explained = {series for cause in comparison.causes for series in cause.cells}
    names = dict(zip((finding.series for finding in comparison.findings), comparison.names, strict=True))
    rest = [finding for finding in comparison.findings if finding.changed and finding.series not in explained]
    for alike, what in _alike(rest, comparison.findings):
        first, direction = alike[0], alike[0].series_state.direction or "slower"
        cluster = first.series["cluster"]
        change = statistics.median(finding.judgement.level_change for finding in alike)
        if len(alike) > 1:
            shared = [
                event for event in first.judgement.changes if is_notable(event) and _is_shared(event, alike)
            ]
            evidence = (
                f"changed in each then: {'; '.join(shared)}" if shared else "no recorded change in common"
            )
            groups.append(Group("family", cluster, what, direction, evidence, change, tuple(alike)))
        else:
            own = [one for one in filter(is_notable, first.judgement.changes) if one not in first.harmless]
            subject = "; ".join(own) or ("no change of its own" if first.harmless else "")
            if first.onset is not None and first.onset.weekly is not None:
                subject = first.onset.drift_words
            elif first.onset is not None and first.onset.perhaps_words:
                subject = f"{'; '.join(own) or 'a step'} or {first.onset.perhaps_words}"
            evidence = f"{names[first.series]}: {first.evidence}"
            groups.append(Group("cell", cluster, subject, direction, evidence, change, (first,)))
    return sorted(groups, key=lambda group: (group.kind not in _NAMED, -len(group.findings)))


def _with_node_sweep(group: Group, store: Store) -> Group:
    """Add what the newest node sweep measured of the group's nodes, if it ran since the slowdown began."""
    if group.cause is None or not group.nodes:
        return group
    swept = newest_node_sweep(store, store.results(cluster=group.cluster, since=group.cause.since))
    measured = swept.evidence(group.nodes) if swept else ""
    return replace(group, evidence=f"{group.evidence}. {measured}") if measured else group


def _is_shared(event: str, findings: Iterable[Finding]) -> bool:
    """Return whether every cell has this change (with the same new value) at the run with which it began."""
    return all(changed_to(event) in map(changed_to, finding.judgement.changes) for finding in findings)


def _alike(rest: Sequence[Finding], every: Sequence[Finding]) -> Iterator[tuple[list[Finding], str]]:
    """Yield groups of cells that have a property in common, with the property in words; '' for a single cell.

    The cells of a group are on one cluster, in one mode, moved in one direction and began within a week.
    `every` are all cells: those with the property that did not move are counted, too.
    """
    parts: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in sorted(rest, key=_began):
        key = (finding.series["cluster"], finding.series["mode"], finding.verdict)
        parts.setdefault(key, []).append(finding)
    for (cluster, mode, _), findings in parts.items():
        left = findings
        compared = [
            finding.series
            for finding in every
            if (finding.series["cluster"], finding.series["mode"]) == (cluster, mode)
        ]
        while left:
            within = [
                finding
                for finding in left
                if _began(finding) <= _began(left[0]) + TOGETHER_S and _may_share_a_cause(left[0], finding)
            ]
            moved = {finding.series for finding in within}
            common = common_property(left[0].series, moved, compared)
            group = [finding for finding in within if common and common.fits(finding.series)] or [left[0]]
            yield group, common.words(moved, compared) if common and len(group) > 1 else ""
            left = [finding for finding in left if finding not in group]


def _may_share_a_cause(finding: Finding, other: Finding) -> bool:
    """Return whether a recorded change may have moved both cells; also if nothing is recorded of either.

    It is a change at the run with which one of the cells likeliest began, and at any run with which the other
    may have begun. With which run a suspected cell began is not known yet.
    """
    if "suspected" in (finding.series_state.state, other.series_state.state):
        return True
    at_start, other_at_start = (_notable(cell.judgement.changes) for cell in (finding, other))
    if not at_start and not other_at_start:
        return True
    in_range, other_in_range = at_start | _nearby(finding), other_at_start | _nearby(other)
    return bool(at_start & other_in_range or other_at_start & in_range)


def _notable(changes: Iterable[str]) -> set[tuple[str, str]]:
    """Return the names and new values of changes, apart from those of nodes and of steptime's version."""
    return {changed_to(change) for change in changes if is_notable(change)}


def _nearby(finding: Finding) -> set[tuple[str, str]]:
    """Return what changed at the other runs with which the cell may have begun."""
    return _notable(finding.onset.nearby) if finding.onset else set()


def _began(finding: Finding) -> float:
    return float(finding.since or finding.run.row["submitted_at"])


def _opened(group: Group, judged_cells: int, now: float) -> Incident:
    if group.cause is not None and group.kind == "node":
        since = earliest = latest = group.cause.since
    else:
        since = min(map(_began, group.findings))
        earliest, latest = _range(group.findings)
    return Incident(
        id=None,
        cluster=group.cluster,
        direction=group.direction,
        kind=group.kind,
        subject=group.subject,
        state="confirmed" if group.cause and group.cause.is_confirmed else "open",
        opened_at=now,
        since=since,
        earliest=earliest,
        latest=latest,
        evidence=group.evidence,
        nodes=group.nodes,
        cells=_in_order(map(group.cell, group.findings)),
        change=group.change,
        judged_cells=judged_cells,
    )


def _merged(opened: Incident, earlier: Sequence[Incident], group: Group) -> Incident:
    """Merge `earlier` incidents and the new one into the first earlier one, with the cells of all.

    Cause, evidence, size and dates are either those of the new estimate or, when the incident is ending,
    those of the first one: never some of each.
    """
    first = earlier[0]
    cells = {cell.series: cell for incident in (*earlier, opened) for cell in incident.cells}
    ends = any(cell.state in AT_USUAL for cell in first.cells) or abs(opened.change) < SHRUNK * abs(
        first.change
    )
    if (first.kind in _NAMED and group.kind not in _NAMED) or (
        first.state == "confirmed" and ends and (group.explains(first) or group.kind not in _NAMED)
    ):
        names = ("kind", "subject", "evidence", "nodes", "since", "earliest", "latest", "change")
        opened = replace(opened, **{name: getattr(first, name) for name in names})
    return replace(
        opened,
        id=first.id,
        state="confirmed" if "confirmed" in (first.state, opened.state) else "open",
        opened_at=first.opened_at,
        confirmed_at=first.confirmed_at,
        notified=first.notified,
        cells=_in_order(cells.values()),
        note="; ".join(dict.fromkeys(incident.note for incident in earlier if incident.note)),
        noted_by=first.noted_by,
        noted_at=first.noted_at,
        silenced_until=first.silenced_until,
        silenced_by=first.silenced_by,
    )


def _in_order(cells: Iterable[IncidentCell]) -> tuple[IncidentCell, ...]:
    return tuple(sorted(cells, key=lambda cell: cell.series.full_name))


def _range(findings: Collection[Finding]) -> tuple[float, float]:
    """Return the intersection of all onset ranges; if it is empty, their union. Unix times."""
    earliest = [finding.onset.earliest if finding.onset else _began(finding) for finding in findings]
    latest = [finding.onset.latest if finding.onset else _began(finding) for finding in findings]
    if max(earliest) <= min(latest):
        return max(earliest), min(latest)
    return min(earliest), max(latest)


def _with_current_states(
    incident: Incident,
    known: Collection[Series],
    read_judgements: Callable[[Series], Sequence[Judgement]],
    runs_on_nodes: Sequence[NodeRun],
) -> Incident:
    """Return an incident with the current state of its cells, except for those of series in `known`."""

    if incident.kind == "node":
        return _with_current_node(incident, runs_on_nodes)

    def today(cell: IncidentCell) -> IncidentCell:
        if cell.series in known:
            return cell
        latest = next(iter(read_judgements(cell.series)), None)
        if (
            latest is None
            or not stands_out(latest.series_state, incident.direction)
            or _is_over(cell, latest)
        ):
            state = _state_at_usual(cell, latest, incident.direction)
            # What a search of all runs finds one week it may miss the next.
            if (
                latest
                and state == "returned"
                and incident.state == "confirmed"
                and _is_still_there(cell, latest)
            ):
                return replace(cell, job_name=latest.run.job_name)
            return replace(cell, state=state)
        if not cell.is_newest_step(latest):
            return replace(cell, job_name=latest.run.job_name, state="confirmed")
        return IncidentCell.of(cell.series, latest, incident.direction)

    cells = tuple(map(today, incident.cells))
    is_confirmed = incident.state == "confirmed" or any(cell.state == "confirmed" for cell in cells)
    return replace(incident, cells=cells, state="confirmed" if is_confirmed else "open")


def _is_still_there(cell: IncidentCell, latest: Judgement) -> bool:
    """Return whether the newest runs of a cell are at its changed level rather than at the usual one.

    The baseline may have moved along with the level.
    """
    against = latest.series_state.against
    if not against.suffices or cell.state in AT_USUAL:
        return False
    usual = replace(against, level=(cell.usual_s,))
    return not usual.is_over(cell.change, (*against.runs, latest.run.seconds))


def _is_over(cell: IncidentCell, latest: Judgement) -> bool:
    """Return whether only an earlier slowdown is left: the series is at the cell's usual level again."""
    against = latest.series_state.against.mean
    level = against * (1 + latest.level_change)
    return not latest.earlier and abs(cell.usual_s - level) < abs(cell.usual_s - against)


def _state_at_usual(cell: IncidentCell, latest: Judgement | None, direction: Direction) -> str:
    """Return the state of a cell that is no longer slower or faster: `NEW_LEVEL` or `returned`.

    A faster level that lasts becomes the baseline.
    """
    against = latest and latest.series_state.against
    settled = against and against.suffices and against.mean < cell.usual_s * (1 + cell.change / 2)
    return NEW_LEVEL if direction == "faster" and settled else "returned"


def _with_current_node(incident: Incident, runs_on_nodes: Sequence[NodeRun]) -> Incident:
    """Return a node's incident, with all cells as returned if the runs on the node are usual again.

    Confirmation runs avoid the node, so that their times say nothing about its end.
    """
    runs = [run for run in runs_on_nodes if run.series["cluster"] == incident.cluster]
    if not is_usual_again(runs, incident.nodes, incident.change, incident.since):
        return incident
    return replace(incident, cells=tuple(replace(cell, state="returned") for cell in incident.cells))


def close_returned(incident: Incident, now: float, is_accepted: Callable[[Incident], bool]) -> Incident:
    """Return the incident, closed if all of its series are back at their usual run times.

    Args:
        incident: the incident with the current state of its series.
        now: Unix time, for `closed_at`, and for `confirmed_at` of an incident that has just been confirmed.
        is_accepted: returns whether a person accepted the new run times. If so, the incident is closed as
            `accepted`. Else it is closed as `dismissed` if it was not confirmed, as `new level` if half
            of its series stayed faster, as `fixed` if they were slower, and as `ended` if they were faster.
    """
    if incident.state == "confirmed" and incident.confirmed_at is None:
        incident = replace(incident, confirmed_at=now)
    if any(cell.state not in AT_USUAL for cell in incident.cells):
        return incident
    state: IncidentState = "dismissed"
    if 2 * sum(cell.state == NEW_LEVEL for cell in incident.cells) >= len(incident.cells):
        state = "new level"
    elif incident.state == "confirmed":
        state = "fixed" if incident.direction == "slower" else "ended"
    return replace(incident, state="accepted" if is_accepted(incident) else state, closed_at=now)


def _cause_key(kind: IncidentKind, subject: str) -> Any:
    return changed_to(subject) if kind == "change" else subject
