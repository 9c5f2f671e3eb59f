"""What every benchmark here measures, in one form: lines for people, or with `--json` a line of JSON each."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self


@dataclass(frozen=True)
class Figure:
    """One number, with what it is compared with in the same run."""

    name: str
    value: float
    unit: str
    better: Literal["lower", "higher"] = "lower"
    beside: Mapping[str, float] = field(default_factory=dict)
    """What else this run has measured, in the same unit, by its name: a peer, or the machine's limit."""
    goal: float | None = None
    """In the same unit; what is worse misses it."""

    @property
    def misses_goal(self) -> bool:
        """Whether it is worse than its goal."""
        if self.goal is None:
            return False
        return self.value > self.goal if self.better == "lower" else self.value < self.goal

    @property
    def as_time(self) -> float:
        """A number that is less where the figure is better, in proportion: as a run's seconds are judged."""
        return self.value if self.better == "lower" else 1 / self.value

    @classmethod
    def of_json(cls, line: str) -> Self:
        """That of a line that `show` printed."""
        read: dict[str, Any] = json.loads(line)
        del read["command"]
        return cls(**read)

    @property
    def compared(self) -> list[str]:
        """What stands beside it, with how many times as good this figure is."""
        return [f"{name} {number(value)} ({self._times(value):.2f}×)" for name, value in self.beside.items()]

    def _times(self, other: float) -> float:
        better, worse = (other, self.value) if self.better == "lower" else (self.value, other)
        return better / worse if worse else math.inf

    def __str__(self) -> str:
        beside = "".join(f"; {text}" for text in self.compared)
        goal = "" if self.goal is None else f"; goal {number(self.goal)}"
        over = " MISSED" if self.misses_goal else ""
        return f"{self.name:44} {number(self.value):>9} {self.unit}{beside}{goal}{over}"


def number(value: float) -> str:
    """With three digits, and as many more as stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def add_form(parser: argparse.ArgumentParser) -> None:
    """The option that chooses how figures are shown."""
    parser.add_argument("--json", action="store_true", help="a line of JSON for each figure")


def show(figures: Iterable[Figure], *, as_json: bool) -> int:
    """Print each figure as soon as it is measured. The exit code: 2 where one misses its goal."""
    missed = False
    command = " ".join(["python", *sys.argv])
    for figure in figures:
        print(json.dumps(asdict(figure) | {"command": command}) if as_json else figure, flush=True)
        missed |= figure.misses_goal
    return 2 if missed else 0
