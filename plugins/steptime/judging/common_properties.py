"""Find what slower or faster cells have in common as configurations: size, data type, workload, or scale."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from steptime.judging.series import Series

CHANCE = 0.05
"""A property is common if chance gives so many moved cells with it in at most this share of cases."""
_VALUES: tuple[tuple[str, ...], ...] = (("size", "dtype"), ("size",), ("dtype",), ("workload",), ())


@dataclass(frozen=True)
class Property:
    """Values that cells share, and the range of their number of GPUs."""

    values: tuple[tuple[str, str], ...]
    least: int | None = None
    most: int | None = None

    def fits(self, series: Series) -> bool:
        """Return whether a cell has the property."""
        gpus = series["gpus"]
        in_range = (self.least is None or gpus >= self.least) and (self.most is None or gpus <= self.most)
        return in_range and all(series[name] == value for name, value in self.values)

    def words(self, moved: Collection[Series], compared: Collection[Series]) -> str:
        """Return the property with the number of moved cells: `2 of 4 cells of 70b bf16`."""
        having = [series for series in compared if self.fits(series)]
        number = sum(series in moved for series in having)
        counted = f"{number} of {len(having)}"
        if number == len(having):
            counted = "both" if number == 2 else f"all {number}"
        values = " ".join(value for _, value in self.values)
        scale = f" from {self.least} GPUs on" if self.least is not None else ""
        scale += f" up to {self.most} GPUs" if self.most is not None else ""
        return f"{counted} cells{f' of {values}' if values else ''}{scale}"


def common_property(cell: Series, moved: Collection[Series], compared: Sequence[Series]) -> Property | None:
    """Return the property that this cell shares with other moved cells beyond chance; None if there is none.

    The cells of one size and data type always count as alike, since they share a model. `compared` are all
    cells that could have moved, `moved` included.
    """
    best: tuple[float, int, int] | None = None
    chosen = None
    for order, candidate in enumerate(_candidates(cell, moved)):
        having = [series for series in compared if candidate.fits(series)]
        number = sum(series in moved for series in having)
        if number < 2 or 2 * number < len(having):
            continue
        chance = _chance(number, len(having), len(moved), len(compared))
        is_model = {name for name, _ in candidate.values} == {"size", "dtype"}
        key = (chance, -number, order)
        if (chance <= CHANCE or is_model) and (best is None or key < best):
            best, chosen = key, candidate
    return chosen


def _candidates(cell: Series, moved: Collection[Series]) -> Iterator[Property]:
    """Yield the properties of a cell, the simplest first, with scales that bound the moved cells."""
    scales = sorted({series["gpus"] for series in moved})
    least = [scale for scale in scales if scale <= cell["gpus"]]
    most = [scale for scale in scales if scale >= cell["gpus"]]
    for names in _VALUES:
        if names:
            yield Property(tuple((name, cell[name]) for name in names))
    for names, bound in product(_VALUES, least):
        yield Property(tuple((name, cell[name]) for name in names), least=bound)
    for names, bound in product(_VALUES, most):
        yield Property(tuple((name, cell[name]) for name in names), most=bound)


def _chance(number: int, having: int, moved: int, compared: int) -> float:
    """Return the probability that `number` or more of the cells that have a property are among the moved."""
    ways = sum(
        math.comb(having, hits) * math.comb(compared - having, moved - hits)
        for hits in range(number, min(having, moved) + 1)
    )
    return ways / math.comb(compared, moved)
