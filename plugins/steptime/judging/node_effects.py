"""Estimate by how much each node slows the runs on it, and name nodes that are slow beyond doubt.

The model: the logarithm of a run's step time is the level of its cell, plus what the runs of that week have
in common, plus the effect of a slow node if the run used it, plus noise. A cell's level is its baseline; if
the cell itself was confirmed as slower or faster, it is the mean of its runs since that change began, those
on the node in the weeks looked at aside. So another open regression is no evidence against a node, neither of
cells that are confirmed nor of those in which it does not show yet, and it hides none. The deviation of a
cell's runs is estimated from few runs, hence Student's t.

Some cells are slow for a reason of their own. Each cell may be such an outlier with a small probability, as
in the contaminated normal model (Tukey, 1960; Box and Tiao, 1968), which bounds what one cell can add. The
likelihood ratio of a slow against a usual node, averaged over effects and over the weeks in which it may
have begun, is an e-value: the chance that it exceeds x on a usual node is at most 1/x (Vovk and Wang, 2021).
So a node is named if it exceeds the number of nodes divided by `NODE_ALPHA`.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from steptime.durations import WEEK_S
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series
from steptime.recipes.models import Mode
from steptime.store.run_records import split_nodes

WEEKS_BACK = 4
"""Runs of so many weeks are looked at."""
EVIDENCE_S = WEEKS_BACK * WEEK_S
FEWEST_CELLS = 3
"""A node is not named for fewer cells than this."""
NODE_ALPHA = 0.005
"""Highest probability that chance names any node of a cluster on one day."""
SHARE_OF_RIVALS = 20.0
"""A node is named only if it is this many times likelier than any other node that could explain its runs."""
SINGLE_OUTLIERS = 0.01
"""Probability that a run is slow although later runs of its cell, on other nodes, are usual."""
MOVED_CELLS = 0.05
"""Probability that a cell got slower by itself, if no later run on other nodes shows that it did not; less if
many other cells did not."""
SLOW_T = 3.0
"""A run beyond this many standard errors counts as slow."""
SMALLEST, LARGEST = 0.015, 0.3
"""Range of the effects that a node may be named for: 0.015 is 1.5 % slower."""
_RATIO = 1.15
"""Ratio of neighbouring effects among those that the e-value is averaged over."""
_CREDIBLE = 0.95
_WINDOWS = (1, 2, WEEKS_BACK)
"""How many weeks ago a node may have become slow, at most."""
_DOUBT = 1.65
"""Standard errors within which a level counts as usual: its upper end in 95 % of cases."""
_COMMON = 2.0
"""Standard errors from which on the runs of a week are taken to be slower or faster in common."""
_ROUNDS = 5
"""Iterations of a robust mean."""
_CLEAR = 1.0
"""Logarithm of the likelihood ratio from which a cell counts as slow on a node."""


@dataclass(frozen=True)
class NodeRun:
    """One training run, as evidence on its nodes."""

    series: Series
    job_name: str
    at: float
    """Unix time at which it was submitted."""
    nodes: frozenset[str]
    change: float
    """Logarithm of its time over the mean of its baseline."""
    deviation: float
    """Standard deviation of the baseline relative to its mean."""
    baseline_runs: int
    level: int = 0
    """Runs of a series with the same number belong to one level."""
    is_usual: bool = True
    """Whether that level is the baseline's: False while the series is confirmed as slower or faster."""
    level_runs: int = 0
    """Number of runs before those looked at whose level `change` is against: of the baseline, or of a level
    that was confirmed before; 0 if nothing is known of the level before."""

    @property
    def error(self) -> float:
        """Standard error of `change` if the run is at its level, which is known."""
        return self.deviation * math.sqrt(1 + 1 / self.level_runs)


