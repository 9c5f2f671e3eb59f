"""Causes: what cells that moved have in common: a node, a recorded change, or that most moved together.

Each cell has one cause at most. A cause is found among the cells of one comparison, as chance is, and not
stored with a run. `docs/reference/judging.md` has the rates of errors.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steptime.judging.detection import Direction
from steptime.judging.models import Judgement
from steptime.judging.onset import date
from steptime.judging.series import Series
from steptime.recipes.node_lists import expand_nodes
from steptime.results.record import changed_to, is_notable

WEEK_S = 7 * 86_400.0
"""Runs that are older than the newest by more show nothing of what happens now, and cells that began to move
further apart did not move together."""
FEWEST_CELLS_ON_NODE = 3
NODE_ALPHA = 0.01
"""How often one of the nodes would be named by chance."""
FEWEST_CELLS_TOGETHER = 4
LEAST_PART_TOGETHER = 1 / 3
TOGETHER_ALPHA = 0.001
"""How often so many cells of one cluster would lean the same way by chance."""
LEANS = 0.05
"""A run leans if it is further off than so many of an unchanged cell, on each side."""


FEWEST_CELLS_SHARING = 2
SHARED_ALPHA = 0.01
"""How often as many of the cells that moved would share a change by chance, among all cells with it."""

HasChanged = Callable[[str, str], bool]
"""Whether a job was made with the value that an event of `changes` has changed to."""


@dataclass(frozen=True)
class Evidence:
    """What one run shows."""

    cell: Series
    job: str
    nodes: frozenset[str]
    leaning: Direction | None
    """In which direction it is off, by itself."""
    moved: Direction | None
    """Which way its cell has moved, as it stands with this run; what it leans to if it is not open."""
    is_open: bool
    """Whether its cell is suspected or confirmed."""
    change: float
    """Of the run, relative to the baseline of its cell: 0.03 is 3 % slower."""
    usual: float
    """A change of another run within this of it is no other change."""
    since: float
    """Unix time of the first run that moved."""
    changes: tuple[str, ...] = ()
    """At the runs with which an open level may have begun; without nodes and versions of steptime."""
    decided_on: tuple[frozenset[str], ...] | None = None
    """If it is confirmed, the nodes of each run that confirmed it, as far as they are known."""


@dataclass(frozen=True)
class CommonCause:
    """What several cells that moved have in common."""

    kind: Literal["node", "change", "cluster"]
    cluster: str
    name: str
    """The node or nodes, the change, or `whole cluster`."""
    sentence: str
    cells: frozenset[Series]
    """Those that it explains; no other cause explains them."""
    direction: Direction
    change: float
    """Their median: 0.03 is 3 % slower."""
    since: float
    """Unix time of the first run that moved."""
    nodes: tuple[str, ...] = ()
    """Of the kind `node`."""


def causes(judged: Mapping[Series, Sequence[Judgement]], has_changed: HasChanged) -> tuple[CommonCause, ...]:
    """Return what moved cells of a comparison have in common: a node, a change, or the whole cluster.

    Args:
        judged: of each cell its runs, latest first.
        has_changed: tells whether a job of a cell that is not open has a change, too.
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
    return judged.standing.against.suffices and judged.run.row["submitted_at"] >= since


def _evidence(series: Series, judged: Judgement) -> Evidence:
    standing, row = judged.standing, judged.run.row
    is_open = standing.state in ("suspected", "confirmed")
    leaning = standing.against.direction([judged.run.seconds], alpha=LEANS, least=0.0)
    fresh = judged.placement.fresh if judged.placement else ()
    nearby = judged.onset.nearby if judged.onset else ()
    return Evidence(
        cell=series,
        job=judged.run.job_name,
        nodes=frozenset(filter(None, (row["nodes"] or "").split(", "))),
        leaning=leaning,
        moved=standing.direction if is_open else leaning,
        is_open=is_open,
        change=standing.against.change([judged.run.seconds]),
        usual=standing.against.bound(),
        since=judged.onset.at if judged.onset else row["submitted_at"],
        changes=tuple(filter(is_notable, (*judged.changes, *nearby))),
        decided_on=(
            tuple(frozenset(expand_nodes(nodes)) for nodes in fresh)
            if standing.state == "confirmed"
            else None
        ),
    )


