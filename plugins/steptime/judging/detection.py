"""Whether a series got slower or faster: suspected by one run, confirmed or dismissed by two more.

The unit of replication is the job, so a series has one number per run: seconds, less is faster. A run is
held to a one-sided t prediction interval over the last runs before it. What leaves it is only a suspicion:
the mean of the next two runs, judged without the first, decides. `docs/judging.md` has the rates of errors.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

ALPHA = 0.01
"""How often a run of an unchanged series leaves the interval, on each side."""
FALSE_DISCOVERY_RATE = 0.05
"""Of the suspicions that one comparison reports, the part that may be false."""
LEAST_CHANGE = 0.015
"""Smaller ones are never reported, however steady a series is."""
LEAST_DEVIATION = 0.003
"""Floor of the standard deviation, relative to the mean: a few runs may be alike by luck."""
BASELINE_RUNS = 12
FEWEST_RUNS = 6
"""Of a baseline that anything is judged by."""
FRESH_RUNS = 2
"""That confirm or dismiss a suspicion."""
DETECTED = 0.8
"""How often a run that is slower by the minimum detectable change is suspected."""

Direction = Literal["slower", "faster"]
State = Literal["insufficient history", "unchanged", "suspected", "confirmed", "dismissed"]

_SIGNS: dict[Direction, int] = {"slower": 1, "faster": -1}


@dataclass(frozen=True)
class Baseline:
    """The last runs that count as usual, oldest first, in seconds."""

    runs: tuple[float, ...] = ()
    level: tuple[float, ...] = ()
    """Runs whose mean changes are relative to, if it is not that of `runs`: of two the earlier."""

    def with_runs(self, *runs: float) -> "Baseline":
        """Return the baseline with more usual runs."""
        return Baseline((*self.runs, *runs)[-BASELINE_RUNS:])

    @property
    def suffices(self) -> bool:
        """Whether there are enough runs to judge another by."""
        return len(self.runs) >= FEWEST_RUNS

    @cached_property
    def mean(self) -> float:
        """What changes are relative to, in seconds."""
        return _mean(self.level or self.runs)

    @cached_property
    def deviation(self) -> float:
        """Sample standard deviation (n - 1) of `runs` relative to their mean, at least `LEAST_DEVIATION`."""
        usual = _mean(self.runs)
        squares = math.fsum((run - usual) ** 2 for run in self.runs)
        return max(LEAST_DEVIATION, math.sqrt(squares / (len(self.runs) - 1)) / usual)

    def change(self, runs: Sequence[float]) -> float:
        """Return by how much the mean of runs differs: 0.03 is 3 % slower."""
        return _mean(runs) / self.mean - 1

    def bound(self, runs: int = 1, *, alpha: float = ALPHA, least: float = LEAST_CHANGE) -> float:
        """Return the change beyond which the mean of so many runs is not usual, either way."""
        return max(least, _quantile(1 - alpha, len(self.runs) - 1) * self._error(runs))

    def direction(
        self, runs: Sequence[float], *, alpha: float = ALPHA, least: float = LEAST_CHANGE
    ) -> Direction | None:
        """Return whether the mean of runs is slower or faster than usual, or None if it is neither."""
        change = self.change(runs)
        if abs(change) < self.bound(len(runs), alpha=alpha, least=least):
            return None
        return "slower" if change > 0 else "faster"

    def p_value(self, runs: Sequence[float], direction: Direction) -> float:
        """Return how often the mean of as many unchanged runs differs as much in this direction."""
        from scipy import special  # scipy.stats takes thirty times as long for each, and to import

        t = _SIGNS[direction] * self.change(runs) / self._error(len(runs))
        return float(special.stdtr(len(self.runs) - 1, -t))

    @property
    def minimum_detectable_change(self) -> float:
        """The slowdown that a single run shows in `DETECTED` of all cases."""
        return self.bound() + _quantile(DETECTED, len(self.runs) - 1) * self._error(1)

    def _error(self, runs: int) -> float:
        """Standard error of the change of the mean of so many runs."""
        return self.deviation * math.sqrt(1 / runs + 1 / len(self.level or self.runs))


def _mean(runs: Sequence[float]) -> float:
    return math.fsum(runs) / len(runs)


@cache
def _quantile(probability: float, degrees_of_freedom: int) -> float:
    """Of Student's t. Kept: there are a dozen of them, and each run asks for two."""
    from scipy import special

    return float(special.stdtrit(degrees_of_freedom, probability))


