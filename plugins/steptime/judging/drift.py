"""Detect slow changes: a small step or a drift that no single run of a series revealed.

A series is split into levels by E-divisive (Matteson and James, 2014): at the place with the largest energy
distance between the two sides, if random permutations of the runs are hardly ever split as clearly; then each
side is split again. A single step is also searched for by t-tests, which give more weight to runs at which
something changed. A change that one jump explains better than a ramp is a step and is confirmed; a drift is
only advice. `docs/reference/judging.md` has the error rates.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from steptime.durations import WEEK_S
from steptime.judging.detection import FEWEST_RUNS, LEAST_CHANGE
from steptime.judging.onset import likely_indexes, likely_ramp

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LONGEST_RUNS = 104
"""Most runs of the history that are searched: two years of one run a week."""
_PERMUTATIONS = 999
"""Random permutations, none of which may be split as clearly: a false split has a probability of 1 in 1000.
"""
STEP_ALPHA = 0.001
"""Probability that the search finds a step in a series that never changed."""
STEP_RUNS = 4
"""Fewest runs after a step."""


@dataclass(frozen=True)
class Level:
    """A stretch of consecutive runs of a series with similar times."""

    first: str
    """Job name of the first run."""
    seconds: float
    """Median time of the runs."""
    runs: int
    """Number of runs."""


@dataclass(frozen=True)
class Drift:
    """A slowdown that no single run revealed, as the levels (stretches of similar times) of a series.

    The levels are oldest first; the last one is slower than an earlier one.
    """

    levels: tuple[Level, ...]
    step: tuple[int, int, int] | None = None
    """For a single step: the likeliest, earliest and latest run with which the last of two levels began. Runs
    are counted from the end: the last is -1."""
    began_at: float = 0.0
    """Unix time at which the run `since` was submitted."""

    @property
    def fastest(self) -> Level:
        """The level with the shortest median time, with which the last level is compared."""
        return min(self.levels, key=lambda level: level.seconds)

    @property
    def since(self) -> str:
        """Job name of the first run after the fastest level."""
        return self.levels[self.levels.index(self.fastest) + 1].first

    @property
    def change(self) -> float:
        """Relative change of the last level against the fastest: 0.03 is 3 % slower."""
        return self.levels[-1].seconds / self.fastest.seconds - 1


def find_drift(
    runs: Sequence[tuple[str, float]], changed: Collection[str] = (), times: Sequence[float] | None = None
) -> Drift | None:
    """Find a slow drift or a small step by which a series got slower; None if there is none.

    The result's `began_at` is left at 0.

    Args:
        runs: job name and seconds of each run, oldest first.
        changed: names of jobs whose software or settings differ from the job before; a step that begins with
            one of them is found more easily.
        times: Unix time of each run; by default they are a week apart.
    """
    import numpy as np

    searched = list(runs)[-LONGEST_RUNS:]
    searched_times = list(times or (WEEK_S * number for number in range(len(runs))))[-LONGEST_RUNS:]
    if not searched:
        return None
    ends = [0, *_changes(np.array([seconds for _, seconds in searched])), len(searched)]
    levels = tuple(_level(searched[first:last]) for first, last in pairwise(ends))
    fastest = min(range(len(levels)), key=lambda index: levels[index].seconds)
    slower = levels[-1].seconds / levels[fastest].seconds - 1 >= LEAST_CHANGE
    if fastest < len(levels) - 1 and not slower:
        return None
    since_fastest = searched[ends[fastest] :]
    indexes = {index for index, (job, _) in enumerate(since_fastest) if job in changed}
    step = _step(since_fastest, searched_times[ends[fastest] :], indexes, slower)
    if step is not None:
        parts = since_fastest[: step[0]], since_fastest[step[0] :]
        at, earliest, latest = (index - len(since_fastest) for index in step)
        return Drift((_level(parts[0]), _level(parts[1])), (at, earliest, latest))
    return Drift(levels) if slower else None


def _level(runs: Sequence[tuple[str, float]]) -> Level:
    return Level(runs[0][0], statistics.median(seconds for _, seconds in runs), len(runs))


def _step(
    runs: Sequence[tuple[str, float]], times: Sequence[float], changed: Collection[int], known: bool
) -> tuple[int, int, int] | None:
    """Return the likeliest, earliest and latest index of the first slower run; None if there is no step.

    A step must be at least LEAST_CHANGE, not fit clearly worse than a ramp, and pass a t-test unless the runs
    are `known` to have got slower. At the indexes `changed`, less evidence is enough.
    """
    import numpy as np
    from scipy import special

    seconds, count = np.array([time_s for _, time_s in runs]), len(runs)
    indexes = np.arange(FEWEST_RUNS, count - STEP_RUNS + 1)
    if not len(indexes):
        return None
    total, before = seconds.sum(), np.cumsum(seconds)[indexes - 1]
    steps = (total - before) / (count - indexes) - before / indexes
    explained = steps**2 * indexes * (count - indexes) / count
    residual = np.maximum(((seconds - seconds.mean()) ** 2).sum() - explained, 1e-12 * seconds.mean() ** 2)
    # Half of the error rate is spent on the few runs with a change, so a step there is missed less often.
    has_change = np.isin(indexes, sorted(changed))
    shares = np.where(has_change, 1 / max(1, has_change.sum()), 1 / max(1, (~has_change).sum()))
    if has_change.any() and not has_change.all():
        shares = shares / 2
    t = np.sign(steps) * np.sqrt(explained * (count - 2) / residual)
    clear = bool((special.stdtr(count - 2, -t) <= STEP_ALPHA * shares).any())
    if not (known or clear) or steps[int(np.argmin(residual))] <= 0:
        return None
    ramp = likely_ramp(seconds.tolist(), times, "slower", changed)
    if ramp is not None and ramp.is_clear:
        return None
    likely = likely_indexes(seconds.tolist(), range(indexes[0], indexes[-1] + 1), "slower", changed)
    return likely if seconds[likely[0] :].mean() / seconds[: likely[0]].mean() - 1 >= LEAST_CHANGE else None


def _changes(seconds: "Numbers") -> list[int]:
    """Return the indexes of the runs at which a new level begins."""
    import numpy as np

    if len(seconds) < 2 * FEWEST_RUNS:
        return []
    clear = _clearness(seconds)
    index = FEWEST_RUNS + int(np.argmax(clear))
    rng = np.random.default_rng(12)
    for _ in range(_PERMUTATIONS):
        if _clearness(rng.permutation(seconds)).max() >= clear.max():
            return []
    after = (index + change for change in _changes(seconds[index:]))
    return [*_changes(seconds[:index]), index, *after]


def _clearness(seconds: "Numbers") -> "Numbers":
    """Return the energy distance between the runs before and after each possible split.

    A split leaves at least `FEWEST_RUNS` runs on both sides.
    """
    import numpy as np

    runs = len(seconds)
    index = np.arange(FEWEST_RUNS, runs - FEWEST_RUNS + 1)
    distances, upper = np.abs(seconds[:, None] - seconds), _upper(runs)
    to_earlier, to_later = (np.einsum(f"ij,ij->{kept}", distances, upper) for kept in "ji")
    within_before = np.cumsum(to_earlier)[index - 1]
    within_after = np.cumsum(to_later[::-1])[::-1][index]
    between = to_earlier.sum() - within_before - within_after
    before, after = index, runs - index
    energy = (
        2 * between / (before * after)
        - 2 * within_before / (before * (before - 1))
        - 2 * within_after / (after * (after - 1))
    )
    clear: Numbers = energy * before * after / runs
    return clear


@cache
def _upper(runs: int) -> "Numbers":
    """Return a matrix with ones where the column is a later run than the row."""
    import numpy as np

    return np.triu(np.ones((runs, runs)), 1)
