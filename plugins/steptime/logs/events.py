"""What a log has, one event after the other: steps, checkpoints, the trainer's records, signs of failure.

This is the one place that knows which word leads to which reader; whole logs (`reader`) and growing ones
(`progress`) are both read through it.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache, partial
from typing import NamedTuple

from steptime.logs.causes import CAUSES, TRACEBACK_WORDS, Cause, Symptom, Tracebacks
from steptime.logs.checkpoints import WORDS as CHECKPOINT_WORDS
from steptime.logs.checkpoints import CheckpointLine, read_checkpoints
from steptime.logs.formats import LogFormat, StepLine, Values
from steptime.logs.models import Step
from steptime.logs.records import WORDS as RECORD_WORDS
from steptime.logs.records import Record, read_records
from steptime.logs.search import LineSearch, MarkedLine, WholeLines
from steptime.logs.shapes import Shapes, StepsPrinted, label_of, plain
from steptime.plug_points import LOG_FORMATS
from steptime.recipes.models import Mode

_CUT_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9.eE+-]{1,40}$")
_DENSE_BYTES = 1000
"""A log that has a line with a word in less than so many bytes is read by what its lines look like."""
_PROFILE_WORDS = (
    b"range started in the application",  # Nsight Systems
    b"profiling setup with start_step",  # NeMo 2
    b"====== Start nsys profiling ======",  # NeMo 1
    b"active. Traces will be saved",  # torchtitan
)
"""Without the words before them: `Capture`, `Nsys` and `Profiling` made the search half as fast."""
_NCCL_CALL = b": opCount "
"""In each call that NCCL logs: as one of the words it would be found in almost every line of a trace."""
_NCCL_CALL_WITHIN = 1 << 26
"""Bytes at the beginning of a log: ranks call each other before they train."""


class CutStep(NamedTuple):
    """The log ends within a step's line."""

    global_step: int | None


Event = StepsPrinted | CheckpointLine | Record | Symptom | CutStep | Mode

_CAUSE_OF: dict[bytes, Cause] = {word.encode(): cause for cause in CAUSES for word in cause.words}


@cache
def _formats() -> tuple[LogFormat, ...]:
    return tuple(LOG_FORMATS.load(name) for name in LOG_FORMATS.names())


@cache
def search_words() -> list[bytes]:
    """All that lines are searched for."""
    # In this order those that begin alike share a bucket of the search: twice as fast as in another.
    of_formats = (word for log_format in _formats() for word in log_format.words)
    others = (*CHECKPOINT_WORDS, *RECORD_WORDS, *TRACEBACK_WORDS, *_CAUSE_OF, *_PROFILE_WORDS)
    return sorted({*of_formats, *others})


@cache
def _search() -> LineSearch:
    return LineSearch(search_words())


@cache
def _numbers_are_no_words() -> bool:
    """Whether a line has the same words whatever its numbers are."""
    return not any(re.search(rb"[0-9]|[-+]$", word) for word in search_words())


class _Route(NamedTuple):
    """Who reads a line, by the words in it."""

    formats: tuple[LogFormat, ...]
    checkpoint: bool
    record: bool
    traceback: bool
    causes: tuple[bytes, ...]
    profile: bool


@lru_cache(maxsize=1024)
def _route(indexes: tuple[int, ...]) -> _Route:
    words = {search_words()[index]: None for index in indexes}
    return _Route(
        formats=tuple(
            log_format for log_format in _formats() if not words.keys().isdisjoint(log_format.words)
        ),
        checkpoint=not words.keys().isdisjoint(CHECKPOINT_WORDS),
        record=not words.keys().isdisjoint(RECORD_WORDS),
        traceback=not words.keys().isdisjoint(TRACEBACK_WORDS),
        causes=tuple(word for word in words if word in _CAUSE_OF),
        profile=not words.keys().isdisjoint(_PROFILE_WORDS),
    )


