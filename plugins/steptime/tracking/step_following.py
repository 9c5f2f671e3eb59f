"""What is new in the growing log of a job, and what of it is kept so that another process can go on."""

from collections.abc import Iterable, Iterator

from pydantic import NonNegativeInt

from steptime.frozen import Frozen
from steptime.logs.attempts import Attempts, Rank, fingerprint
from steptime.logs.completeness import not_finite
from steptime.logs.events import OF_THE_LOG, Event, LogEvents
from steptime.logs.models import Problem, Step
from steptime.logs.shapes import StepsPrinted

_LATEST_STEPS = 100
"""Steps whose text is known again: ranks that print a step later than others are never so far behind."""
_FINGERPRINT_BYTES = len(fingerprint(b""))
_MOST_RANGES = 50
"""Of the steps of a rank: the last count. Only a garbled log has so many gaps."""

Ranges = tuple[tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt], ...]
"""Numbers as first, last and distance."""


class KeptRank(Frozen):
    """What one writer printed in this attempt."""

    label: str | None
    highest: int
    steps: Ranges


class KeptSteps(Frozen):
    """All that is known after the whole lines of a log, in a few kilobytes, and nothing of its text."""

    told: tuple[str, ...]
    """Kinds of problems."""
    steps: Ranges
    first: int | None
    """The step with which this attempt began."""
    latest: dict[int, str]
    """Of its last steps: a fingerprint of the text, in hexadecimal digits."""
    ranks: tuple[KeptRank, ...]
    ranks_without_label: bool
    ahead: dict[str, dict[str, str]]
    """By format: what was printed ahead of the next step."""
    in_traceback: bool


class StepFollower:
    """Returns what is new in a growing log, once: steps as they come, the first sign of each kind of trouble.

    Feed it the log's bytes in order, in pieces of any size. A step that several ranks print, or that a bar
    draws again, is returned once; after a restart, which is returned as a problem, the steps come again.

    `kept` is what another follower kept of the lines before.
    """

    def __init__(self, kept: KeptSteps | None = None) -> None:
        self._events = LogEvents()
        self._attempts = Attempts()
        self._told: set[str] = set()
        if kept is not None:
            self._told.update(kept.told)
            _restore(self._attempts, kept)
            for name, values in kept.ahead.items():
                self._events.ahead[name] = {what: text.encode("latin-1") for what, text in values.items()}
            self._events.failures.in_traceback = kept.in_traceback

    @property
    def waiting_bytes(self) -> int:
        """Of a line that has not ended yet."""
        return self._events.lines.waiting_bytes

    def kept(self) -> KeptSteps:
        """Return what is needed to go on behind the last whole line."""
        attempts = self._attempts
        latest = sorted(attempts.this_attempt)[-_LATEST_STEPS:]
        return KeptSteps(
            told=tuple(sorted(self._told)),
            steps=_folded(attempts.steps),
            first=int(attempts.first) if attempts.this_attempt else None,
            latest={number: _fingerprint(attempts.this_attempt[number]) for number in latest},
            ranks=tuple(
                KeptRank(
                    label=None if label is None else label.decode("latin-1"),
                    highest=rank.highest,
                    steps=_folded(rank.steps),
                )
                for label, rank in attempts.ranks.items()
            ),
            ranks_without_label=attempts.ranks_without_label,
            ahead={
                name: {what: text.decode("latin-1") for what, text in values.items()}
                for name, values in self._events.ahead.items()
            },
            in_traceback=self._events.failures.in_traceback,
        )

    def feed(self, data: bytes) -> list[Step | Problem]:
        """Return the steps and problems of the lines that end in `data`, in their order."""
        return [news for event in self._events.feed(data) for news in self._news(event)]

    def finish(self) -> list[Step | Problem]:
        """Return what is new in a last line without an end; called when the job has ended."""
        return [news for event in self._events.finish() for news in self._news(event)]

    def _news(self, event: Event) -> list[Step | Problem]:
        if isinstance(event, Problem) and event.kind not in OF_THE_LOG:
            return self._once(event)
        return self._steps(event) if isinstance(event, StepsPrinted) else []

    def _steps(self, event: StepsPrinted) -> list[Step | Problem]:
        news = self._attempts.add(event)
        about = {event.numbers[0]: event.not_finite} if event.not_finite else {}
        broken = [one for problem in not_finite(about) for one in self._once(problem)]
        at = len(news) - 1 if news else 0
        return [*news[:at], *broken, *news[at:]]

    def _once(self, problem: Problem) -> list[Step | Problem]:
        if problem.kind in self._told:
            return []
        self._told.add(problem.kind)
        return [problem]


def _restore(attempts: Attempts, kept: KeptSteps) -> None:
    attempts.steps.update((number, Step(number)) for number in _unfolded(kept.steps))
    attempts.ranks_without_label = kept.ranks_without_label
    for one in kept.ranks:
        rank = Rank()
        rank.highest = one.highest
        rank.steps.update(_unfolded(one.steps))
        attempts.ranks[None if one.label is None else one.label.encode("latin-1")] = rank
    if kept.first is not None:
        attempts.first = kept.first
        # Steps below it are of earlier attempts.
        for number in attempts.steps:
            if number >= kept.first:
                attempts.this_attempt[number] = bytes.fromhex(kept.latest.get(number, ""))


def _fingerprint(text: bytes) -> str:
    """Of a step's text, or of what one who went on knows of it."""
    return (text if len(text) <= _FINGERPRINT_BYTES else fingerprint(text)).hex()


def _folded(numbers: Iterable[int]) -> Ranges:
    """Numbers as ranges."""
    ranges: list[tuple[int, int, int]] = []
    for number in sorted(numbers):
        first, last, distance = ranges[-1] if ranges else (number, number, 0)
        if ranges and (first == last or number - last == distance):
            ranges[-1] = (first, number, number - last)
        else:
            ranges.append((number, number, 0))
    return tuple(ranges[-_MOST_RANGES:])


def _unfolded(ranges: Ranges) -> Iterator[int]:
    for first, last, distance in ranges:
        yield from range(first, last + 1, distance or 1)
