"""Detect whether a series got slower or faster: one run raises a suspicion, two more confirm or dismiss it.

A series has one number per run: seconds, less is faster. A run is compared with a one-sided t prediction
interval from the runs before it. A run outside of it raises a suspicion; the mean of the next two runs,
without the first, decides. `docs/reference/judging.md` has the error rates.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal, Self, get_args

ALPHA = 0.008
"""Probability that a run of an unchanged series is outside of the interval, on each side. The true rate is
slightly higher: outliers enter the baseline at their limit, which narrows the interval."""
FALSE_DISCOVERY_RATE = 0.05
"""Expected share of false ones among the suspicions that are reported of cells compared with each other."""
LEAST_CHANGE = 0.015
"""Smaller relative changes are never reported, however steady a series is."""
LEAST_DEVIATION = 0.003
"""Least standard deviation relative to the mean: a few runs may be equal by chance."""
BASELINE_RUNS = 12
FEWEST_RUNS = 6
"""Fewest runs of a baseline; below this nothing is judged."""
CONFIRMATION_RUNS = 2
"""Number of runs after a suspicion that confirm or dismiss it."""
DETECTED = 0.8
"""Probability that a run slower by the minimum detectable change raises a suspicion."""

Direction = Literal["slower", "faster"]
State = Literal["insufficient history", "unchanged", "suspected", "confirmed", "dismissed"]
STATES: tuple[State, ...] = get_args(State)

_SIGNS: dict[Direction, int] = {"slower": 1, "faster": -1}


class RunSeconds(float):
    """A run's time in seconds that also has the name of its job, so that a baseline can list its runs."""

    __slots__ = ("job_name",)  # pages read thousands
    job_name: str

    @classmethod
    def of(cls, job_name: str, seconds: float) -> Self:
        """Return `seconds` as a float that also has the name of its job."""
        number = cls(seconds)
        number.job_name = job_name
        return number