class LogEvents:
    """Reads one log from its start; fed pieces of any size."""

    def __init__(self) -> None:
        self._lines = WholeLines()
        self._shapes = Shapes()
        self._is_dense = False
        self._looks_for_calls = _NCCL_CALL_WITHIN
        self.ahead: dict[str, Values] = {}
        """By format: what was printed ahead of its next step."""
        self.tracebacks = Tracebacks()

    @property
    def waiting_bytes(self) -> int:
        """Of a line that has not ended yet; all before them is read."""
        return self._lines.rest_bytes

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events of all lines that end in `data`, in their order."""
        return self._read(self._lines.feed(data))

    def finish(self) -> Iterator[Event]:
        """The events of the last line if it has no end, and of a traceback that was never explained."""
        yield from self._read(self._lines.finish())
        if unexplained := self.tracebacks.finish():
            yield unexplained

    def _read(self, block: bytes) -> Iterator[Event]:
        if self._looks_for_calls > 0:
            self._looks_for_calls -= len(block)
            if _NCCL_CALL in block:
                self._looks_for_calls = 0
                yield Mode.NCCL_TRACE
        if not self._is_dense:
            lines = _search().lines(block)
            self._is_dense = len(lines) * _DENSE_BYTES > len(block)
        if self._is_dense and block.endswith(b"\n"):
            yield from self._dense(block)
        else:
            for line in _search().lines(block) if self._is_dense else lines:
                yield from self._careful(line)

    def _dense(self, block: bytes) -> Iterator[Event]:
        """Reads a block by the shapes of its lines, and what has none with care."""
        begin = others = 0
        while begin < len(block):
            run, lines, ahead = None, list[re.Match[bytes]](), list[Values | None]()
            by_group = self._shapes.by_group
            learned = False
            for match in self._shapes.pattern.finditer(block, begin):
                shape = by_group.get(match.lastindex)
                if shape is not None and shape.number is None:
                    self.ahead[shape.log_format.name] = shape.values(match)
                    continue
                if run is not None and shape is not run:
                    yield run.printed(lines, ahead)
                    lines, ahead = [], []
                run = shape
                if shape is not None:
                    lines.append(match)
                    ahead.append(self.ahead.pop(shape.log_format.name, None) if self.ahead else None)
                    continue
                others += len(match[0])
                for line in _search().lines(match[0]):
                    yield from self._careful(line)
                    learned = self._learn(line) or learned
                if learned:
                    break
            if run is not None:
                yield run.printed(lines, ahead)
            begin = match.end()
        self._is_dense = 2 * others < len(block)

    def _learn(self, line: MarkedLine) -> bool:
        route = _route(line.words)
        only_a_step = not (
            route.checkpoint or route.record or route.traceback or route.causes or route.profile
        )
        return (
            len(route.formats) == 1
            and only_a_step
            and _numbers_are_no_words()
            and self._shapes.learn(line.text, route.formats[0])
        )

    def _careful(self, line: MarkedLine) -> Iterator[Event]:
        text = plain(line.text)
        route = _route(line.words)
        for log_format in route.formats:
            yield from self._steps(log_format, text, whole=line.whole)
        if route.checkpoint:
            yield from read_checkpoints(text)
        if route.profile:
            yield Mode.PROFILE
        if route.record:
            yield from read_records(text)
        symptoms = [_CAUSE_OF[word].find(text, word) for word in route.causes]
        known = [symptom for symptom in symptoms if symptom is not None]
        yield from known
        if route.traceback and (symptom := self.tracebacks.read(text, explained=bool(known))):
            yield symptom

    def _steps(self, log_format: LogFormat, text: bytes, *, whole: bool) -> Iterator[Event]:
        uncut = text if whole else _CUT_NUMBER.sub(b"", text)
        last: StepLine | None = None
        for own_text, values in log_format.find(uncut):
            number = log_format.number(values)
            if number is None:
                self.ahead[log_format.name] = values
                continue
            last = log_format.line(number, self.ahead.pop(log_format.name, {}) | values)
            if number >= 0:
                yield StepsPrinted(
                    log_format,
                    log_format.last_step(number, values),
                    [number],
                    [label_of(text)],
                    [own_text],
                    partial(_all_of, [last.step]),
                    None if last.is_finite else last,
                )
        if not whole and (uncut != text or (last is not None and last.step.step_time_s is None)):
            yield CutStep(None if last is None else last.step.global_step)


def _all_of(steps: list[Step], _: list[int]) -> list[Step]:
    return steps
