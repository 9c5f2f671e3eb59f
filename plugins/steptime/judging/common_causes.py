"""Find what cells that got slower or faster have in common: a node, a recorded change, or the whole cluster.

A cell is one configuration; in a comparison its newest judged run represents it. A cell gets at most one
cause. Causes are found anew for each comparison, and not stored with runs. `docs/reference/judging.md` has
the error rates.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steptime.judging.detection import Direction
from steptime.judging.models import Judgement
from steptime.judging.onset import date
from steptime.judging.record_changes import changed_to, is_notable
from steptime.judging.series import Series
from steptime.recipes.node_lists import expand_nodes
from steptime.store.run_records import split_nodes

WEEK_S = 7 * 86_400.0
"""Runs that are older than the newest one by more than this are ignored. Cells whose levels began further
apart than this did not change together."""
FEWEST_CELLS_ON_NODE = 3
NODE_ALPHA = 0.01
"""Probability that chance alone names any node of the cluster."""
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
    """One run of a series, as evidence in the search for a common cause: its nodes, slowdown and changes."""

    cell: Series
    job: str
    nodes: frozenset[str]
    tendency: Direction | None
    """Whether the run by itself is slower or faster than usual, at the probability `LEANS`."""
    direction: Direction | None
    """Direction of the cell's suspected or confirmed change; without one, the same as `tendency`."""
    is_open: bool
    """Whether its cell has a suspected or confirmed change."""
    change: float
    """The run's time relative to the baseline of its cell: 0.03 is 3 % slower."""
    usual: float
    """Largest change that is usual for one run of the cell; changes closer than this count as equal."""
    since: float
    """Unix time of the run with which the change began; of this run if its cell has no such change."""
    changes: tuple[str, ...] = ()
    """What changed at the runs with which the level may have begun, apart from nodes and the version of
    steptime."""
    stragglers: str = ""
    """Nodes and ranks of the run that stand apart from its others, as in the column of that name."""
    decided_on: tuple[frozenset[str], ...] | None = None
    """Nodes of each run that confirmed the change, as far as known; None if it is not confirmed."""


@dataclass(frozen=True)
class CommonCause:
    """A cause that explains why several series of runs (cells) got slower or faster."""

    kind: Literal["node", "change", "cluster"]
    cluster: str
    name: str
    """The nodes, the change, or `whole cluster`."""
    sentence: str
    cells: frozenset[Series]
    """The cells that it explains; no cell is in two causes."""
    direction: Direction
    change: float
    """Median change of the cells: 0.03 is 3 % slower."""
    since: float
    """Unix time of the first run that was slower or faster."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes if the kind is `node`, else empty."""


def causes(judged: Mapping[Series, Sequence[Judgement]], has_changed: HasChanged) -> tuple[CommonCause, ...]:
    """Find what series that got slower or faster have in common: a node, a change, or the whole cluster.

    Args:
        judged: the judgements of each series, newest run first.
        has_changed: takes a job name and a change, a text such as `image a → b`; returns whether the job ran
            with the change's new value.
    """
    runs = [run for some in judged.values() for run in some]
    newest = max((run.run.row["submitted_at"] for run in runs), default=0.0)
    found: list[CommonCause] = []
    for cluster in sorted({series["cluster"] for series in judged}):
        cells = {
            series: some
            for series, of_cell in judged.items()
            if series["cluster"] == cluster
            and (some := [_evidence(series, run) for run in of_cell if _counts(run, newest - WEEK_S)])
        }
        found += _slow_nodes(cluster, cells)
        explained = frozenset[Series]().union(*(cause.cells for cause in found))
        latest = [some[0] for series, some in cells.items() if series not in explained]
        found += _shared(cluster, latest, has_changed)
    return tuple(found)


def _counts(judged: Judgement, since: float) -> bool:
    return judged.series_state.against.suffices and judged.run.row["submitted_at"] >= since


def _evidence(series: Series, judged: Judgement) -> Evidence:
    series_state, row = judged.series_state, judged.run.row
    is_open = series_state.state in ("suspected", "confirmed")
    tendency = series_state.against.direction([judged.run.seconds], alpha=LEANS, least=0.0)
    confirmations = judged.placement.confirmations if judged.placement else ()
    nearby = judged.onset.nearby if judged.onset else ()
    return Evidence(
        cell=series,
        job=judged.run.job_name,
        nodes=frozenset(split_nodes(row["nodes"])),
        tendency=tendency,
        direction=series_state.direction if is_open else tendency,
        is_open=is_open,
        change=series_state.against.change([judged.run.seconds]),
        usual=series_state.against.bound(),
        since=judged.onset.at if judged.onset else row["submitted_at"],
        changes=tuple(filter(is_notable, (*judged.changes, *nearby))),
        stragglers=row["stragglers"] or "",
        decided_on=(
            tuple(frozenset(expand_nodes(nodes)) for nodes in confirmations)
            if series_state.state == "confirmed"
            else None
        ),
    )


