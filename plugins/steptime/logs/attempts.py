"""Tell new steps from repeated lines, and find where a restart trained steps again."""

import math
from collections import defaultdict
from collections.abc import Iterator

from steptime.logs.formats import NotFinite, StepPrinted, plain
from steptime.logs.line_forms import RepeatedStep, label_of_prefix
from steptime.logs.log_completeness import report_restart
from steptime.logs.training_log import Problem, Step

_UNLABELLED_RANKS_APART = 2
"""Ranks wait for each other, so lines without a label are at most this many steps out of order."""
_MOST_STEPS = 20_000
_KEPT_STEPS = 1000


class Rank:
    """The steps that one writer of the log, such as a rank, has printed since the training last started."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.highest = 0


class Attempts:
    """Collects the steps of a run, each once; an attempt is one start of the training.

    Within an attempt the first line of a step counts, and its loss is the first that any rank prints; a later
    attempt replaces all steps from its first on.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self.not_finite: dict[int, NotFinite] = {}
        """NaN and infinite values by step, from any rank."""
        self.restarts: list[Problem] = []
        self.repeats: defaultdict[int, int] = defaultdict(int)
        """How often each step was printed again by other ranks."""
        self.this_attempt: dict[int, bytes] = {}
        """The text of each step as it was first printed in this attempt."""
        self.ranks: defaultdict[bytes | None, Rank] = defaultdict(Rank)
        self.ranks_without_label = False
        self.first: float = math.inf
        """The first step printed in this attempt."""

    def begin(self) -> None:
        """Begin a new attempt: another log of a requeued job, or another start of the trainer."""
        self.this_attempt.clear()
        self.first = math.inf
        self.ranks.clear()

    def forget_old(self) -> None:
        """Drop all but the newest `_KEPT_STEPS` steps once more than `_MOST_STEPS` are stored.

        This limits the memory of a reader that follows a growing log.
        """
        if max(len(self.steps), sum(len(rank.steps) for rank in self.ranks.values())) <= _MOST_STEPS:
            return
        newest = sorted(self.this_attempt)[-_KEPT_STEPS:]
        self.this_attempt = {number: self.this_attempt[number] for number in newest}
        self.first = newest[0] if newest else math.inf
        for numbers in (self.steps, self.not_finite, self.repeats):
            for number in [number for number in numbers if number < self.first]:
                del numbers[number]
        self.restarts = self.restarts[-1:]
        self.ranks.clear()

    def add(self, event: StepPrinted) -> list[Step | Problem]:
        """Add a printed step. Return it if it is new, preceded by a problem if training restarted."""
        number, label, text = event.step.global_step, event.label, event.text
        news: list[Step | Problem] = []
        before = self.this_attempt.get(number)
        if before is None:
            restarted = number < self.first and bool(self.steps)
        else:
            restarted = number in self.ranks[label].steps and not self._is_repeat(number, label, text, before)
        if restarted:
            news.append(self._restart(number))
            before = None
        if before is None:
            if not self.this_attempt:
                self.first = number
            self.this_attempt[number] = text
            self.steps[number] = event.step
            news.append(event.step)
        elif not event.log_format.redraws:
            self.repeats[number] += 1
            if self.steps[number].loss is None:  # the ranks of a pipeline's last stage alone may have it
                self.steps[number].loss = event.step.loss
        rank = self.ranks[label]
        rank.steps.add(number)
        rank.highest = max(rank.highest, number)
        if event.not_finite:
            self.not_finite.setdefault(number, event.not_finite)
        return news

    def unclear(self, repeated: RepeatedStep) -> Iterator[StepPrinted]:
        """Count the lines of ranks that had not printed the step before; yield the others, to be added.

        A rank that prints a step again, or a line without a label, may show a restart.
        """
        form, number, ranks, count = repeated.form, repeated.number, self.ranks, 0
        for match in repeated.matches:
            label = label_of_prefix(match[1])
            rank = ranks[label]
            if label is None or number in rank.steps:
                yield form.printed(number, match)
                continue
            rank.steps.add(number)
            rank.highest = max(rank.highest, number)
            count += 1
        if count:
            self.repeats[number] += count

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
        self.restarts.append(report_restart(after_step, at_step, retrained, from_scratch=not self.steps))
        self.begin()
        return self.restarts[-1]
