"""Tell new steps from repeated lines, and find where a restart trained steps again."""

import math
from collections import defaultdict

from steptime.logs.completeness import restarted
from steptime.logs.formats import NotFinite
from steptime.logs.models import Problem, Step
from steptime.logs.shapes import StepsPrinted, plain

_UNLABELLED_RANKS_APART = 2
"""Ranks wait for each other in every step, so lines without label are at most this far out of order."""


class Rank:
    """What one writer of the log has printed in this attempt."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.highest = 0


class Attempts:
    """The steps of a run, each once: within an attempt its first line counts, and the last attempt wins."""

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self.not_finite: dict[int, NotFinite] = {}
        """Of steps of which any rank printed a NaN or infinity."""
        self.restarts: list[Problem] = []
        self.repeats: defaultdict[int, int] = defaultdict(int)
        """How often each step was printed again by other ranks."""
        self.this_attempt: dict[int, bytes] = {}
        """The text of each step, as it was printed first."""
        self.ranks: defaultdict[bytes | None, Rank] = defaultdict(Rank)
        self.ranks_without_label = False
        self.first: float = math.inf
        """The first step of this attempt that was printed."""

    def begin(self) -> None:
        """Begin a new attempt: another log of a requeued job, or another start of the trainer."""
        self.this_attempt.clear()
        self.first = math.inf
        self.ranks.clear()

    def forget_old(self, most: int = 20_000, kept_steps: int = 1000) -> None:
        """Keep only the newest steps, and no ranks, once more than `most` steps are stored.

        For a reader that keeps pace with a log and must not grow with it.
        """
        if max(len(self.steps), sum(len(rank.steps) for rank in self.ranks.values())) <= most:
            return
        newest = sorted(self.this_attempt)[-kept_steps:]
        self.this_attempt = {number: self.this_attempt[number] for number in newest}
        self.first = newest[0] if newest else math.inf
        for numbers in (self.steps, self.not_finite, self.repeats):
            for number in [number for number in numbers if number < self.first]:
                del numbers[number]
        self.restarts = self.restarts[-1:]
        self.ranks.clear()

    def add(self, event: StepsPrinted) -> list[Step | Problem]:
        """Add printed steps; yield the new ones, each after the restart that it follows."""
        news: list[Step | Problem] = []
        new: list[int] = []
        counts_repeats = not event.log_format.redraws

        def take_in() -> None:
            for step in event.read(new) if new else ():
                self.steps[step.global_step] = step
                news.append(step)
            new.clear()

        for place, (number, label, text) in enumerate(
            zip(event.numbers, event.labels, event.texts, strict=True)
        ):
            rank = self.ranks[label]
            before = self.this_attempt.get(number)
            if before is None:
                restarted = number < self.first and bool(self.steps or new)
            else:
                restarted = number in rank.steps and not self._is_repeat(number, label, text, before)
            if restarted:
                take_in()
                news.append(self._restart(number))
                rank, before = self.ranks[label], None
            if before is None:
                new.append(place)
                if not self.this_attempt:
                    self.first = number
                self.this_attempt[number] = text
            elif counts_repeats:
                self.repeats[number] += 1
            rank.steps.add(number)
            if number > rank.highest:  # noqa: PLR1730 - half as fast as a call
                rank.highest = number
        take_in()
        if event.not_finite:
            self.not_finite.setdefault(event.numbers[0], event.not_finite)
        return news

    def _is_repeat(self, number: int, label: bytes | None, text: bytes, before: bytes) -> bool:
        """Return whether a known writer repeats a step or lags behind, which is not a restart."""
        if plain(text) == plain(before):
            return True
        highest = self.ranks[label].highest
        if number == highest and label is None:
            self.ranks_without_label = True
        return number >= highest - (_UNLABELLED_RANKS_APART if self.ranks_without_label else 0)

    def _restart(self, at_step: int) -> Problem:
        retrained = tuple(sorted(number for number in self.steps if number >= at_step))
        after_step = max(self.steps)
        for number in retrained:
            del self.steps[number]
            self.not_finite.pop(number, None)
        self.restarts.append(restarted(after_step, at_step, retrained, from_scratch=not self.steps))
        self.begin()
        return self.restarts[-1]