def _slow_nodes(cluster: str, cells: Mapping[Series, Sequence[Evidence]]) -> Iterator[CommonCause]:
    """Yield nodes whose cells are slower more often than by chance, the clearest first.

    Fisher's exact test compares slow or not with on the node or not; a cell counts once on each side. The
    runs of a node that was found are left out when the next one is looked for.
    """
    from scipy import stats

    every = len({node for some in cells.values() for run in some for node in run.nodes})
    while True:
        slow_cells: dict[str, set[Series]] = {}
        for series, some in cells.items():
            for node in {node for run in some if run.leaning == "slower" for node in run.nodes}:
                slow_cells.setdefault(node, set()).add(series)
        tables = {
            node: _Table.of(node, cells)
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
class _Table:
    """Cells on a node and elsewhere."""

    on: Mapping[Series, Sequence[Evidence]]
    """Its runs on the node."""
    off: Mapping[Series, bool]
    """Whether most of its runs elsewhere are slow."""

    @classmethod
    def of(cls, node: str, cells: Mapping[Series, Sequence[Evidence]]) -> "_Table":
        """Leave out cells that were confirmed without the node: they are slower for another reason."""
        counted = {
            series: some for series, some in cells.items() if some and not _confirmed_without(node, some[0])
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


def _confirmed_without(node: str, latest: Evidence) -> bool:
    """Whether a cell was confirmed by runs of which one is known to have had other nodes, or by old ones."""
    return latest.decided_on is not None and (
        not latest.decided_on or any(nodes and node not in nodes for nodes in latest.decided_on)
    )


def _mostly_slow(runs: Collection[Evidence]) -> bool:
    return sum(run.leaning == "slower" for run in runs) * 2 > len(runs)


def _named_node(cluster: str, alike: Sequence[str], table: _Table) -> CommonCause:
    """Return the cause, with the cells that are slower on the nodes by about as much as the others are."""
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
    return CommonCause("node", cluster, name, sentence, fitting, "slower", change, since, tuple(alike))


def _shared(cluster: str, latest: Sequence[Evidence], has_changed: HasChanged) -> Iterator[CommonCause]:
    """Yield what the cells of a cluster share that moved the same way; `latest` has one run of each."""
    directions: tuple[Direction, ...] = ("slower", "faster")
    for direction in directions:
        open_ones = [run for run in latest if run.is_open and run.moved == direction]
        found = _moved_together(cluster, direction, latest, has_changed)
        if found is not None:
            yield found
        left = [run for run in open_ones if found is None or run.cell not in found.cells]
        others = [run for run in latest if not (run.is_open and run.moved == direction)]
        while (change := _most_shared(left)) is not None:
            sharing = _sharing(left, change)
            having = sum(has_changed(run.job, change) for run in others)
            if not _is_chance(len(sharing), len(left), having, len(others)):
                yield _named_change(change, sharing, open_ones)
            left = [run for run in left if run not in sharing]


def _is_chance(sharing: int, moved: int, others_with: int, others: int) -> bool:
    """Whether that many of the moved cells may have a change by chance, as so many others have it."""
    from scipy import stats

    every, having = moved + others, sharing + others_with
    return float(stats.hypergeom.sf(sharing - 1, every, having, moved)) > SHARED_ALPHA


def _moved_together(
    cluster: str, direction: Direction, latest: Sequence[Evidence], has_changed: HasChanged
) -> CommonCause | None:
    """Return that many cells of a cluster began to move the same way within a week; None if not.

    The cause is the change that most of them share; those that are known to be without it are left out.
    """
    from scipy import stats

    moved = [run for run in latest if run.moved == direction]
    weeks = [[run for run in moved if 0 <= run.since - first.since <= WEEK_S] for first in moved]
    together = max(weeks, key=len, default=[])
    # Those that moved at another time did so for a reason of their own.
    every = len(latest) - len(moved) + len(together)
    chance = float(stats.binom.sf(len(together) - 1, every, LEANS)) if together else 1.0
    if len(together) < max(FEWEST_CELLS_TOGETHER, LEAST_PART_TOGETHER * every) or chance > TOGETHER_ALPHA:
        return None
    open_ones = [run for run in moved if run.is_open]
    known = [run for run in together if run.is_open]
    change = _most_shared(known)
    if change is not None and 2 * len(_sharing(known, change)) > len(known):
        leaning = [run for run in moved if not run.is_open and has_changed(run.job, change)]
        return _named_change(change, _sharing(open_ones, change), open_ones, leaning)
    percent = 100 * statistics.median(run.change for run in together)
    since = min(run.since for run in together)
    apart = (
        f" ({len(moved) - len(together)} more moved at another time)" if len(moved) > len(together) else ""
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
    """Return the change that most cells share, the first of several; None if no two share one."""
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
    leaning: Sequence[Evidence] = (),
) -> CommonCause:
    cluster, direction = sharing[0].cell["cluster"], sharing[0].moved or "slower"
    counted = Counter(changed_to(one) for run in sharing for one in dict.fromkeys(run.changes))
    of_first = {changed_to(one): one for run in reversed(sharing) for one in run.changes}
    also = [
        f"{of_first[key]} ({count} of {len(sharing)})"
        for key, count in counted.items()
        if key != changed_to(change) and 2 * count > len(sharing)
    ]
    median = statistics.median(run.change for run in (*sharing, *leaning))
    since = min(run.since for run in sharing)
    return CommonCause(
        "change",
        cluster,
        change,
        f"{change}: {len(sharing)} of the {len(open_ones)} {direction} cells on {cluster} began with it, "
        f"since {date(since)}, by {abs(100 * median):.1f} % at the median"
        + (f"; {len(leaning)} more that have it lean the same way" if leaning else "")
        + (f"; also changed: {'; '.join(also)}" if also else ""),
        frozenset(run.cell for run in (*sharing, *leaning)),
        direction,
        median,
        since,
    )
