"""The result of a benchmark as a line of text."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """A measured number, and what it is compared with in the same run."""

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"] = "lower"
    beside: Mapping[str, float] = field(default_factory=dict)
    """Other measurements of the same run, in the same unit, by name: a peer, or the machine's limit."""
    goal: float | None = None
    """The limit that the number should not be worse than, in the same unit."""

    @property
    def misses_goal(self) -> bool:
        """Whether the number is worse than its goal."""
        return self.goal is not None and self._times(self.goal) < 1

    def _times(self, other: float) -> float:
        better, worse = (other, self.value) if self.better == "lower" else (self.value, other)
        return better / worse if worse else math.inf

    def __str__(self) -> str:
        beside = "".join(
            f"; {name} {number(value)} ({self._times(value):.2f}×)" for name, value in self.beside.items()
        )
        goal = "" if self.goal is None else f"; goal {number(self.goal)}"
        return (
            f"{self.name:44} {number(self.value):>9} {self.unit}{beside}{goal}{' MISSED' * self.misses_goal}"
        )


def number(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(figures: Iterable[Figure]) -> int:
    """Print each figure as soon as it is measured; return the exit code: 2 if a figure misses its goal."""
    missed = False
    for figure in figures:
        print(figure, flush=True)
        missed |= figure.misses_goal
    return 2 if missed else 0
