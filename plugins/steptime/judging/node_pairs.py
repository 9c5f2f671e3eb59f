"""Find the slow node or link in a node sweep: runs on each node alone, and on pairs of nodes.

The slower node of a pair decides the pair's time, so a slow node makes most of its pairs slow. A node is slow
if the median time of its pairs is slow. A link is slow if its pair is slow, but neither of the two nodes is.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.store.columns import Row
from steptime.store.run_queries import Store
from steptime.store.run_records import split_nodes
from steptime.wording import date

LEAST_CHANGE = 0.05
"""Smaller relative changes are not reported."""
_DEVIATIONS = 5
"""Standard deviations that a change must exceed; of hundreds of pairs none does by chance."""
_FEWEST_PAIRS = 3
"""Fewest pairs of a node: with fewer, a slow node cannot be told from a slow link."""

_Pair = tuple[str, str]
_Key = TypeVar("_Key")


class PairTime(Frozen):
    """How the newest run on a pair of nodes compares with the other pairs, and its bus bandwidth."""

    nodes: tuple[str, str]
    job_name: str
    bus_bandwidth_gb_s: float | None
    slower_percent: float
    """How much longer its step takes than the median over all pairs; below 0 if it is faster."""


class NodePairs(Frozen):
    """The slow nodes and links that a node sweep found: it runs on each node alone and on pairs of nodes."""

    sweep: str
    cluster: str
    submitted_at: float
    """When the newest run was submitted, in Unix time."""
    nodes: tuple[str, ...]
    pairs: tuple[PairTime, ...]
    slow_nodes: dict[str, str]
    """A sentence with the numbers for each slow node."""
    slow_links: dict[str, str]
    """A sentence for each slow link, by pair: `node3 - node7`."""
    missing: tuple[str, ...]
    """Nodes without a valid run alone or in a pair."""

    def about(self, node: str) -> tuple[str, ...]:
        """Return the sentences that call this node or a link of it slow; empty if neither is."""
        links = (text for name, text in self.slow_links.items() if node in name.split(" - "))
        return (*(text for name, text in self.slow_nodes.items() if name == node), *links)

    def evidence(self, nodes: Iterable[str]) -> str:
        """Say what the node sweep found about these nodes; empty if it ran on none of them."""
        if not (measured := [node for node in nodes if node in self.nodes]):
            return ""
        about = dict.fromkeys(sentence for node in measured for sentence in self.about(node))
        nothing = f"neither {' nor '.join(measured)} nor a link from there is slow."
        return f"Node sweep of {date(self.submitted_at)}: {' '.join(about) or nothing}"

    @property
    def findings(self) -> tuple[str, ...]:
        """A sentence for each slow node or link, and one on the nodes without a valid run.

        If there is nothing to report, a single sentence that says so.
        """
        lacking = (f"No valid run had {', '.join(self.missing)}.",) if self.missing else ()
        sentences = (*self.slow_nodes.values(), *self.slow_links.values(), *lacking)
        return sentences or (f"No node and no link of the {len(self.nodes)} nodes is slow.",)


def describe_node_pairs(store: Store, sweep: str) -> NodePairs:
    """Find the slow nodes and links in the newest DAG run of a node sweep.

    Raises UserError if no valid run of it had two nodes.
    """
    return compare_pairs(sweep, store.newest_sweep_run(sweep))


def newest_node_sweep(store: Store, rows: Iterable[Row], node: str | None = None) -> NodePairs | None:
    """Find the slow nodes and links in the newest node sweep that has a run on a pair of nodes in `rows`.

    Args:
        store: has the other runs of the sweep.
        rows: runs of one cluster, newest first.
        node: only sweeps with a run on a pair that includes this node count; None for all sweeps.

    Returns:
        None if `rows` has no valid run of a node sweep on a pair of nodes.
    """
    paired = (row for row in rows if _is_pair(row) and (node is None or node in _nodes(row)))
    if (first := next(paired, None)) is None:
        return None
    of_dag_run = {name: first[name] for name in ("dag_id", "dag_run_id", "sweep")}
    return compare_pairs(first["sweep"], store.results(include_rejected=True, **of_dag_run))


def compare_pairs(sweep: str, every: Sequence[Row]) -> NodePairs:
    """Find the slow nodes and links in a node sweep's runs.

    Raises UserError if no valid run had two nodes.
    """
    rows = [row for row in every if _is_measured(row)]
    by_nodes = {_nodes(row): row for row in sorted(rows, key=lambda row: row["submitted_at"])}
    pairs = {(nodes[0], nodes[1]): row for nodes, row in by_nodes.items() if len(nodes) == 2}
    if not pairs:
        raise UserError(
            f"no valid run of the sweep '{sweep}' had two nodes: start the sweep, or wait for its runs."
        )
    alone = {nodes[0]: row["steady_step_time_s"] for nodes, row in by_nodes.items() if len(nodes) == 1}
    times = {pair: row["steady_step_time_s"] for pair, row in pairs.items()}
    usual = statistics.median(times.values())
    nodes = tuple(sorted({*alone, *(node for pair in pairs for node in pair)}, key=_by_number))
    tried = {node for row in every for node in _nodes(row)}
    slow_nodes = find_slow_nodes(times, alone)
    return NodePairs(
        sweep=sweep,
        cluster=rows[0]["cluster"],
        submitted_at=max(row["submitted_at"] for row in rows),
        nodes=nodes,
        pairs=tuple(
            PairTime(
                nodes=pair,
                job_name=row["job_name"],
                bus_bandwidth_gb_s=row["bus_bandwidth_gb_s"],
                slower_percent=100 * (times[pair] / usual - 1),
            )
            for pair, row in pairs.items()
        ),
        slow_nodes=slow_nodes,
        slow_links=find_slow_links(times, slow_nodes),
        missing=tuple(sorted(tried - {*nodes}, key=_by_number)),
    )


def find_slow_nodes(times: Mapping[_Pair, float], alone: Mapping[str, float]) -> dict[str, str]:
    """Return, by node, a sentence about each node whose pairs are slower than most.

    Args:
        times: seconds by pair of nodes.
        alone: seconds by node, from runs on that node only.
    """
    changes = _changes(times)
    of_nodes = defaultdict[str, list[float]](list)
    for pair, change in changes.items():
        for node in pair:
            of_nodes[node].append(change)
    medians = {node: statistics.median(of_node) for node, of_node in of_nodes.items()}
    limit = max(math.log1p(LEAST_CHANGE), _DEVIATIONS * _deviation(medians.values()))
    changes_alone = _changes(alone)
    limit_alone = max(math.log1p(LEAST_CHANGE), _DEVIATIONS * _deviation(changes_alone.values()))
    sentences = {}
    for node in sorted(medians, key=_by_number):
        if len(of_nodes[node]) < _FEWEST_PAIRS or medians[node] <= limit:
            continue
        of_node = changes_alone.get(node)
        where = ""
        if of_node is not None:
            is_slow = of_node > limit_alone
            where = (
                f"; alone it is {_percent(of_node)} slower" if is_slow else "; alone it is not: its network"
            )
        sentences[node] = (
            f"Node {node} is slow: its {len(of_nodes[node])} pairs take {_percent(medians[node])} longer "
            f"than the median{where}."
        )
    return sentences


def find_slow_links(times: Mapping[_Pair, float], slow_nodes: Collection[str]) -> dict[str, str]:
    """Return, by pair (`node3 - node7`), a sentence about each slow pair whose nodes are not slow themselves.

    `times` are seconds by pair of nodes.
    """
    changes = {
        pair: change for pair, change in _changes(times).items() if not {*pair}.intersection(slow_nodes)
    }
    usual = statistics.median(changes.values()) if changes else 0.0
    limit = max(math.log1p(LEAST_CHANGE), _DEVIATIONS * _deviation(changes.values()))
    counts = defaultdict[str, int](int)
    for pair in changes:
        for node in pair:
            counts[node] += 1
    sentences = {}
    for pair, change in sorted(changes.items(), key=lambda item: -item[1]):
        if change - usual > limit:
            name = " - ".join(sorted(pair, key=_by_number))
            surely = min(counts[node] for node in pair) >= _FEWEST_PAIRS
            other = "other pairs of both nodes are not" if surely else "they have too few pairs to tell which"
            sentences[name] = (
                f"Link {name} is slow: {_percent(change - usual)} longer than the median; {other}."
            )
    return sentences


def _changes(times: Mapping[_Key, float]) -> dict[_Key, float]:
    """Return the logarithms of times over their median."""
    usual = statistics.median(times.values()) if times else 1.0
    return {key: math.log(seconds / usual) for key, seconds in times.items()}


def _deviation(changes: Iterable[float]) -> float:
    """Estimate the standard deviation from the median absolute deviation, so that outliers hardly matter."""
    numbers = list(changes)
    if not numbers:
        return 0.0
    middle = statistics.median(numbers)
    return 1.4826 * statistics.median(abs(number - middle) for number in numbers)


def _percent(change: float) -> str:
    return f"{100 * math.expm1(change):.0f} %"


def _is_measured(row: Row) -> bool:
    """Return whether a run is valid and has a step time."""
    return row["state"] == "valid" and bool(row["steady_step_time_s"])


def _is_pair(row: Row) -> bool:
    """Return whether a run belongs to a node sweep, used two nodes, is valid and has a step time."""
    is_of_sweep = row["sweep"] is not None and row["bus_bandwidth_gb_s"] is not None
    return is_of_sweep and _is_measured(row) and len(_nodes(row)) == 2


def _nodes(row: Row) -> tuple[str, ...]:
    return tuple(sorted(split_nodes(row["nodes"]), key=_by_number))


def _by_number(node: str) -> tuple[int, str]:
    """Return a sort key that puts `node9` before `node10`."""
    return len(node), node
