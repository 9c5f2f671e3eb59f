"""Onset: with which run of a series a level began, how certain that is, and what changed at that run."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self

from steptime.judging.detection import LEAST_DEVIATION, Direction
from steptime.judging.series import SeriesRun

CREDIBLE = 0.95
"""Probability that the level began within the reported range."""
CHANGE_ODDS = 30.0
"""How much likelier a level begins with a run at which something changed than with another one. The nodes and
the version of steptime do not count, as they change all the time."""


@dataclass(frozen=True)
class Onset:
    """The run with which a level began. All times are Unix times of submissions."""

    job_name: str
    at: float
    earliest: float
    latest: float
    """With `earliest`: the level began within this range, at a probability of `CREDIBLE`."""
    nearby: tuple[str, ...] = ()
    """What changed at other runs of this range, other than nodes and the version of steptime."""

    @classmethod
    def of(cls, runs: Sequence[SeriesRun], places: tuple[int, int, int], nearby: Iterable[str] = ()) -> Self:
        """Name the runs of a series at these places: the likeliest, the earliest and the latest one."""
        at, earliest, latest = (runs[place].row["submitted_at"] for place in places)
        return cls(runs[places[0]].job_name, at, earliest, latest, tuple(nearby))

    @classmethod
    def stored(cls, rests_on: Mapping[str, Any] | None) -> Self | None:
        """Read it from `rests_on` of a stored judgement; None if nothing moved."""
        kept = (rests_on or {}).get("onset")
        return cls(**(kept | {"nearby": tuple(kept["nearby"])})) if kept else None

    @property
    def as_stored(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    @property
    def words(self) -> str:
        """`since 2026-10-22`, with the range if it is more than one day."""
        at, earliest, latest = map(date, (self.at, self.earliest, self.latest))
        return f"since {at}" + ("" if earliest == latest else f" (between {earliest} and {latest})")


def changed_words(changes: Sequence[str], onset: Onset | None) -> str:
    """Say what changed at the run with which a level began, and within its range; empty if nothing did."""
    within = f"at another run of that range: {'; '.join(onset.nearby)}" if onset and onset.nearby else ""
    return "; or, ".join(filter(None, ("; ".join(changes), within)))


def date(at: float) -> str:
    """Return the local date of a Unix time."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d}"


def likely_places(
    seconds: Sequence[float], candidates: range, direction: Direction, changed: Collection[int] = ()
) -> tuple[int, int, int]:
    """Return the place of the run with which the last level most likely began, and its credible range.

    The model is one level, then another, with normal noise. Means and deviation are integrated out.

    Args:
        seconds: of each run, oldest first.
        candidates: places, from 1 to one less than there are runs; if no split at these has the
            direction, the last one is returned.
        direction: of the later level relative to the earlier one.
        changed: places of runs at which something besides the nodes changed.
    """
    runs, mean = len(seconds), math.fsum(seconds) / len(seconds)
    off = [one / mean - 1 for one in seconds]
    squares, total = math.fsum(one * one for one in off), math.fsum(off)
    weights: dict[int, float] = {}
    for place in candidates:
        before = math.fsum(off[:place])
        after = total - before
        step = after / (runs - place) - before / place
        if (step > 0) == (direction == "slower"):
            residual = squares - before * before / place - after * after / (runs - place)
            residual = max(residual, 0.0) + runs * LEAST_DEVIATION**2
            likelihood = -(runs - 2) / 2 * math.log(residual) - math.log(place * (runs - place)) / 2
            weights[place] = likelihood + (math.log(CHANGE_ODDS) if place in changed else 0.0)
    if not weights:
        return (candidates[-1],) * 3
    best = max(weights, key=lambda place: weights[place])
    odds = {place: math.exp(weight - weights[best]) for place, weight in weights.items()}
    credible, enough, within = set[int](), CREDIBLE * math.fsum(odds.values()), 0.0
    for place in sorted(odds, key=lambda place: -odds[place]):
        credible.add(place)
        within += odds[place]
        if within >= enough:
            break
    return best, min(credible), max(credible)
