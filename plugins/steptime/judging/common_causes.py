"""Find what cells that got slower or faster have in common: a node, a recorded change, or the whole cluster.

A cell is one configuration; in a comparison its newest judged run represents it. A cell gets at most one
cause. Causes are found anew for each comparison, and not stored with runs. `docs/reference/judging.md` has
the error rates.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from steptime.durations import WEEK_S
from steptime.judging.detection import Direction
from steptime.judging.node_effects import NodeRun, SlowNode, slow_nodes
from steptime.judging.onset import SHORTEST_RAMP_S
from steptime.judging.record_changes import changed_to, is_notable
from steptime.judging.run_judgement import Judgement, with_job_names
from steptime.judging.series import Series
from steptime.wording import date

TOGETHER_S = WEEK_S
"""Runs that are older than the newest one by more than this are ignored. Cells whose levels began further
apart than this did not change together."""
CONFIRMING_CELLS = 2
"""A slow node is confirmed if this many of its slow cells were not slow on other nodes."""
FEWEST_CELLS_TOGETHER = 4
LEAST_PART_TOGETHER = 1 / 3
TOGETHER_ALPHA = 0.001
"""Probability that chance alone makes this many cells of one cluster lean the same way."""
LEANS = 0.05
"""A run leans to slower or faster if at most this share of an unchanged cell's runs is as far off."""


FEWEST_CELLS_SHARING = 2
SHARED_ALPHA = 0.01
"""Probability that chance alone makes this many of the changed cells share a change."""

HasChanged = Callable[[str, str], bool]
"""Takes a job name and a change such as `image a → b`; returns whether the job ran with the new value."""


@dataclass(frozen=True)
class Evidence:
    """One run of a series, as evidence in the search for a common cause: its slowdown and what changed."""

    cell: Series
    job: str
    direction: Direction | None
    """Direction of the cell's suspected or confirmed change; without one, that in which the run leans
    (`LEANS`), None if it does not lean."""
    is_open: bool
    """Whether its cell has a suspected or confirmed change."""
    change: float
    """Change of the cell's suspected or confirmed level against its baseline, else of the run: 0.03 is 3 %
    slower."""
    since: float
    """Unix time of the run with which the change began; of this run if its cell has no such change."""
    latest: float
    """Unix time of the last run with which it may have begun."""
    drifts: bool = False
    """Whether the cell by itself seems to drift rather than to have jumped."""
    changes: tuple[str, ...] = ()
    """What changed at the runs with which the level may have begun, apart from nodes and the version of
    steptime."""
    stragglers: str = ""
    """Nodes and ranks of the run that stand apart from its others, as in the column of that name."""
    small_step: frozenset[str] = frozenset()
    """Job names of the runs since a small step, which no single run showed; empty without one."""

    def may_have_moved(self, since: float) -> bool:
        """Return whether the cell may have moved with others that did at `since` (Unix time).

        When a cell that only leans began to do so is not known, and a jump may look like a drift through it.
        """
        return not self.is_open or (self.drifts and since <= self.latest + SHORTEST_RAMP_S)


@dataclass(frozen=True)
class CommonCause:
    """A cause that explains why several series of runs (cells) got slower or faster."""

    kind: Literal["node", "change", "cluster"]
    cluster: str
    name: str
    """The nodes, the change, or `whole cluster`."""
    sentence: str
    cells: frozenset[Series]
    """The cells whose slowdown or speed-up it explains; no cell is in two causes."""
    direction: Direction
    change: float
    """Median change of the cells: 0.03 is 3 % slower."""
    since: float
    """Unix time of the first run that was slower or faster."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes if the kind is `node`, else empty."""
    changes: Mapping[Series, float] = field(default_factory=dict)
    """The change of each cell on these nodes if the kind is `node`, else empty; also of cells that are slower
    or faster on other nodes, too, which another cause may explain."""
    is_confirmed: bool = False
    """Whether the slow cells of a node are faster on other nodes; False for other kinds."""

    @property
    def about(self) -> frozenset[Series]:
        """The cells that it explains, and those that its nodes slow besides."""
        return self.cells | self.changes.keys()


def causes(
    judged: Mapping[Series, Sequence[Judgement]], has_changed: HasChanged, runs_on_nodes: Sequence[NodeRun]
) -> tuple[CommonCause, ...]:
    """Find what series that got slower or faster have in common: a node, a change, or the whole cluster.

    Args:
        judged: the judgements of each series, newest run first.
        has_changed: takes a job name and a change, a text such as `image a → b`; returns whether the job ran
            with the change's new value.
        runs_on_nodes: the training runs of the last weeks, also of other series, as evidence on nodes.
    """
    newest = max((run.run.row["submitted_at"] for runs in judged.values() for run in runs), default=0.0)
    common: list[CommonCause] = []
    for cluster in sorted({series["cluster"] for series in judged}):
        cells = {
            series: evidence
            for series, of_cell in judged.items()
            if series["cluster"] == cluster
            and (evidence := [_evidence(series, run) for run in of_cell if _counts(run, newest - TOGETHER_S)])
        }
        runs = [run for run in runs_on_nodes if run.series["cluster"] == cluster]
        every = [run for evidence in cells.values() for run in evidence]
        nodes = [_named_node(slow, every) for slow in slow_nodes(runs)]
        explained = frozenset[Series]().union(*(cause.cells for cause in nodes))
        latest = [evidence[0] for series, evidence in cells.items() if series not in explained]
        common += [*nodes, *_shared(cluster, latest, has_changed)]
    return tuple(common)


