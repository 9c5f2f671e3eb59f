"""Levels of tests that are repeated as data come in, so that all of them together err as rarely as one test.

The sums that successive tests look at are correlated, so that Boole's inequality would waste half of the
error. The probability that a sum of standard normal numbers crosses a bound at any look follows from its
density after each look (Armitage, McPherson and Rowe, 1969). Equal bounds of the standardized sums are those
of Pocock (1977); decreasing ones are of the family of Wang and Tsiatis (1987).

Import this module only when it is needed: it imports numpy.
"""

import math
import statistics
from functools import cache

import numpy as np

_STEP = 0.2
"""Distance between the sums whose density is computed, in standard deviations of one look."""
_NORMAL = statistics.NormalDist()


@cache
def levels(alpha: float, looks: int, *, shape: float = 0.5, sides: int = 2) -> tuple[float, ...]:
    """Return the one-sided level of the test at each look that has an error of `alpha` over all looks.

    The standardized sum of a look is too large above `c * (look / looks) ** (shape - 0.5)`. With a `shape` of
    0.5 all levels are equal; with less, later looks have more of the error. With two `sides`, tests in both
    directions share `alpha`.
    """
    heights = [(look / looks) ** (shape - 0.5) for look in range(1, looks + 1)]
    low, high = 0.0, 10.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        is_too_low = _crossing([middle * height for height in heights], sides) > alpha
        low, high = (middle, high) if is_too_low else (low, middle)
    return tuple(_NORMAL.cdf(-high * height) for height in heights)


def _crossing(bounds: list[float], sides: int) -> float:
    """Return the probability that a standardized sum exceeds its bound at any look."""
    farthest = max(bound * math.sqrt(look) for look, bound in enumerate(bounds, start=1))
    edge = max(farthest, 6 * math.sqrt(len(bounds))) + 1
    sums = np.arange(-edge, edge, _STEP)
    steps = np.exp(-((sums[:, None] - sums) ** 2) / 2) * _STEP / math.sqrt(2 * math.pi)
    density, crossed = np.exp(-(sums**2) / 2) / math.sqrt(2 * math.pi), 0.0
    for look, bound in enumerate(bounds, start=1):
        if look > 1:
            density = steps @ density
        limit = bound * math.sqrt(look)
        inside = np.clip((limit - sums) / _STEP + 0.5, 0, 1)
        if sides == 2:
            inside *= np.clip((limit + sums) / _STEP + 0.5, 0, 1)
        crossed += float(((1 - inside) * density).sum()) * _STEP
        density = density * inside
    return crossed