def _slow_nodes(cluster: str, cells: Mapping[Series, Sequence[Evidence]]) -> Iterator[CommonCause]:
    """Yield a common cause for each node on which more cells are slower than by chance, the clearest first.

    Fisher's exact test compares how many of the cells on the node are slow with how many elsewhere are. A
    cell that ran on the node and elsewhere counts once on each side. After a node is found, its runs are left
    out of the search for the next one. Nodes that had the same runs are one cause.
    """
    from scipy import stats

    every = len({node for some in cells.values() for run in some for node in run.nodes})
    while True:
        slow_cells: dict[str, set[Series]] = {}
        for series, some in cells.items():
            for node in {node for run in some if run.tendency == "slower" for node in run.nodes}:
                slow_cells.setdefault(node, set()).add(series)
        tables = {
            node: _NodeTable.of(node, cells)
            for node, slow in slow_cells.items()
            if len(slow) >= FEWEST_CELLS_ON_NODE
        }
        chances = {
            node: float(
                stats.hypergeom.sf(
                    len(table.slow) - 1,
                    len(table.on) + len(table.off),
                    len(table.slow) + sum(table.off.values()),
                    len(table.on),
                )
            )
            for node, table in tables.items()
            if len(table.slow) >= FEWEST_CELLS_ON_NODE
        }
        worst = min(chances, key=lambda node: (chances[node], node), default=None)
        if worst is None or chances[worst] * every > NODE_ALPHA:
            return
        alike = sorted(node for node, table in tables.items() if table.jobs == tables[worst].jobs)
        found = _named_node(cluster, alike, tables[worst])
        yield found
        cells = {
            series: [run for run in some if worst not in run.nodes]
            for series, some in cells.items()
            if series not in found.cells
        }


@dataclass(frozen=True)
class _NodeTable:
    """The contingency table of a node: cells that ran on it and cells that ran elsewhere."""

    on: Mapping[Series, Sequence[Evidence]]
    """The runs of each cell on the node."""
    off: Mapping[Series, bool]
    """For each cell with runs elsewhere, whether most of those are slow."""

    @classmethod
    def of(cls, node: str, cells: Mapping[Series, Sequence[Evidence]]) -> "_NodeTable":
        """Build the table of a node, without cells confirmed on other nodes: those have another cause."""
        counted = {
            series: some for series, some in cells.items() if some and not _confirmed_without(node, some)
        }
        parted = {
            series: [[run for run in some if (node in run.nodes) == on] for on in (True, False)]
            for series, some in counted.items()
        }
        return cls(
            {series: on for series, (on, _) in parted.items() if on},
            {series: _mostly_slow(off) for series, (_, off) in parted.items() if off},
        )

    @property
    def slow(self) -> dict[Series, Sequence[Evidence]]:
        return {series: some for series, some in self.on.items() if _mostly_slow(some)}

    @property
    def jobs(self) -> set[str]:
        return {run.job for some in self.on.values() for run in some}


def _confirmed_without(node: str, some: Sequence[Evidence]) -> bool:
    """Return whether a slowdown was confirmed without this node: by older runs, or by a slow run elsewhere.

    `some` are the cell's runs, newest first.
    """
    decided_on = some[0].decided_on
    not_slow = {run.nodes for run in some if run.tendency != "slower"}
    return decided_on is not None and (
        not decided_on or any(nodes and node not in nodes and nodes not in not_slow for nodes in decided_on)
    )


def _mostly_slow(runs: Collection[Evidence]) -> bool:
    return sum(run.tendency == "slower" for run in runs) * 2 > len(runs)