@dataclass(frozen=True)
class Standing:
    """What is known of a series after a run, and what the next run is judged by."""

    state: State = "insufficient history"
    direction: Direction | None = None
    """Of what is suspected, confirmed or was dismissed."""
    judged: tuple[float, ...] = ()
    """The runs whose mean the state rests on: the newest, or the two that confirm."""
    against: Baseline = field(default_factory=Baseline)
    """What they were judged by."""
    baseline: Baseline = field(default_factory=Baseline)
    """What the next run is judged by."""
    since: tuple[float, ...] = ()
    """The run that raised the suspicion, and all after it."""
    is_open: bool = False
    """Whether the next run is judged together with these."""

    @property
    def change(self) -> float | None:
        """Of the runs judged, relative to the baseline; None if that has no level yet."""
        known = self.against.suffices or self.against.level
        return self.against.change(self.judged) if known else None

    def p_value(self, direction: Direction) -> float:
        """Return the p-value of the judged runs, by a baseline that suffices."""
        return self.against.p_value(self.judged, direction)


def standings(runs: Iterable[float], begin_anew: Collection[int] = ()) -> list[Standing]:
    """Judge each run of a series (seconds, oldest first) by those before it.

    `begin_anew` are the places of runs, from 0, that nothing before them is held against.
    """
    stood: list[Standing] = []
    last = Standing()
    for place, run in enumerate(runs):
        last = judge(Standing() if place in begin_anew else last, run)
        stood.append(last)
    return stood


def judge(before: Standing, run: float) -> Standing:
    """Judge one more run (seconds) of a series.

    What is confirmed is held to the baseline from before until the mean of the last two runs is usual again:
    what stays slow stays reported. After `FEWEST_RUNS` faster ones a series begins a new baseline with them.
    """
    against = before.baseline
    if before.is_open:
        return _judge_suspicion(before, run)
    if not against.suffices:
        return continued(Standing("insufficient history", None, (run,), against), [run])
    direction = against.direction([run])
    if direction is None:
        return continued(Standing("unchanged", None, (run,), against), [run])
    return continued(Standing("suspected", direction, (run,), against, since=(run,)), [run])


def _judge_suspicion(before: Standing, run: float) -> Standing:
    """Judge by the last two fresh runs, without the run that raised the suspicion."""
    against, since = before.baseline, (*before.since, run)
    if len(since) <= FRESH_RUNS:
        return replace(before, judged=(run,), since=since)
    fresh = since[-FRESH_RUNS:]
    if against.direction(fresh) == before.direction:
        return continued(Standing("confirmed", before.direction, fresh, against, since=since), since)
    if before.state == "suspected":
        return continued(Standing("dismissed", before.direction, fresh, against), since)
    return continued(Standing("unchanged", None, fresh, against), since)


def continued(standing: Standing, latest: Sequence[float]) -> Standing:
    """Return a standing with what the next run is judged by, which follows from the rest of it.

    `latest` are the runs of the series until then, oldest first: three of them if it is a dismissal.
    """
    against, since = standing.against, standing.since
    if standing.state == "confirmed" and standing.direction == "faster" and len(since) > FEWEST_RUNS:
        return replace(standing, baseline=Baseline().with_runs(*since[1:]))
    if since:
        return replace(standing, baseline=against, is_open=True)
    # What was suspected joins what dismissed it: without that outlier the interval would be too narrow.
    usual = latest[-1 - FRESH_RUNS :] if standing.state == "dismissed" else latest[-1:]
    return replace(standing, baseline=against.with_runs(*usual))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of one comparison after Benjamini and Hochberg, in the same order.

    Those at most as large as a rate are the discoveries at that false discovery rate.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index], reverse=True)
    found, least = [1.0] * len(p_values), 1.0
    for smaller, index in enumerate(order):
        least = min(least, p_values[index] * len(p_values) / (len(p_values) - smaller))
        found[index] = least
    return found