@dataclass(frozen=True)
class Baseline:
    """Times (seconds, oldest first) of the latest usual runs of a series; new runs are compared with them."""

    runs: tuple[float, ...] = ()
    level: tuple[float, ...] = ()
    """Runs whose mean replaces that of `runs` as the reference of changes: the earlier of two compared runs.
    """

    def with_runs(self, *runs: float) -> "Baseline":
        """Return a baseline with these times appended, cut to the latest `BASELINE_RUNS`."""
        return Baseline((*self.runs, *runs)[-BASELINE_RUNS:])

    def limited(self, run: float) -> float:
        """Return a run's time clipped to the usual range, so that an outlier hardly widens the baseline."""
        direction = self.direction([run])
        if direction is None:
            return run
        limit = self.mean * (1 + _SIGNS[direction] * self.bound())
        return RunSeconds.of(run.job_name, limit) if isinstance(run, RunSeconds) else limit

    @property
    def suffices(self) -> bool:
        """Whether the baseline has enough runs (`FEWEST_RUNS`) to judge another run by."""
        return len(self.runs) >= FEWEST_RUNS

    @cached_property
    def mean(self) -> float:
        """The mean time that changes are relative to: of `runs`, or of `level` if two runs are compared."""
        return _mean(self.level or self.runs)

    @cached_property
    def deviation(self) -> float:
        """Sample standard deviation (n - 1) of `runs` relative to their mean, at least `LEAST_DEVIATION`."""
        usual = _mean(self.runs)
        squares = math.fsum((run - usual) ** 2 for run in self.runs)
        return max(LEAST_DEVIATION, math.sqrt(squares / (len(self.runs) - 1)) / usual)

    def change(self, runs: Sequence[float]) -> float:
        """Return the relative change from the mean of the baseline to that of `runs`: 0.03 is 3 % slower."""
        return _mean(runs) / self.mean - 1

    def bound(self, runs: int = 1, *, alpha: float = ALPHA, least: float = LEAST_CHANGE) -> float:
        """Return the largest usual change of the mean of this many runs, slower or faster: 0.03 is 3 %.

        `alpha` is the probability that an unchanged series exceeds it on one side; the result is at least
        `least`.
        """
        return max(least, _quantile(1 - alpha, len(self.runs) - 1) * self._error(runs))

    def direction(
        self, runs: Sequence[float], *, alpha: float = ALPHA, least: float = LEAST_CHANGE
    ) -> Direction | None:
        """Return whether the mean of `runs` is slower or faster than usual; None if it is usual."""
        change = self.change(runs)
        if abs(change) < self.bound(len(runs), alpha=alpha, least=least):
            return None
        return "slower" if change > 0 else "faster"

    def p_value(self, runs: Sequence[float], direction: Direction) -> float:
        """Return the one-sided p-value of `runs`: how likely unchanged runs are this far in `direction`."""
        from scipy import special

        t = _SIGNS[direction] * self.change(runs) / self._error(len(runs))
        return float(special.stdtr(len(self.runs) - 1, -t))

    def is_over(self, change: float, runs: Sequence[float]) -> bool:
        """Return whether the newest of `runs` are back at the baseline from a level that differs by `change`.

        They are if two runs in a row are nearer to the baseline.
        """
        newest = runs[-CONFIRMATION_RUNS:]
        return len(newest) == CONFIRMATION_RUNS and all(self.is_nearer(run, change) for run in newest)

    def is_nearer(self, run: float, change: float) -> bool:
        """Return whether a run is nearer to the baseline than to a level that differs by `change`."""
        return self.change([run]) * change < change**2 / 2

    def interval(self, confidence: float, *, runs: int | None = None) -> tuple[float, float]:
        """Return the confidence interval (low, high) of the mean of the baseline's runs, by Student's t.

        The baseline needs two runs. With `runs`, the interval is the one to expect from that many runs with
        the same mean and standard deviation.
        """
        number = runs or len(self.runs)
        mean = _mean(self.runs)
        margin = mean * _quantile((1 + confidence) / 2, number - 1) * self.deviation / math.sqrt(number)
        return mean - margin, mean + margin

    @property
    def minimum_detectable_change(self) -> float:
        """The slowdown that a single run reveals with probability `DETECTED`: 0.03 is 3 %."""
        return self.bound() + _quantile(DETECTED, len(self.runs) - 1) * self._error(1)

    def _error(self, runs: int) -> float:
        """Return the standard error of the relative change of the mean of this many runs."""
        return self.deviation * math.sqrt(1 / runs + 1 / len(self.level or self.runs))


def _mean(runs: Sequence[float]) -> float:
    return math.fsum(runs) / len(runs)


@cache
def _quantile(probability: float, degrees_of_freedom: int) -> float:
    """Return a quantile of Student's t; cached, because all runs need the same few quantiles."""
    from scipy import special

    return float(special.stdtrit(degrees_of_freedom, probability))


@dataclass(frozen=True)
class SeriesState:
    """The state of a series after one of its runs (unchanged, suspected, …), and the next run's baseline."""

    state: State = "insufficient history"
    direction: Direction | None = None
    """Direction of the suspected, confirmed or dismissed change."""
    judged: tuple[float, ...] = ()
    """Times that the state rests on: the newest run, the run that raised an open suspicion, the two that
    decided it, or all runs since a small step."""
    against: Baseline = field(default_factory=Baseline)
    """The baseline that `judged` was compared with."""
    baseline: Baseline = field(default_factory=Baseline)
    """The baseline for the next run."""
    since: tuple[float, ...] = ()
    """The run that raised the suspicion, and all runs after it."""
    is_open: bool = False
    """Whether the next run is judged together with the runs in `since`."""
    level: "SeriesState | None" = None
    """While a slowdown is confirmed, the state of its runs among themselves, without the one that raised the
    suspicion; otherwise None."""

    @property
    def newest_step(self) -> "SeriesState":
        """The state to report: of a further slowdown on top of a confirmed one if that is confirmed, too."""
        step = self.level.newest_step if self.level else self
        return step if (step.state, step.direction) == ("confirmed", "slower") else self

    @property
    def suspicion(self) -> "SeriesState | None":
        """The state with a suspicion that waits for confirmation runs: this one, or of a further slowdown."""
        if self.state == "suspected":
            return self
        further = self.level.suspicion if self.level else None
        return further if further and further.direction == "slower" else None

    @property
    def change(self) -> float | None:
        """Relative change of the judged runs against the baseline; None if that has too few runs."""
        known = self.against.suffices or self.against.level
        return self.against.change(self.judged) if known else None

    def p_value(self, direction: Direction) -> float:
        """Return the one-sided p-value of the judged runs. The baseline must have enough runs."""
        return self.against.p_value(self.judged, direction)


