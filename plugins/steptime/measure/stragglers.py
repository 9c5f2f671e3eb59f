"""Stragglers: the nodes and ranks of a run whose forward pass is slow beyond the spread of the others.

The trainer records the time of each rank (`trainer/rank_times.py`). Ranks with the same layers and experts
are compared, each by its ratio to their median.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from steptime.frozen import Frozen

ALPHA = 0.002
"""Probability of a false alarm: a straggler among the nodes, or among the ranks, of a run of equal ranks."""
LEAST = 0.03
"""Least relative difference of a straggler."""
USUAL_SPREAD, COUNTS_AS = 0.01, 4
"""Usual relative standard deviation, and its weight in ranks: few ranks tell little about their spread."""
FEWEST_OTHERS = 3
AT_MOST = 16
"""Most outliers among the compared units; also at most a quarter of the units, but at least one."""


class Straggler(NamedTuple):
    """A node or a rank of a run whose forward pass is slower than that of the others."""

    node: str
    rank: int | None
    """Rank; None for the whole node."""
    ratio: float
    """Its time relative to the mean of the others: 1.06 is 6 % slower."""
    margin: float
    """Half the width of the 95 % confidence interval of `ratio`."""

    @property
    def name(self) -> str:
        """The subject of `… 6.0 % slower than the others`: `node gb-017: ranks` or `rank 13 on gb-017`."""
        return f"node {self.node}: ranks" if self.rank is None else f"rank {self.rank} on {self.node}"

    @property
    def words(self) -> str:
        """A clause on which node or rank is slower and by how much, with the confidence interval."""
        low, high = (100 * (self.ratio + sign * self.margin - 1) for sign in (-1, 1))
        return (
            f"{self.name} {100 * (self.ratio - 1):.1f} % slower than the others ({low:.1f} to {high:.1f} %)"
        )


class RankTimes(Frozen):
    """The trainer's record `steptime.rank_times`: times of each rank's forward passes, in lists by rank."""

    clock: Literal["cuda_events", "cpu_time"]
    steps: tuple[int, ...]
    """The global steps that were timed."""
    nodes: tuple[str, ...]
    node: tuple[NonNegativeInt, ...]
    """Index of each rank's node in `nodes`."""
    group: tuple[int, ...]
    """Group number of each rank; the ranks of a group have the same layers and experts."""
    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    """Time of each rank's forward passes in a step, the median over the steps."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not len(self.node) == len(self.group) == len(self.seconds) or max(self.node) >= len(self.nodes):
            raise ValueError("each list must have one value for each rank")
        return self

    @property
    def ratios(self) -> dict[int, float]:
        """Return each rank's time relative to the median of its group.

        All ranks of a group have the same layers and experts. Ranks in a group with fewer than
        `FEWEST_OTHERS` others are left out.
        """
        groups = defaultdict[int, list[float]](list)
        for group, seconds in zip(self.group, self.seconds, strict=True):
            groups[group].append(seconds)
        medians = {
            group: statistics.median(times) for group, times in groups.items() if len(times) > FEWEST_OTHERS
        }
        return {
            rank: seconds / medians[group]
            for rank, (group, seconds) in enumerate(zip(self.group, self.seconds, strict=True))
            if group in medians
        }

    @property
    def node_ratios(self) -> dict[str, float]:
        """Return the time of each node's ranks relative to those of other nodes; empty for a single node."""
        ratios = self.ratios
        total, by_node = math.fsum(ratios.values()), self._by_node(ratios)
        return {
            node: statistics.median_low(of_node) * (len(ratios) - len(of_node)) / (total - math.fsum(of_node))
            for node, of_node in by_node.items()
            if len(of_node) < len(ratios)
        }

    @property
    def summary(self) -> str:
        """How far the ranks' times are apart and which rank is slowest; empty if none can be compared."""
        if not (ratios := self.ratios):
            return ""
        slowest = max(ratios, key=ratios.__getitem__)
        low, high = (100 * (end - 1) for end in (min(ratios.values()), ratios[slowest]))
        return (
            f"{low:+.1f} to {high:+.1f} % from the median of {len(ratios)} ranks in {len(self.steps)} steps, "
            f"slowest rank {slowest} on {self.nodes[self.node[slowest]]}"
        )

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Return the slow nodes, then the slow ranks of other nodes, slowest first."""
        ratios = self.ratios
        slow = find_outliers(self._by_node(ratios))
        left = {rank: ratio for rank, ratio in ratios.items() if self.nodes[self.node[rank]] not in slow}
        ranks = find_outliers({str(rank): (ratio,) for rank, ratio in left.items()})
        return (
            *(Straggler(node, None, *outlier) for node, outlier in slow.items()),
            *(
                Straggler(self.nodes[self.node[int(rank)]], int(rank), *outlier)
                for rank, outlier in ranks.items()
            ),
        )

    def _by_node(self, ratios: Mapping[int, float]) -> dict[str, Sequence[float]]:
        by_node = defaultdict[str, list[float]](list)
        for rank, ratio in ratios.items():
            by_node[self.nodes[self.node[rank]]].append(ratio)
        return dict(by_node)


def rank_times(record: Mapping[str, Any] | None) -> RankTimes | None:
    """Parse the trainer's record of rank times; None if there is none, or if it is malformed."""
    try:
        return None if record is None else RankTimes.model_validate(record)
    except ValidationError:
        return None


def find_outliers(
    units: Mapping[str, Sequence[float]], least: float = LEAST
) -> dict[str, tuple[float, float]]:
    """Return the units (nodes, ranks or GPUs) whose values are above the spread of the others, highest first.

    Each is given with its ratio to the mean of the others, and half the width of that ratio's 95 %
    confidence interval. Several such units hide each other, so as many as possible are tested against the
    rest (Grubbs' test, repeated).

    Args:
        units: the values of each unit, such as times, relative to their median. The lower median of a unit's
            values stands for it, so that one slow rank does not make a slow node.
        least: smallest relative difference to report: 0.03 is 3 %.
    """
    from scipy import special

    values = {name: statistics.median_low(of_unit) for name, of_unit in units.items()}
    order = sorted(values, key=lambda name: -values[name])
    for count in range(min(max(1, len(order) // 4), AT_MOST), 0, -1):
        slow, others = order[:count], [ratio for name in order[count:] for ratio in units[name]]
        if len(others) < FEWEST_OTHERS:
            continue
        mean, degrees = statistics.fmean(others), len(others) - 1
        variance = (statistics.variance(others, mean) * degrees + USUAL_SPREAD**2 * COUNTS_AS) / (
            degrees + COUNTS_AS
        )
        reach = math.sqrt(variance * (1 + 1 / len(others))) / mean
        quantile, interval = (
            -float(special.stdtrit(degrees + COUNTS_AS, tail)) for tail in (ALPHA / len(units), 0.025)
        )
        if values[slow[-1]] / mean - 1 > max(least, quantile * reach):
            return {name: (values[name] / mean, interval * reach) for name in slow}
    return {}
