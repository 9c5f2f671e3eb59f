"""Causes: what the cells that moved have in common, a node that slows its runs, or that most moved together.

A cause is found among the cells of one comparison, as chance is, and not stored with a run. `docs/judging.md`
has the rates of errors.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from steptime.judging.detection import Direction
from steptime.judging.judged import Judged
from steptime.judging.series import Series
from steptime.results.record import counts_nodes

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


@dataclass(frozen=True)
class Evidence:
    """What one run shows, or several of a cell on the same nodes."""

    cell: Series
    jobs: frozenset[str]
    nodes: frozenset[str]
    leaning: Direction | None
    """In which direction it is off, by itself."""
    moved: Direction | None
    """Which way its cell has moved, as it stands with this run."""
    change: float
    """Relative to the baseline of its cell: 0.03 is 3 % slower."""
    since: float
    """Unix time of the first run that moved."""
    changes: tuple[str, ...] = ()
    """Since the last usual run, if it is suspected or confirmed."""


@dataclass(frozen=True)
class CommonCause:
    """What several runs have in common that moved."""

    name: str
    sentence: str
    cells: frozenset[Series]
    """Those that it explains."""


def causes(
    judged: Mapping[Series, Sequence[Judged]], submitted_at: Mapping[str, float]
) -> tuple[CommonCause, ...]:
    """Return what moved cells of a comparison have in common: first the nodes, else that most of them moved.

    Args:
        judged: of each cell its runs, latest first.
        submitted_at: Unix time of the jobs with which suspicions began.
    """
    runs = [run for some in judged.values() for run in some]
    newest = max((run.run.row["submitted_at"] for run in runs), default=0.0)
    found: list[CommonCause] = []
    for cluster in sorted({series["cluster"] for series in judged}):
        cells = {
            series: [_evidence(series, run, submitted_at) for run in some if _counts(run, newest - WEEK_S)]
            for series, some in judged.items()
            if series["cluster"] == cluster
        }
        nodes = list(_slow_nodes(_by_nodes(run for some in cells.values() for run in some)))
        explained = frozenset[Series]().union(*(cause.cells for cause in nodes))
        latest = [some[0] for series, some in cells.items() if some and series not in explained]
        found += [*nodes, *_moved_together(cluster, latest)]
    return tuple(found)


def _counts(judged: Judged, since: float) -> bool:
    return judged.standing.against.suffices and judged.run.row["submitted_at"] >= since


def _evidence(series: Series, judged: Judged, submitted_at: Mapping[str, float]) -> Evidence:
    standing, row = judged.standing, judged.run.row
    is_open = standing.state in ("suspected", "confirmed")
    leaning = standing.against.direction([judged.run.seconds], alpha=LEANS, least=0.0)
    return Evidence(
        cell=series,
        jobs=frozenset([judged.run.job_name]),
        nodes=frozenset(filter(None, (row["nodes"] or "").split(", "))),
        leaning=leaning,
        moved=standing.direction if is_open else leaning,
        change=standing.against.change([judged.run.seconds]),
        since=submitted_at.get(judged.began_with, row["submitted_at"]),
        changes=judged.changes,
    )


def _by_nodes(runs: Iterable[Evidence]) -> list[Evidence]:
    """One run for each cell and its nodes: a cell that is slow there again is no more evidence."""
    groups: dict[tuple[Series, frozenset[str]], list[Evidence]] = defaultdict(list)
    for run in runs:
        groups[run.cell, run.nodes].append(run)
    return [_together(some) for some in groups.values()]


def _together(runs: Sequence[Evidence]) -> Evidence:
    slower = len(_slow(runs)) * 2 > len(runs)
    return Evidence(
        cell=runs[0].cell,
        jobs=frozenset[str]().union(*(run.jobs for run in runs)),
        nodes=runs[0].nodes,
        leaning="slower" if slower else None,
        moved=None,
        change=statistics.median(run.change for run in runs),
        since=min(run.since for run in runs),
    )


def _slow_nodes(runs: Collection[Evidence]) -> Iterator[CommonCause]:
    """Yield nodes whose runs are slower more often than by chance, the clearest first.

    Fisher's exact test compares slow or not with on the node or not. The runs of a node that was found are
    left out when the next one is looked for.
    """
    from scipy import stats

    every = len({node for run in runs for node in run.nodes})
    while True:
        slow = len(_slow(runs))
        on_nodes: dict[str, list[Evidence]] = defaultdict(list)
        for run in runs:
            for node in sorted(run.nodes):
                on_nodes[node].append(run)
        chances = {
            node: float(stats.hypergeom.sf(len(_slow(some)) - 1, len(runs), slow, len(some)))
            for node, some in on_nodes.items()
            if len({run.cell for run in _slow(some)}) >= FEWEST_CELLS_ON_NODE
        }
        worst = min(chances, key=lambda node: (chances[node], node), default=None)
        if worst is None or chances[worst] * every > NODE_ALPHA:
            return
        yield _named_node(on_nodes, worst, runs)
        runs = [run for run in runs if worst not in run.nodes]


def _named_node(
    on_nodes: Mapping[str, list[Evidence]], worst: str, runs: Collection[Evidence]
) -> CommonCause:
    some = on_nodes[worst]
    alike = sorted(node for node, others in on_nodes.items() if others == some)
    name = f"node{'s' * (len(alike) > 1)} {', '.join(alike)}"
    elsewhere = [run for run in runs if worst not in run.nodes]
    slow = _slow(some)
    sentence = (
        f"{name}: slower in {len(slow)} of the {len(some)} cells that ran there, by "
        f"{100 * statistics.median(run.change for run in slow):.1f} % at the median, and in "
        f"{len(_slow(elsewhere))} of {len(elsewhere)} elsewhere"
    )
    return CommonCause(name, sentence, frozenset(run.cell for run in slow))


def _slow(runs: Iterable[Evidence]) -> list[Evidence]:
    return [run for run in runs if run.leaning == "slower"]


def _moved_together(cluster: str, runs: Collection[Evidence]) -> Iterator[CommonCause]:
    """Yield that many cells of a cluster began to move the same way within a week; `runs` has one of each."""
    from scipy import stats

    directions: tuple[Direction, ...] = ("slower", "faster")
    for direction in directions:
        moved = [run for run in runs if run.moved == direction]
        weeks = [[run for run in moved if 0 <= run.since - first.since <= WEEK_S] for first in moved]
        together = max(weeks, key=len, default=[])
        # Those that moved at another time did so for a reason of their own.
        rest = len(runs) - len(moved)
        every = rest + len(together)
        chance = float(stats.binom.sf(len(together) - 1, every, LEANS)) if together else 1.0
        if (
            len(together) >= max(FEWEST_CELLS_TOGETHER, LEAST_PART_TOGETHER * every)
            and chance <= TOGETHER_ALPHA
        ):
            yield _common_mode(cluster, direction, together, every)


def _common_mode(cluster: str, direction: Direction, moved: Sequence[Evidence], every: int) -> CommonCause:
    change = 100 * statistics.median(run.change for run in moved)
    # Of a run that only leans nobody has looked what changed before it.
    known = [[one for one in run.changes if not counts_nodes(one)] for run in moved if run.changes]
    shared = reduce(lambda some, more: [one for one in some if one in more], known) if known else []
    changed = "; ".join(shared) or "nothing is recorded that is the same for all"
    sentence = (
        f"common-mode: {len(moved)} of {every} cells on {cluster} are {direction} together, by "
        f"{abs(change):.1f} % at the median; changed: {changed}"
    )
    return CommonCause("common-mode", sentence, frozenset(run.cell for run in moved))
