"""Onset: the run at which a series got slower or faster, how certain that is, and what changed then."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from steptime.durations import WEEK_S
from steptime.judging.detection import LEAST_DEVIATION, Direction
from steptime.judging.series import SeriesRun
from steptime.wording import date

CREDIBLE = 0.95
"""Probability that the level began within the reported range."""
CHANGE_ODDS = 30.0
"""How much likelier a level begins with a run at which something changed than with another. Nodes and the
version of steptime do not count: they change all the time."""
SHORTEST_RAMP_S = 3.5 * WEEK_S
"""A ramp is told from a step if it lasts four weeks, give or take some days between weekly runs."""
CLEAR_ODDS = 3.0
"""How many times likelier than the other a ramp or a step must be; in between, both are told."""
_SECOND_STEP = 0.1
"""How often a step is followed or preceded by another within the runs that are looked at."""
_LARGE_STEP = 0.05
"""Scale of the relative change by a second step: two steps fit more than one, whether or not they are right.
"""


@dataclass(frozen=True)
class Onset:
    """When a series got slower or faster: the likeliest first run, and a range. Unix times of submission."""

    job_name: str
    at: float
    earliest: float
    latest: float
    """The level began between `earliest` and `latest` with probability `CREDIBLE`."""
    nearby: tuple[str, ...] = ()
    """What changed at the other runs of this range, apart from nodes and the version of steptime."""
    weekly: float | None = None
    """Relative change a week if the series drifts, 0.01 is 1 % slower each week; None if it is a step."""
    perhaps_weekly: float | None = None
    """Of a step: relative change a week if a drift explains the runs about as well; else None."""

    @classmethod
    def of(
        cls,
        runs: Sequence[SeriesRun],
        indexes: tuple[int, int, int],
        nearby: Iterable[str] = (),
        weekly: float | None = None,
        perhaps_weekly: float | None = None,
    ) -> Self:
        """Build an onset from the runs of a series, oldest first.

        `indexes` are the indexes of the likeliest, the earliest and the latest run with which the series got
        slower or faster. `nearby` is what changed at the other runs of that range, apart from nodes and the
        version of steptime. `weekly` is the relative change a week if the series drifts, `perhaps_weekly`
        that of a step that may be a drift as well.
        """
        at, earliest, latest = (runs[index].row["submitted_at"] for index in indexes)
        return cls(runs[indexes[0]].job_name, at, earliest, latest, tuple(nearby), weekly, perhaps_weekly)

    @classmethod
    def stored(cls, rests_on: Mapping[str, Any] | None) -> Self | None:
        """Read the onset from the column `rests_on` of a judgement; None if nothing got slower or faster."""
        kept = (rests_on or {}).get("onset")
        return cls(**(kept | {"nearby": tuple(kept["nearby"])})) if kept else None

    @property
    def as_stored(self) -> dict[str, Any]:
        """The onset as JSON, for the column `rests_on` of the table `judgements`."""
        return asdict(self)

    @property
    def words(self) -> str:
        """The onset as text: `since 2026-10-22`, with the range if that is longer than a day."""
        at, earliest, latest = map(date, (self.at, self.earliest, self.latest))
        return f"since {at}" + ("" if earliest == latest else f" (between {earliest} and {latest})")

    @property
    def drift_words(self) -> str:
        """The drift as text: `drifts by 0.9 % a week`; empty if it is a step."""
        return "" if self.weekly is None else f"drifts by {abs(100 * self.weekly):.1f} % a week"

    @property
    def perhaps_words(self) -> str:
        """What a step may be as well: `a drift of 0.9 % a week`; empty if it is clear, or if it drifts."""
        return (
            "" if self.perhaps_weekly is None else f"a drift of {abs(100 * self.perhaps_weekly):.1f} % a week"
        )


def changed_words(changes: Sequence[str], onset: Onset | None) -> str:
    """Return as text what changed at the run where a slowdown or speed-up began, and at runs of its range.

    The text is empty if nothing changed.
    """
    within = f"at another run of that range: {'; '.join(onset.nearby)}" if onset and onset.nearby else ""
    return "; or, ".join(filter(None, ("; ".join(changes), within)))


@dataclass(frozen=True)
class Ramp:
    """A gradual change: the index of the first run on the ramp, with a credible range, and the slope."""

    at: int
    earliest: int
    latest: int
    weekly: float
    """Relative change a week: 0.01 is 1 % slower each week."""
    is_clear: bool
    """Whether ramps make the runs `CLEAR_ODDS` times as likely as steps; else steps are about as likely."""


def likely_ramp(
    seconds: Sequence[float],
    times: Sequence[float],
    direction: Direction,
    changed: Collection[int] = (),
) -> Ramp | None:
    """Return the likeliest ramp of at least `SHORTEST_RAMP_S` between two levels; None if it is a step.

    It is one if one step or two make the runs `CLEAR_ODDS` times as likely as ramps.

    A gap between two runs of more than half a ramp could hide a step as well: such ramps are left out.

    Steps, pairs of steps and ramps of all positions are compared by their marginal likelihood, with normal
    noise; levels and deviation are integrated out. All are equally likely at any time, so a step hardly falls
    between runs of one day. If something changed at some runs, a single step is with one of them in half of
    the cases. Ramps may go on until the last run.

    Args:
        seconds: time of each run, oldest first.
        times: Unix time of each run.
        direction: of the later level relative to the earlier one.
        changed: indexes of runs at which something besides the nodes changed: likelier places of a step.
    """
    import numpy as np

    at, runs = np.asarray(times), len(seconds)
    off = np.asarray(seconds) / np.mean(seconds) - 1
    off = off - off.mean()
    within = np.arange(runs - 1)[None, :] >= np.arange(runs)[:, None]
    gaps = np.pad(np.maximum.accumulate(np.where(within, np.diff(at), 0.0), axis=1), ((0, 0), (1, 0)))
    lasting = at[None, :] - at[:, None]
    firsts, lasts = np.nonzero((lasting >= SHORTEST_RAMP_S) & (gaps <= lasting / 2))
    if not len(firsts):
        return None

    def fit(shapes: Any) -> tuple[Any, Any]:
        shapes = shapes - shapes.mean(axis=1, keepdims=True)
        squares = (shapes**2).sum(axis=1)
        heights = shapes @ off / squares
        residual = np.maximum(0.0, off @ off - heights**2 * squares) + runs * LEAST_DEVIATION**2
        likelihood = -(runs - 2) / 2 * np.log(residual) - np.log(squares) / 2
        return np.where((heights > 0) == (direction == "slower"), likelihood, -np.inf), heights

    lengths = at[lasts] - at[firsts]
    ramps, heights = fit(np.clip((at - at[firsts, None]) / lengths[:, None], 0.0, 1.0))
    steps, _ = fit((np.arange(runs) >= np.arange(1, runs)[:, None]) * 1.0)
    since_last = np.diff(at)
    has_change = np.isin(np.arange(1, runs), sorted(changed))
    parts = [part / part.sum() for part in (since_last * ~has_change, has_change * 1.0) if part.any()]
    with np.errstate(divide="ignore"):
        places = np.log(since_last[firsts] * since_last[lasts - 1])
        of_steps = np.logaddexp(
            np.logaddexp.reduce(steps + np.log(sum(parts) / len(parts))),
            _two_steps(off, direction, np.log(since_last / since_last.sum())),
        )
    ramps += places - np.logaddexp.reduce(places)
    of_ramps = np.logaddexp.reduce(ramps)
    if of_ramps <= of_steps - math.log(CLEAR_ODDS):
        return None
    best = int(np.argmax(ramps))
    of_first = np.bincount(firsts, np.exp(ramps - of_ramps), minlength=runs - 1)
    odds = {index + 1: float(probability) for index, probability in enumerate(of_first)}
    earliest, latest = _credible_range(odds)
    weekly = float(heights[best] * WEEK_S / lengths[best])
    is_clear = bool(of_ramps > of_steps + math.log(CLEAR_ODDS))
    return Ramp(int(firsts[best]) + 1, earliest, latest, weekly, is_clear)


def _two_steps(off: Any, direction: Direction, odds_of_step: Any) -> float:
    """Return the logarithm of how likely two steps make the runs, in the units of `likely_ramp`.

    `off` is how far each run is from the mean of all, relative to it; `odds_of_step` are the logarithms of
    how likely a step is at each run but the first, whatever changed there.
    """
    import numpy as np

    runs = len(off)
    if runs < 4:
        return -math.inf
    first, second = np.triu_indices(runs - 1, 1)
    ends = np.concatenate([[0.0], np.cumsum(off)])
    sizes = first + 1, second - first, runs - 1 - second
    sums = ends[first + 1], ends[second + 1] - ends[first + 1], ends[-1] - ends[second + 1]
    explained = sum(total**2 / size for total, size in zip(sums, sizes, strict=True))
    residual = np.maximum(0.0, off @ off - explained) + runs * LEAST_DEVIATION**2
    spread = np.log(sizes[0] * sizes[1] * sizes[2] / runs)
    # A second height is integrated out: hence the gamma functions, and one power of the residual less.
    another = math.lgamma((runs - 3) / 2) - math.lgamma((runs - 2) / 2) + math.log(math.pi) / 2
    likelihood = another - (runs - 3) / 2 * np.log(residual) - spread / 2 - math.log(_LARGE_STEP)
    rises = sums[2] / sizes[2] > sums[0] / sizes[0]
    odds = odds_of_step[first] + odds_of_step[second]
    total = np.where(rises == (direction == "slower"), likelihood + odds, -np.inf)
    return float(np.logaddexp.reduce(total) + math.log(2 * _SECOND_STEP))


def _credible_range(odds: Mapping[int, float]) -> tuple[int, int]:
    """Return the first and last of the likeliest indexes that together have the probability `CREDIBLE`."""
    credible, enough, within = set[int](), CREDIBLE * math.fsum(odds.values()), 0.0
    for index in sorted(odds, key=lambda index: -odds[index]):
        credible.add(index)
        within += odds[index]
        if within >= enough:
            break
    return min(credible), max(credible)


def likely_indexes(
    seconds: Sequence[float], candidates: range, direction: Direction, changed: Collection[int] = ()
) -> tuple[int, int, int]:
    """Return the likeliest, the earliest and the latest index of the run with which the last level began.

    Earliest and latest are the ends of the credible range. The model is one level followed by another, with
    normal noise; means and deviation are integrated out.

    Args:
        seconds: time of each run, oldest first.
        candidates: indexes to consider, from 1 to the number of runs minus 1. If none gives a change in the
            direction, all three are the last candidate.
        direction: of the later level relative to the earlier one.
        changed: indexes of runs at which something besides the nodes changed.
    """
    runs, mean = len(seconds), math.fsum(seconds) / len(seconds)
    off = [time_s / mean - 1 for time_s in seconds]
    squares, total = math.fsum(time_s * time_s for time_s in off), math.fsum(off)
    weights: dict[int, float] = {}
    for index in candidates:
        before = math.fsum(off[:index])
        after = total - before
        step = after / (runs - index) - before / index
        if (step > 0) == (direction == "slower"):
            residual = squares - before * before / index - after * after / (runs - index)
            residual = max(residual, 0.0) + runs * LEAST_DEVIATION**2
            likelihood = -(runs - 2) / 2 * math.log(residual) - math.log(index * (runs - index)) / 2
            weights[index] = likelihood + (math.log(CHANGE_ODDS) if index in changed else 0.0)
    if not weights:
        return (candidates[-1],) * 3
    best = max(weights, key=lambda index: weights[index])
    odds = {index: math.exp(weight - weights[best]) for index, weight in weights.items()}
    return best, *_credible_range(odds)
