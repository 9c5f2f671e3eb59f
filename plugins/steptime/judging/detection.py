"""Whether a series got slower or faster: suspected by one run, confirmed or dismissed by two more.

The unit of replication is the job, so a series has one number per run: seconds, less is faster. A run is
held to a one-sided t prediction interval over the last runs before it. What leaves it is only a suspicion:
the mean of the next two runs, judged without the first, decides.
`docs/reference/judging.md` has the rates of errors.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal, Self

ALPHA = 0.008
"""How often a run of an unchanged series leaves the interval, on each side. Slightly more often, as runs
beyond a limit count as that limit in the baseline, which narrows the interval."""
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


class RunSeconds(float):
    """What a run is judged by, which knows the run: a baseline of such numbers names its runs."""

    job_name: str

    @classmethod
    def of(cls, job_name: str, seconds: float) -> Self:
        """Return the seconds of a run."""
        number = cls(seconds)
        number.job_name = job_name
        return number


@dataclass(frozen=True)
class Baseline:
    """The last runs that count as usual, oldest first, in seconds."""

    runs: tuple[float, ...] = ()
    level: tuple[float, ...] = ()
    """Runs whose mean changes are relative to, if it is not that of `runs`: of two the earlier."""

    def with_runs(self, *runs: float) -> "Baseline":
        """Return the baseline with more usual runs."""
        return Baseline((*self.runs, *runs)[-BASELINE_RUNS:])

    def limited(self, run: float) -> float:
        """Return a run, or the limit that it is beyond: outliers then hardly widen the interval."""
        direction = self.direction([run])
        if direction is None:
            return run
        limit = self.mean * (1 + _SIGNS[direction] * self.bound())
        return RunSeconds.of(run.job_name, limit) if isinstance(run, RunSeconds) else limit

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

    def interval(self, confidence: float, *, runs: int | None = None) -> tuple[float, float]:
        """Return the confidence interval of the mean of two or more `runs`, by Student's t.

        A number of `runs` gives the interval that so many runs would have if they vary as these do.
        """
        number = runs or len(self.runs)
        mean = _mean(self.runs)
        margin = mean * _quantile((1 + confidence) / 2, number - 1) * self.deviation / math.sqrt(number)
        return mean - margin, mean + margin

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
    """The runs whose mean the state rests on: the newest, the one that raised an open suspicion, or the two
    that decided it."""
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

    Each run is judged in its own direction: a run beyond the opposite limit ends an open suspicion and opens
    its own. A confirmed change stays reported against the baseline from before it until the mean of the last
    two runs is usual again. After `FEWEST_RUNS` faster runs these become the new baseline.
    """
    against, since = before.baseline, (*before.since, run)
    if before.is_open and against.direction([run]) in (None, before.direction):
        fresh = since[1:][-FRESH_RUNS:]
        if len(fresh) < FRESH_RUNS:
            return replace(before, since=since)
        if against.direction(fresh) == before.direction:
            return _confirmed(before.direction, fresh, against, since)
        if before.state == "suspected":
            after = against.with_runs(*map(against.limited, since))
            return Standing("dismissed", before.direction, fresh, against, after)
    if not against.suffices:
        return Standing("insufficient history", None, (run,), against, against.with_runs(run))
    direction = against.direction([run])
    if direction is None:
        return Standing("unchanged", None, (run,), against, against.with_runs(run))
    return Standing("suspected", direction, (run,), against, against, since=(run,), is_open=True)


def _confirmed(
    direction: Direction | None, fresh: Sequence[float], against: Baseline, since: Sequence[float]
) -> Standing:
    """Return a confirmed change; what has been faster for `FEWEST_RUNS` runs becomes the new baseline."""
    settled = direction == "faster" and len(since) > FEWEST_RUNS
    return Standing(
        state="confirmed",
        direction=direction,
        judged=tuple(fresh),
        against=against,
        baseline=Baseline().with_runs(*since[1:]) if settled else against,
        since=tuple(since),
        is_open=not settled,
    )


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