@dataclass(frozen=True)
class NodeEffect:
    """By how much a node slows the runs on it, with a 95 % interval: 0.03 is 3 % slower."""

    cluster: str
    node: str
    change: float
    low: float
    high: float
    runs: int
    cells: int
    since: float
    """Unix time of the first run that this rests on."""


@dataclass(frozen=True)
class SlowNode:
    """One or more nodes that are slow beyond doubt, because runs on them are slower than runs elsewhere."""

    nodes: tuple[str, ...]
    """Several if the same runs used all of them."""
    effect: NodeEffect
    slow: Mapping[Series, float]
    """The change of each cell that was slow on the node, and as usual elsewhere."""
    on_top: Mapping[Series, float]
    """By how much each cell that is slower or faster elsewhere, too, was slower on the node than there."""
    ran: int
    """Number of cells that ran on it."""
    elsewhere: frozenset[Series]
    """The cells of `slow` and `on_top` that also ran on other nodes since then."""
    jobs: frozenset[str]
    """The runs on it."""


def node_runs(series: Series, judged: Iterable[Mapping[str, Any]]) -> list[NodeRun]:
    """Return the evidence of one series of training runs, oldest first; empty for other modes.

    `judged` has a mapping for each run, oldest first, with `job_name`, `submitted_at`, `nodes`, `seconds`,
    `series_state`, `began_at`, `baseline_mean_s`, `baseline_deviation` and `baseline_runs`. The runs since
    `began_at` (Unix time), with which a confirmed change began, are a level of their own.
    """
    if series["mode"] != Mode.PERFORMANCE:
        return []
    runs: list[NodeRun] = []
    level, since, of_level = 0, math.inf, dict[str, Any]()
    for row in reversed([*judged]):
        if row["baseline_mean_s"] is None or row["series_state"] == "insufficient history":
            continue
        if row["submitted_at"] < since:
            moved = row["series_state"] == "confirmed"
            level, since = level + moved, row["began_at"] if moved else math.inf
            of_level = dict(row)
        is_usual = since == math.inf
        runs.append(
            NodeRun(
                series,
                row["job_name"],
                row["submitted_at"],
                frozenset(split_nodes(row["nodes"])),
                math.log(row["seconds"] / of_level["baseline_mean_s"]),
                of_level["baseline_deviation"],
                of_level["baseline_runs"],
                level=0 if is_usual else level,
                is_usual=is_usual,
                level_runs=of_level["baseline_runs"] if is_usual else 0,
            )
        )
    return runs[::-1]


def as_evidence(judged: Iterable[Judgement]) -> list[dict[str, Any]]:
    """Return judgements as mappings that `node_runs` takes, in the same order."""
    return [
        {
            "job_name": judgement.run.job_name,
            "submitted_at": judgement.run.row["submitted_at"],
            "nodes": judgement.run.row["nodes"],
            "seconds": judgement.run.seconds,
            "series_state": judgement.series_state.state,
            "began_at": judgement.onset and judgement.onset.at,
            "baseline_mean_s": judgement.series_state.against.mean,
            "baseline_deviation": judgement.series_state.against.deviation,
            "baseline_runs": len(judgement.series_state.against.runs),
        }
        for judgement in judged
        if judgement.series_state.against.suffices
    ]


def slow_nodes(runs: Sequence[NodeRun]) -> list[SlowNode]:
    """Return the nodes of one cluster that are slow beyond doubt, the clearest first.

    After a node is named, its runs are left out of the search for the next one. A node that was slow and is
    usual again is not named.
    """
    return _slow_nodes(_windows(runs))


def _slow_nodes(windows: "_Windows") -> list[SlowNode]:
    named: list[SlowNode] = []
    while (slow := _clearest(windows)) is not None:
        if not is_usual_again(windows[-1].runs, slow.nodes, slow.effect.change, slow.effect.since):
            named.append(slow)
        windows = _without(windows, slow.nodes)
    return named