def _named_node(cluster: str, alike: Sequence[str], table: _NodeTable) -> CommonCause:
    """Describe slow nodes as a common cause of the cells whose slowdown there is close to the median one."""
    changes = {series: statistics.median(run.change for run in some) for series, some in table.slow.items()}
    change = statistics.median(changes.values())
    fitting = frozenset(
        series for series, some in table.slow.items() if abs(changes[series] - change) <= some[0].usual
    )
    name = f"node{'s' * (len(alike) > 1)} {', '.join(alike)}"
    since = min(run.since for some in table.slow.values() for run in some)
    sentence = (
        f"{name}: slower in {len(table.slow)} of the {len(table.on)} cells that ran there, by "
        f"{100 * change:.1f} % at the median, since {date(since)}, and in "
        f"{sum(table.off.values())} of {len(table.off)} elsewhere"
    )
    if told := _told_of_nodes(alike, [run for some in table.slow.values() for run in some]):
        sentence += f"; in one of its runs: {told}"
    return CommonCause("node", cluster, name, sentence, fitting, "slower", change, since, tuple(alike))


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
        open_ones = [run for run in latest if run.is_open and run.direction == direction]
        found = _changed_together(cluster, direction, latest, has_changed)
        if found is not None:
            yield found
        left = [run for run in open_ones if found is None or run.cell not in found.cells]
        others = [run for run in latest if not (run.is_open and run.direction == direction)]
        while (change := _most_shared(left)) is not None:
            sharing = _sharing(left, change)
            having = sum(has_changed(run.job, change) for run in others)
            if not _is_chance(len(sharing), len(left), having, len(others)):
                yield _named_change(change, sharing, open_ones)
            left = [run for run in left if run not in sharing]


def _is_chance(sharing: int, changed: int, others_with: int, others: int) -> bool:
    """Return whether chance explains that `sharing` of the `changed` (slower or faster) cells share a change.

    Of the `others` cells, `others_with` have the same change.
    """
    from scipy import stats

    every, having = changed + others, sharing + others_with
    return float(stats.hypergeom.sf(sharing - 1, every, having, changed)) > SHARED_ALPHA


def _changed_together(
    cluster: str, direction: Direction, latest: Sequence[Evidence], has_changed: HasChanged
) -> CommonCause | None:
    """Return the common cause if many of a cluster's cells got slower (or faster) within one week, else None.

    The cause is the change that more than half of them share, and then it covers only cells with that change.
    If there is no such change, the cause is the whole cluster.
    """
    from scipy import stats

    changed = [run for run in latest if run.direction == direction]
    weeks = [[run for run in changed if 0 <= run.since - first.since <= WEEK_S] for first in changed]
    together = max(weeks, key=len, default=[])
    # Cells that moved at another time have another reason.
    every = len(latest) - len(changed) + len(together)
    chance = float(stats.binom.sf(len(together) - 1, every, LEANS)) if together else 1.0
    if len(together) < max(FEWEST_CELLS_TOGETHER, LEAST_PART_TOGETHER * every) or chance > TOGETHER_ALPHA:
        return None
    open_ones = [run for run in changed if run.is_open]
    known = [run for run in together if run.is_open]
    change = _most_shared(known)
    if change is not None and 2 * len(_sharing(known, change)) > len(known):
        tending = [run for run in changed if not run.is_open and has_changed(run.job, change)]
        return _named_change(change, _sharing(open_ones, change), open_ones, tending)
    percent = 100 * statistics.median(run.change for run in together)
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
        f"{date(since)}{apart}, by {abs(percent):.1f} % at the median; most share no recorded change",
        frozenset(run.cell for run in together),
        direction,
        percent / 100,
        since,
    )


def _most_shared(runs: Iterable[Evidence]) -> str | None:
    """Return the change, such as `image a → b`, that most cells share; None if no two cells share one."""
    counted = Counter(changed_to(change) for run in runs for change in dict.fromkeys(run.changes))
    most = max(counted, key=lambda key: counted[key], default=None)
    if most is None or counted[most] < FEWEST_CELLS_SHARING:
        return None
    return next(change for run in runs for change in run.changes if changed_to(change) == most)


def _sharing(runs: Iterable[Evidence], change: str) -> list[Evidence]:
    return [run for run in runs if any(changed_to(one) == changed_to(change) for one in run.changes)]


def _named_change(
    change: str,
    sharing: Sequence[Evidence],
    open_ones: Sequence[Evidence],
    tending: Sequence[Evidence] = (),
) -> CommonCause:
    cluster, direction = sharing[0].cell["cluster"], sharing[0].direction or "slower"
    counted = Counter(changed_to(one) for run in sharing for one in dict.fromkeys(run.changes))
    of_first = {changed_to(one): one for run in reversed(sharing) for one in run.changes}
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
        f"{change}: {len(sharing)} of the {len(open_ones)} {direction} cells on {cluster} began with it, "
        f"since {date(since)}, by {abs(100 * median):.1f} % at the median"
        + (f"; {len(tending)} more that have it lean the same way" if tending else "")
        + (f"; also changed: {'; '.join(also)}" if also else ""),
        frozenset(run.cell for run in (*sharing, *tending)),
        direction,
        median,
        since,
    )