def _counts(judged: Judgement, since: float) -> bool:
    return judged.series_state.against.suffices and judged.run.row["submitted_at"] >= since


def _evidence(series: Series, judged: Judgement) -> Evidence:
    series_state, row = judged.series_state, judged.run.row
    is_open = series_state.state in ("suspected", "confirmed")
    tendency = series_state.against.direction([judged.run.seconds], alpha=LEANS, least=0.0)
    nearby = judged.onset.nearby if judged.onset else ()
    return Evidence(
        cell=series,
        job=judged.run.job_name,
        direction=series_state.direction if is_open else tendency,
        is_open=is_open,
        change=judged.level_change if is_open else series_state.against.change([judged.run.seconds]),
        since=judged.onset.at if judged.onset else row["submitted_at"],
        latest=judged.onset.latest if judged.onset else row["submitted_at"],
        drifts=judged.onset is not None and judged.onset.weekly is not None,
        changes=tuple(filter(is_notable, (*judged.changes, *nearby))),
        stragglers=row["stragglers"] or "",
        small_step=frozenset(name for name, _ in with_job_names(series_state.since))
        if judged.is_step
        else frozenset(),
    )


def _named_node(slow: SlowNode, evidence: Sequence[Evidence]) -> CommonCause:
    """Describe slow nodes as the common cause of the cells that were slow there.

    A cell with a small step of its own, which its runs on other nodes have, too, is reported for that one.
    `evidence` are the runs of the comparison, which may tell how a node differs.
    """
    nodes, effect = slow.nodes, slow.effect
    name = f"node{'s' * (len(nodes) > 1)} {', '.join(nodes)}"
    moved = {run.cell for run in evidence if not run.small_step <= slow.jobs}
    explained = {series: change for series, change in slow.slow.items() if series not in moved}
    changes = {**explained, **slow.on_top}
    cells, elsewhere = len(changes), len(slow.elsewhere & changes.keys())
    sentence = (
        f"{name}: {percent(effect.change)} slower ({100 * effect.low:.1f} to {percent(effect.high)}) in "
        f"{cells} of the {slow.ran} cells that ran there, since {date(effect.since)}; "
        f"{elsewhere} of the {cells} also ran on other nodes since then, where they were faster"
    )
    there = [run for run in evidence if run.job in slow.jobs and run.cell in slow.slow]
    if told := _told_of_nodes(nodes, there):
        sentence += f"; in one of its runs: {told}"
    return CommonCause(
        "node",
        effect.cluster,
        name,
        sentence,
        frozenset(explained),
        "slower",
        effect.change,
        effect.since,
        nodes,
        changes,
        is_confirmed=elsewhere >= CONFIRMING_CELLS,
    )


def percent(change: float) -> str:
    """Return a relative change without its sign, as in `5.1 %`."""
    return f"{abs(100 * change):.1f} %"


def _told_of_nodes(nodes: Sequence[str], runs: Iterable[Evidence]) -> str:
    """Return how one of these nodes differs (slow, hot, …) in the first run that says so, else ''."""
    beginnings = tuple(f"node {node}: " for node in nodes)
    clauses = (clause for run in runs for clause in run.stragglers.split("; "))
    return next((clause.partition(": ")[2] for clause in clauses if clause.startswith(beginnings)), "")


def _shared(cluster: str, latest: Sequence[Evidence], has_changed: HasChanged) -> Iterator[CommonCause]:
    """Yield common causes of a cluster's cells that got slower, then of those that got faster.

    A cause is a change, such as a new image, or the whole cluster. `latest` has the newest run of each cell.
    """
    directions: tuple[Direction, ...] = ("slower", "faster")
    for direction in directions:
        together = _changed_together(cluster, direction, latest, has_changed)
        if together is not None:
            yield together
        rest = [run for run in latest if together is None or run.cell not in together.cells]
        left = [run for run in rest if run.is_open and run.direction == direction]
        while (change := _most_shared(left)) is not None:
            sharing = _sharing(left, change)
            began = [run.since for run in sharing]
            # Cells that moved at another time have another reason.
            first, last = min(began) - TOGETHER_S, max(began) + TOGETHER_S
            moved = [run for run in left if first <= run.since <= last]
            others = [run for run in rest if run not in moved]
            having = sum(has_changed(run.job, change) for run in others)
            if not _is_chance(len(sharing), len(moved), having, len(others)):
                yield _named_change(change, sharing, having)
            left = [run for run in left if run not in sharing]


