"""Slow drift: the levels that a series went through, though no run of it stood out.

By E-divisive (Matteson and James, 2014): a series is split where the energy distance of the two sides is
largest, if the same runs in another order are hardly ever split as clearly; then each side is split again.
What it finds is advice: it judges no run. `docs/judging.md` has the rates of errors.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from steptime.judging.detection import FEWEST_RUNS, LEAST_CHANGE

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LONGEST_RUNS = 104
"""Of the history that is searched: two years of one run a week."""
_PERMUTATIONS = 999
"""Other orders of the same runs, none of which may be split as clearly: one in a thousand would be chance."""


@dataclass(frozen=True)
class Level:
    """Runs that are alike, one after the other."""

    first: str
    """The job of the first."""
    seconds: float
    """Their median."""
    runs: int


@dataclass(frozen=True)
class Drift:
    """Levels that a series went through, oldest first, to one that is slower than it has been."""

    levels: tuple[Level, ...]

    @property
    def fastest(self) -> Level:
        """The one that the last is relative to."""
        return min(self.levels, key=lambda level: level.seconds)

    @property
    def since(self) -> str:
        """The job with which the fastest level had ended."""
        return self.levels[self.levels.index(self.fastest) + 1].first

    @property
    def change(self) -> float:
        """Of the last level, relative to the fastest: 0.03 is 3 % slower."""
        return self.levels[-1].seconds / self.fastest.seconds - 1


def find_drift(runs: Sequence[tuple[str, float]]) -> Drift | None:
    """Find how a series drifted slower, by its jobs and their seconds, oldest first; None if it did not."""
    import numpy as np

    searched = list(runs)[-LONGEST_RUNS:]
    ends = [0, *_changes(np.array([seconds for _, seconds in searched])), len(searched)]
    if len(ends) == 2:
        return None
    parts = [searched[first:last] for first, last in pairwise(ends)]
    levels = (Level(some[0][0], statistics.median(one for _, one in some), len(some)) for some in parts)
    found = Drift(tuple(levels))
    return found if found.change >= LEAST_CHANGE else None


def _changes(seconds: "Numbers") -> list[int]:
    """The places of the runs with which another level begins."""
    import numpy as np

    if len(seconds) < 2 * FEWEST_RUNS:
        return []
    clear = _clearness(seconds)
    place = FEWEST_RUNS + int(np.argmax(clear))
    dice = np.random.default_rng(12)
    for _ in range(_PERMUTATIONS):
        if _clearness(dice.permutation(seconds)).max() >= clear.max():
            return []
    after = (place + change for change in _changes(seconds[place:]))
    return [*_changes(seconds[:place]), place, *after]


def _clearness(seconds: "Numbers") -> "Numbers":
    """Energy distance of the runs before and from each place that leaves `FEWEST_RUNS` on both sides."""
    import numpy as np

    runs = len(seconds)
    place = np.arange(FEWEST_RUNS, runs - FEWEST_RUNS + 1)
    distances, upper = np.abs(seconds[:, None] - seconds), _upper(runs)
    to_earlier, to_later = (np.einsum(f"ij,ij->{kept}", distances, upper) for kept in "ji")
    within_before = np.cumsum(to_earlier)[place - 1]
    within_after = np.cumsum(to_later[::-1])[::-1][place]
    between = to_earlier.sum() - within_before - within_after
    before, after = place, runs - place
    energy = (
        2 * between / (before * after)
        - 2 * within_before / (before * (before - 1))
        - 2 * within_after / (after * (after - 1))
    )
    clear: Numbers = energy * before * after / runs
    return clear


@cache
def _upper(runs: int) -> "Numbers":
    """A matrix of ones for pairs whose column is a later run than their row."""
    import numpy as np

    return np.triu(np.ones((runs, runs)), 1)
