"""Which printed steps are new, which are printed again, and where a restart trained them again."""

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto

from steptime.frozen import Frozen
from steptime.logs.events import StepPrinted
from steptime.logs.formats import StepLine

_UNLABELLED_RANKS_APART = 2
"""Ranks wait for each other in every step, so lines without label are at most this far out of order."""


class Restart(Frozen):
    """Training went back, or went on in a new attempt."""

    after_step: int
    """The last step of the attempt before."""
    at_step: int
    """The first step of the new attempt."""
    retrained: tuple[int, ...]
    """Steps of earlier attempts from `at_step` on: they no longer count."""
    from_scratch: bool
    """Whether nothing of the earlier attempts counts any more."""


class Added(Enum):
    """What a printed step was."""

    NEW = auto()
    REPEATED = auto()
    RESTARTED = auto()


@dataclass
class _Printed:
    text: bytes
    labels: set[bytes | None]


class Attempts:
    """The steps of a run, each once: the first line of an attempt counts, and the last attempt."""

    def __init__(self) -> None:
        self.lines: dict[int, StepLine] = {}
        self.not_finite: dict[int, StepLine] = {}
        """A line for each step of which any rank printed a NaN or infinity."""
        self.restarts: list[Restart] = []
        self.repeats: Counter[int] = Counter()
        """How often each step was printed again by other ranks."""
        self._this_attempt: dict[int, _Printed] = {}
        self._highest: dict[bytes | None, int] = {}
        self._ranks_without_label = False

    def begin(self) -> None:
        """A new attempt begins: another log of a requeued job, or another start of the trainer."""
        self._this_attempt.clear()
        self._highest.clear()

    def add(self, printed: StepPrinted) -> Added:
        """Take in a printed step."""
        step = printed.line.step
        before = self._this_attempt.get(step.global_step)
        added = Added.NEW
        if before is not None:
            if self._is_repeat(before, printed):
                before.labels.add(printed.label)
                self._reached(printed)
                if not printed.redrawn:
                    self.repeats[step.global_step] += 1
                self._note_not_finite(printed)
                return Added.REPEATED
            added = Added.RESTARTED
        elif self.lines and step.global_step < next(iter(self._this_attempt), math.inf):
            added = Added.RESTARTED  # nothing of this attempt yet, or a step before its first
        if added is Added.RESTARTED:
            self._restart(step.global_step)
        self._note_not_finite(printed)
        self.lines[step.global_step] = printed.line
        self._this_attempt[step.global_step] = _Printed(printed.line.text, {printed.label})
        self._reached(printed)
        return added

    def _reached(self, printed: StepPrinted) -> None:
        number = printed.line.step.global_step
        self._highest[printed.label] = max(number, self._highest.get(printed.label, 0))

    def _note_not_finite(self, printed: StepPrinted) -> None:
        if not printed.line.is_finite:
            self.not_finite.setdefault(printed.line.step.global_step, printed.line)

    def _is_repeat(self, before: _Printed, printed: StepPrinted) -> bool:
        if printed.label not in before.labels or printed.line.text == before.text:
            return True
        number = printed.line.step.global_step
        highest = self._highest[printed.label]
        if number == highest and printed.label is None:
            self._ranks_without_label = True
        return number >= highest - (_UNLABELLED_RANKS_APART if self._ranks_without_label else 0)

    def _restart(self, at_step: int) -> None:
        retrained = tuple(sorted(number for number in self.lines if number >= at_step))
        after_step = max(self.lines)
        for number in retrained:
            del self.lines[number]
            self.not_finite.pop(number, None)
        self.restarts.append(
            Restart(after_step=after_step, at_step=at_step, retrained=retrained, from_scratch=not self.lines)
        )
        self.begin()