def node_effects(runs: Sequence[NodeRun], only: str | None = None) -> list[NodeEffect]:
    """Return the effect of every node on the runs of the last weeks, or of `only` one, the slowest first.

    That of a node that is slow beyond doubt is by the runs since it became so. The slowest is the one whose
    interval begins highest. Nodes whose runs nothing can be compared with are left out.
    """
    effects: list[NodeEffect] = []
    for cluster in sorted({run.series["cluster"] for run in runs}):
        windows = _windows([run for run in runs if run.series["cluster"] == cluster])
        evidence = windows[-1]
        named = {
            node: replace(slow.effect, node=node) for slow in _slow_nodes(windows) for node in slow.nodes
        }
        for place, node in enumerate(evidence.nodes):
            if only in (None, node):
                effect = named.get(node) or _effect(evidence, place, evidence.per_level([place]))
                effects += [effect] if effect else []
    return sorted(effects, key=lambda effect: (-effect.low, effect.cluster, effect.node))


def is_usual_again(runs: Sequence[NodeRun], nodes: Iterable[str], change: float, since: float) -> bool:
    """Return whether runs on these nodes are usual again, after runs that were slower by `change`.

    The last three runs on one of the nodes, submitted after `since` (Unix time), decide: each is closer to
    usual than to `change`, and so is their mean beyond doubt. False without three such runs.
    """
    on = sorted((run for run in _on_nodes(runs, {*nodes}) if run.at > since), key=lambda run: run.at)
    last = [run for run in on if run.is_usual][-FEWEST_CELLS:]
    if len(last) < FEWEST_CELLS:
        return False
    error = math.sqrt(sum(run.deviation**2 for run in last)) / len(last)
    middle = change / 2
    return (
        all(run.change < middle for run in last)
        and statistics.fmean(run.change for run in last) + _DOUBT * error < middle
    )


def _on_nodes(runs: Sequence[NodeRun], nodes: Collection[str]) -> list[NodeRun]:
    """Return the runs on any of these nodes.

    The change of a cell that was confirmed as slower or faster is against its runs elsewhere since then.
    """
    elsewhere: dict[tuple[Series, int], list[float]] = defaultdict(list)
    for run in runs:
        if not run.is_usual and run.nodes.isdisjoint(nodes):
            elsewhere[run.series, run.level].append(run.change)
    on = []
    for run in runs:
        if run.nodes.isdisjoint(nodes):
            continue
        if level := elsewhere.get((run.series, run.level)):
            on.append(
                replace(
                    run,
                    change=run.change - statistics.fmean(level),
                    deviation=run.deviation * math.sqrt(1 + 1 / len(level)),
                    is_usual=True,
                )
            )
        else:
            on.append(run)
    return on


def _robust_mean(change: Any, error: Any) -> tuple[float, Any]:
    """Return the mean of changes (an array) with these errors, and their weights: 0 for outliers.

    Tukey's biweight, from 0 on.
    """
    import numpy as np

    mean, weights = 0.0, 1 / error**2
    for _ in range(_ROUNDS):
        off = (change - mean) / (SLOW_T * error)
        weights = np.clip(1 - off * off, 0, None) ** 2 / error**2
        if not weights.any():
            return 0.0, weights
        mean = float(weights @ change / weights.sum())
    return mean, weights