def _is_chance(sharing: int, changed: int, others_with: int, others: int) -> bool:
    """Return whether chance explains that `sharing` of the `changed` (slower or faster) cells share a change.

    Of the `others` cells, `others_with` have the same change.
    """
    every, having = changed + others, sharing + others_with
    ways = sum(
        math.comb(having, number) * math.comb(every - having, changed - number)
        for number in range(sharing, min(having, changed) + 1)
    )
    return ways / math.comb(every, changed) > SHARED_ALPHA  # the hypergeometric distribution


def _changed_together(
    cluster: str, direction: Direction, latest: Sequence[Evidence], has_changed: HasChanged
) -> CommonCause | None:
    """Return the common cause if many of a cluster's cells got slower (or faster) within one week, else None.

    The cause is the change that more than half of them share, and then it covers only cells with that change.
    If there is no such change, the cause is the whole cluster.
    """
    from scipy import special

    changed = [run for run in latest if run.direction == direction]

    def moved_with(first: Evidence) -> list[Evidence]:
        """Return the cells that moved within a week from this one, and those that lean with their change."""
        within = [run for run in changed if 0 <= run.since - first.since <= TOGETHER_S]
        change = _most_shared([run for run in within if run.is_open])
        return [
            run
            for run in changed
            if run in within or (change and run.may_have_moved(first.since) and has_changed(run.job, change))
        ]

    weeks = [moved_with(first) for first in changed]
    together = max(weeks, key=len, default=[])
    # Cells that moved at another time have another reason.
    every = len(latest) - len(changed) + len(together)
    chance = float(special.bdtrc(len(together) - 1, every, LEANS)) if together else 1.0
    if len(together) < max(FEWEST_CELLS_TOGETHER, LEAST_PART_TOGETHER * every) or chance > TOGETHER_ALPHA:
        return None
    open_ones = [run for run in changed if run.is_open]
    known = [run for run in together if run.is_open]
    candidate = "most share no recorded change"
    change = _most_shared(known)
    if change is not None and 2 * len(_sharing(known, change)) > len(known):
        sharing = _sharing(open_ones, change)
        since = min(run.since for run in sharing)
        tending = [
            run
            for run in changed
            if run not in sharing and run.may_have_moved(since) and has_changed(run.job, change)
        ]
        others = [run for run in latest if run not in sharing and run not in tending]
        having = sum(has_changed(run.job, change) for run in others)
        moved = len(sharing) + len(tending)
        if moved >= having or not _is_chance(moved, len(changed), having, len(others)):
            return _named_change(change, sharing, having, tending)
        candidate = f"most share {change}, but so do {having} cells that are not"
    change_of_all = statistics.median(run.change for run in together)
    since = min(run.since for run in together)
    apart = (
        f" ({len(changed) - len(together)} more moved at another time)"
        if len(changed) > len(together)
        else ""
    )
    return CommonCause(
        "cluster",
        cluster,
        "whole cluster",
        f"{len(together)} of {len(latest)} cells on {cluster} are {direction} together since "
        f"{date(since)}{apart}, by {percent(change_of_all)} at the median; {candidate}",
        frozenset(run.cell for run in together),
        direction,
        change_of_all,
        since,
    )


def _most_shared(runs: Sequence[Evidence]) -> str | None:
    """Return the change, such as `image a → b`, that most cells share; None if no two cells share one."""
    counted = Counter(changed_to(change) for run in runs for change in dict.fromkeys(run.changes))
    most = max(counted, key=lambda key: counted[key], default=None)
    if most is None or counted[most] < FEWEST_CELLS_SHARING:
        return None
    return next(change for run in runs for change in run.changes if changed_to(change) == most)


def _sharing(runs: Iterable[Evidence], change: str) -> list[Evidence]:
    return [run for run in runs if any(changed_to(other) == changed_to(change) for other in run.changes)]


def _named_change(
    change: str,
    sharing: Sequence[Evidence],
    unharmed: int,
    tending: Sequence[Evidence] = (),
) -> CommonCause:
    """Describe a recorded change as the common cause of the cells that began with it.

    `unharmed` is the number of other cells that have the change. `tending` are cells with the change that
    lean the same way, but are not suspected themselves.
    """
    cluster, direction = sharing[0].cell["cluster"], sharing[0].direction or "slower"
    counted = Counter(changed_to(event) for run in sharing for event in dict.fromkeys(run.changes))
    of_first = {changed_to(event): event for run in reversed(sharing) for event in run.changes}
    also = [
        f"{of_first[key]} ({count} of {len(sharing)})"
        for key, count in counted.items()
        if key != changed_to(change) and 2 * count > len(sharing)
    ]
    median = statistics.median(run.change for run in (*sharing, *tending))
    since = min(run.since for run in sharing)
    return CommonCause(
        "change",
        cluster,
        change,
        f"{change}: {len(sharing)} of {len(sharing) + len(tending) + unharmed} cells with that change on "
        f"{cluster} became {direction} with it, since {date(since)}, by {percent(median)} at the median"
        + (f"; {len(tending)} more of them lean the same way" if tending else "")
        + (f"; also changed: {'; '.join(also)}" if also else ""),
        frozenset(run.cell for run in (*sharing, *tending)),
        direction,
        median,
        since,
    )