def series_states(runs: Iterable[float], begin_anew: Collection[int] = ()) -> list[SeriesState]:
    """Judge each run of a series (seconds, oldest first) by the runs before it.

    Returns the state after each run; people are told its `newest_step`. `begin_anew` are indexes of runs at
    which the history is discarded.
    """
    stood: list[SeriesState] = []
    last = SeriesState()
    for index, run in enumerate(runs):
        last = judge(SeriesState() if index in begin_anew else last, run)
        stood.append(last)
    return stood


def judge(before: SeriesState, run: float) -> SeriesState:
    """Return the state of a series after one more run (seconds).

    A run that deviates in the other direction ends an open suspicion and raises one of its own. A confirmed
    change is compared with the baseline before it, until two runs in a row are nearer to that than to the
    level of the runs that confirmed it. If the change is a speed-up, the faster runs become the new baseline
    once there are `FEWEST_RUNS` of them. If it is a slowdown, its runs are also judged by each other, so that
    a further one is seen.
    """
    against, since = before.baseline, (*before.since, run)
    if before.is_open and against.direction([run]) in (None, before.direction):
        confirmations = since[1:][-CONFIRMATION_RUNS:]
        if len(confirmations) < CONFIRMATION_RUNS:
            return replace(before, since=since)
        level = against.change(since[1 : 1 + CONFIRMATION_RUNS])
        if against.direction(confirmations) == before.direction or (
            before.state == "confirmed" and not against.is_over(level, since[1:])
        ):
            return _confirmed(before, confirmations, since)
        if before.state == "suspected":
            after = against.with_runs(*map(against.limited, since))
            return SeriesState("dismissed", before.direction, confirmations, against, after)
    if not against.suffices:
        return SeriesState("insufficient history", None, (run,), against, against.with_runs(run))
    direction = against.direction([run])
    if direction is None:
        return SeriesState("unchanged", None, (run,), against, against.with_runs(run))
    return SeriesState("suspected", direction, (run,), against, against, since=(run,), is_open=True)


def _confirmed(before: SeriesState, confirmations: Sequence[float], since: Sequence[float]) -> SeriesState:
    """Return the state of a confirmed change; a speed-up is the new baseline `FEWEST_RUNS` runs later."""
    against, is_faster = before.baseline, before.direction == "faster"
    settled = is_faster and len(since) > FEWEST_RUNS
    level = None
    if not is_faster:
        level = judge(before.level, since[-1]) if before.level else series_states(since[1:])[-1]
    return SeriesState(
        state="confirmed",
        direction=before.direction,
        judged=tuple(confirmations),
        against=against,
        baseline=Baseline().with_runs(*since[1:]) if settled else against,
        since=tuple(since),
        is_open=not settled,
        level=level,
    )


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests by Benjamini and Hochberg; the order is kept.

    Findings with an adjusted value of at most 0.05 are the discoveries at a false discovery rate of 5 %.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index], reverse=True)
    adjusted, least = [1.0] * len(p_values), 1.0
    for smaller, index in enumerate(order):
        least = min(least, p_values[index] * len(p_values) / (len(p_values) - smaller))
        adjusted[index] = least
    return adjusted