@dataclass(frozen=True)
class _Evidence:
    """The runs of a cluster, ordered by series, level and time, with the nodes that each used."""

    runs: tuple[NodeRun, ...]
    nodes: tuple[str, ...]
    on: Any
    """An array with 1 where a run (row) used a node (column), else 0."""

    @classmethod
    def of(cls, runs: Iterable[NodeRun]) -> Self:
        """Return the evidence of these runs."""
        import numpy as np

        runs = list(runs)
        names = {series: series.full_name for series in {run.series for run in runs}}
        ordered = sorted(runs, key=lambda run: (names[run.series], run.level, run.at))
        nodes = sorted({node for run in ordered for node in run.nodes})
        columns = {node: column for column, node in enumerate(nodes)}
        on = np.zeros((len(ordered), len(nodes)))
        for row, run in enumerate(ordered):
            on[row, [columns[node] for node in run.nodes]] = 1
        return cls(tuple(ordered), tuple(nodes), on)

    def newest(self, weeks: int) -> Self:
        """Return the evidence of the last weeks, without what the runs of each week have in common."""
        begin = self.at.max(initial=0.0) - weeks * WEEK_S
        before: dict[tuple[Series, int], list[float]] = defaultdict(list)
        for run in self.runs:
            if run.at < begin and not run.is_usual:
                before[run.series, run.level].append(run.change)
        window = self._select(self.at >= begin)
        runs = tuple(
            replace(run, change=run.change - statistics.fmean(level), level_runs=len(level))
            if (level := before.get((run.series, run.level)))
            else run
            for run in window.runs
        )
        return replace(window, runs=runs)._without_common_changes()

    def _without_common_changes(self) -> Self:
        import numpy as np

        usual = self.has_level
        weeks = (self.at.max(initial=0.0) - self.at) // WEEK_S
        runs = list(self.runs)
        for week in np.unique(weeks[usual]):
            rows = np.flatnonzero(usual & (weeks == week))
            if common := self._common_change(rows):
                for row in rows:
                    runs[row] = replace(runs[row], change=runs[row].change - common)
        return replace(self, runs=tuple(runs))

    def _common_change(self, rows: Any) -> float:
        """Return by how much all of these runs (indexes) are slower; 0 if chance or one node explains it.

        It is the mean of the runs without those on the node that explains most of it.
        """
        import numpy as np

        change, error, on = self.change[rows], np.array([self.runs[row].error for row in rows]), self.on[rows]
        mean, weights = _robust_mean(change, error)
        if not self.nodes or not mean:
            return 0.0
        elsewhere = weights @ (1 - on)
        without = (weights * change) @ (1 - on) / np.where(elsewhere > 0, elsewhere, np.inf)
        rest = on[:, np.argmin(np.abs(without))] == 0
        if rest.sum() < FEWEST_CELLS:
            return 0.0
        mean, _ = _robust_mean(change[rest], error[rest])
        return mean if abs(mean) * math.sqrt((1 / error[rest] ** 2).sum()) > _COMMON else 0.0

    def without(self, nodes: Collection[str]) -> Self:
        """Return the evidence without the runs on any of these nodes."""
        return self._select([run.nodes.isdisjoint(nodes) for run in self.runs])

    def _select(self, chosen: Iterable[bool]) -> Self:
        import numpy as np

        rows = np.flatnonzero(np.fromiter(chosen, bool, len(self.runs)))
        on = self.on[rows]
        columns = np.flatnonzero(on.any(axis=0))
        return replace(
            self,
            runs=tuple(self.runs[row] for row in rows),
            nodes=tuple(self.nodes[column] for column in columns),
            on=on[:, columns],
        )

    @cached_property
    def starts(self) -> Any:
        """Indexes of the first run of each level of a series."""
        import numpy as np

        keys = [(run.series, run.level) for run in self.runs]
        return np.array([index for index, key in enumerate(keys) if not index or keys[index - 1] != key])

    @cached_property
    def first(self) -> list[NodeRun]:
        """The first run of each level of a series."""
        return [self.runs[start] for start in self.starts]

    @cached_property
    def at(self) -> Any:
        """Unix time of each run."""
        import numpy as np

        return np.array([run.at for run in self.runs])

    @cached_property
    def change(self) -> Any:
        """Change of each run, as a logarithm."""
        import numpy as np

        return np.array([run.change for run in self.runs])

    @cached_property
    def has_level(self) -> Any:
        """Whether each run's level is known from before."""
        import numpy as np

        return np.array([run.level_runs > 0 for run in self.runs], bool)

    @cached_property
    def is_slow(self) -> Any:
        """Whether each run is slower than its level, if that is known."""
        import numpy as np

        error = np.array([run.error if run.level_runs else math.inf for run in self.runs])
        return self.change > SLOW_T * error

    @property
    def slow_cells(self) -> int:
        """Number of cells with a run that is slower than its level."""
        return len({run.series for run, is_slow in zip(self.runs, self.is_slow, strict=True) if is_slow})

    def per_level(self, node_places: Any) -> "_PerLevel":
        """Return what the levels say about these nodes (indexes)."""
        import numpy as np

        on, change, at = self.on[:, node_places], self.change[:, None], self.at[:, None]
        add = np.add.reduceat
        runs_on, runs_off = add(on, self.starts), add(1 - on, self.starts)
        baseline = np.array([run.level_runs for run in self.first])[:, None]
        deviation = np.array([run.deviation for run in self.first])[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            level = add((1 - on) * change, self.starts) / (runs_off + baseline)
            step = add(on * change, self.starts) / runs_on - level
            error = deviation * np.sqrt(1 / runs_on + 1 / (runs_off + baseline))
        known = (runs_on > 0) & (runs_off + baseline > 0)
        first_on = np.minimum.reduceat(np.where(on > 0, at, np.inf), self.starts)
        last_off = np.maximum.reduceat(np.where(on > 0, -np.inf, at), self.starts)
        freedom = np.array([max(1, run.baseline_runs - 1) for run in self.first])[:, None]
        # How many runs elsewhere are slower than their level: a cluster in trouble.
        usual = self.has_level[:, None] * (1 - on)
        cells_off = np.maximum(1, ((runs_on == 0) & (add(usual, self.starts) > 0)).sum(axis=0))
        slow_off = (add(usual * self.is_slow[:, None], self.starts) > 0) & (runs_on == 0)
        trouble = np.maximum(0, slow_off.sum(axis=0) - 1) / cells_off  # a single one is no trouble
        paired = (last_off >= first_on) & (runs_off > 0)
        moved = np.broadcast_to(np.minimum(MOVED_CELLS, 1 / cells_off), paired.shape)
        outliers = np.clip(np.maximum(np.where(paired, SINGLE_OUTLIERS, moved), trouble), 0, 0.5)
        return _PerLevel(level, step, error, known, np.broadcast_to(freedom, step.shape), outliers, paired)


@dataclass(frozen=True)
class _PerLevel:
    """Arrays by level and node."""

    elsewhere: Any
    """How much slower the level is on other nodes than the baseline, as a logarithm."""
    step: Any
    """How much slower the level's runs on the node are than those elsewhere, as a logarithm."""
    error: Any
    known: Any
    """Whether there is a run on the node and something to compare it with."""
    freedom: Any
    outliers: Any
    """Probability that the cell is slow for a reason of its own."""
    paired: Any
    """Whether the cell ran elsewhere after it had run on the node."""

    def log_ratios(self, effects: Any, rows: Any, columns: Any) -> Any:
        """Return log likelihood ratios of each effect (last axis) against none, of known levels and nodes.

        `rows` and `columns` are the indexes of the levels and of the nodes.
        """
        import numpy as np

        step, error, freedom, outliers = (
            values[rows, columns][:, None] for values in (self.step, self.error, self.freedom, self.outliers)
        )

        def likelihood(off: Any) -> Any:
            density = np.exp(np.log1p(off * off / freedom) * (-(freedom + 1) / 2))
            return (1 - outliers) * density + outliers

        return np.log(likelihood((step - effects) / error) / likelihood(step / error))

    def totals(self, effects: Any) -> Any:
        """Return the log likelihood ratios of each effect (column) against none, by node (row)."""
        import numpy as np

        columns, rows = np.nonzero(self.known.T)
        totals = np.zeros((self.known.shape[1], len(effects)))
        if len(columns):
            starts = np.flatnonzero(np.diff(columns, prepend=-1))
            totals[columns[starts]] = np.add.reduceat(self.log_ratios(effects, rows, columns), starts)
        return totals


def _log_e_values(evidence: _Evidence, places: Any) -> Any:
    """Return the logarithm of the e-value of each of these nodes, averaged over possible effects."""
    import numpy as np

    effects = np.log1p(np.geomspace(SMALLEST, LARGEST, 1 + round(math.log(LARGEST / SMALLEST, _RATIO))))
    totals = evidence.per_level(places).totals(effects)
    return np.logaddexp.reduce(totals, axis=-1) - math.log(len(effects))


_Windows = tuple[_Evidence, ...]
"""The evidence of the last weeks, for each of `_WINDOWS`."""


def _windows(runs: Iterable[NodeRun]) -> _Windows:
    evidence = _Evidence.of(runs)
    return tuple(evidence.newest(weeks) for weeks in _WINDOWS)


def _without(windows: _Windows, nodes: Collection[str]) -> _Windows:
    return tuple(window.without(nodes) for window in windows)


def _clearest(windows: _Windows) -> SlowNode | None:
    """Return the node with the largest e-value, if that is large enough; None if no node is slow.

    The slow runs of one bad node look like trouble of the cluster to another one. So two nodes that share no
    run are also tried together, each without the runs of the other.
    """
    best = _largest(windows)
    if best is None:
        return None
    node, window, is_clear = best
    if not is_clear:
        if all(window.slow_cells < 2 for window in windows):
            return None  # no trouble that could hide one
        other = _largest(_without(windows, [node]))
        if other is None or not other[2] or any({node, other[0]} <= run.nodes for run in windows[-1].runs):
            return None
        best = _largest(_without(windows, [other[0]]))
        if best is None or not best[2]:
            return None
        node, window, _ = best
    return _named(node, window)


def _largest(windows: _Windows) -> tuple[str, _Evidence, bool] | None:
    """Return the node with the largest e-value, the weeks that show it, and whether it is beyond doubt.

    None if no node has runs of enough cells.
    """
    import numpy as np

    best: tuple[float, str, _Evidence] | None = None
    for window in windows:
        cells = np.add.reduceat(window.on, window.starts) > 0 if window.nodes else np.zeros((0, 0))
        is_all = window.on.all(axis=0)  # a node that every run used is not told from its cluster
        several = np.flatnonzero((cells.sum(axis=0) >= FEWEST_CELLS) & ~is_all)
        if len(several):
            values = _log_e_values(window, several)
            index = int(np.argmax(values))
            if best is None or values[index] > best[0]:
                best = float(values[index]), window.nodes[several[index]], window
    return best and (best[1], best[2], best[0] >= _enough(len(windows[-1].nodes)))


def _enough(nodes: int) -> float:
    """Return the logarithm of the e-value from which one of this many nodes is named."""
    return math.log(nodes * len(_WINDOWS) / NODE_ALPHA)


def _named(node: str, evidence: _Evidence) -> SlowNode | None:
    """Return a slow node with the evidence for it; None if another node explains its runs as well.

    Nodes with the same runs are named together.
    """
    import numpy as np

    column = evidence.nodes.index(node)
    on = evidence.on[:, column] > 0
    alike = [
        other for other, used in zip(evidence.nodes, evidence.on.T, strict=True) if ((used > 0) == on).all()
    ]
    values = _log_e_values(evidence, np.arange(len(evidence.nodes)))
    for rival in np.flatnonzero(values > values[column] - math.log(SHARE_OF_RIVALS)):
        if evidence.nodes[rival] in alike:
            continue
        apart = evidence.without([evidence.nodes[rival]])
        if node not in apart.nodes:
            return None
        if _log_e_values(apart, [apart.nodes.index(node)])[0] < _enough(len(evidence.nodes)):
            return None
    levels = evidence.per_level([column])
    effect = _effect(evidence, column, levels)
    if effect is None:
        return None
    slow, on_top, elsewhere = _slow_cells(evidence, column, levels, effect.change)
    if len(slow) + len(on_top) < FEWEST_CELLS:
        return None
    of_node = _on_nodes(evidence.runs, alike)
    there = [run for run in of_node if run.series in slow or run.series in on_top]
    since = min((run.at for run in there if run.change > effect.change / 2), default=there[0].at)
    return SlowNode(
        tuple(alike),
        replace(effect, since=since),
        slow,
        on_top,
        len({run.series for run in of_node}),
        elsewhere,
        frozenset(run.job_name for run in of_node),
    )


def _slow_cells(
    evidence: _Evidence, column: int, levels: _PerLevel, change: float
) -> tuple[dict[Series, float], dict[Series, float], frozenset[Series]]:
    """Return the change of each series that a node (an index) slows by about `change`.

    `levels` is what the levels say about the node. A series that was confirmed as slower or faster without
    the node is in the second mapping, others are in the first, also those whose runs since then all used the
    node. The set has those which ran on other nodes after they had run on it.
    """
    import numpy as np

    size = math.log1p(change)
    known = np.flatnonzero(levels.known[:, 0])
    fits = np.zeros(len(evidence.first), bool)
    fits[known] = levels.log_ratios(np.array([size]), known, 0)[:, 0] > _CLEAR
    slow, elsewhere = dict[Series, float](), set[Series]()
    newest = {run.series: run.level for run in sorted(evidence.runs, key=lambda run: run.at)}
    moved = set[Series]()
    for number, run in enumerate(evidence.first):
        end = evidence.starts[number + 1] if number + 1 < len(evidence.starts) else len(evidence.runs)
        of_level = range(evidence.starts[number], end)
        on = [evidence.runs[index].change for index in of_level if evidence.on[index, column]]
        off = len(of_level) - len(on)
        moved_elsewhere = not run.is_usual and (
            run.level_runs > 0
            or (
                off > 0
                and abs(levels.elsewhere[number, 0])
                >= min(size / 2, _DOUBT * run.deviation * math.sqrt(1 / off + 1 / run.baseline_runs))
            )
        )
        if moved_elsewhere and run.level == newest[run.series]:
            moved.add(run.series)
        if fits[number]:
            slow[run.series] = float(np.expm1(levels.step[number, 0]))
            if levels.paired[number, 0]:
                elsewhere.add(run.series)
        elif not run.is_usual and not run.level_runs and len(on) == len(of_level):
            mean = statistics.fmean(on)
            if abs(mean - size) < min(SLOW_T * run.deviation, size / 2):  # no noisy cell of another cause
                slow[run.series] = math.expm1(mean)
    on_top = {series: slow.pop(series) for series in moved & slow.keys()}
    return slow, on_top, frozenset(elsewhere)


def _effect(evidence: _Evidence, column: int, levels: _PerLevel) -> NodeEffect | None:
    """Return the effect of a node (an index) with its interval; None if its runs compare with nothing.

    `levels` is what the levels say about the node.
    """
    import numpy as np

    known = levels.known[:, 0]
    if not known.any():
        return None
    effects = np.log1p(np.arange(-LARGEST, LARGEST, 0.001))
    total = levels.totals(effects)[0]
    weights = np.cumsum(np.exp(total - total.max()))
    weights /= weights[-1]
    low, middle, high = np.expm1(
        effects[np.searchsorted(weights, [(1 - _CREDIBLE) / 2, 0.5, (1 + _CREDIBLE) / 2])]
    )
    node = evidence.nodes[column]
    on = [run for run in evidence.runs if node in run.nodes]
    return NodeEffect(
        on[0].series["cluster"],
        node,
        float(middle),
        float(low),
        float(high),
        len(on),
        len({run.series for run in on}),
        min(run.at for run in on),
    )
