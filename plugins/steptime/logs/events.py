"""What a log has, one event after the other: steps, checkpoints, the trainer's records, signs of failure.

This is the one place that knows which word leads to which reader; whole logs (`reader`) and growing ones
(`progress`) are both read through it.
"""

import re
from functools import cache, lru_cache
from typing import NamedTuple

from steptime.logs.causes import CAUSES, TRACEBACK_WORDS, Cause, Symptom, Tracebacks
from steptime.logs.checkpoints import WORDS as CHECKPOINT_WORDS
from steptime.logs.checkpoints import CheckpointLine, read_checkpoints
from steptime.logs.formats import LogFormat, StepLine
from steptime.logs.records import WORDS as RECORD_WORDS
from steptime.logs.records import Record, read_records
from steptime.logs.search import LineSearch, MarkedLine
from steptime.plug_points import LOG_FORMATS

_TERMINAL_CODE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_CUT_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9.eE+-]{1,40}$")
_LABEL = re.compile(rb"\s{0,8}(?:(\d{1,9}): |\[(?:rank|default)(\d{1,9})\]:?|([^\s/]{1,200}/\d{1,9}) )")


class StepPrinted(NamedTuple):
    """A step, and who printed it."""

    line: StepLine
    format_name: str
    label: bytes | None
    """The writer's name among those of one log (`3` of srun's `3: `), if it is printed."""
    redrawn: bool
    """Whether the format prints a step again by design."""


class CutStep(NamedTuple):
    """The log ends within a step's line."""

    global_step: int | None


Event = StepPrinted | CheckpointLine | Record | Symptom | CutStep

_CAUSE_OF: dict[bytes, Cause] = {word.encode(): cause for cause in CAUSES for word in cause.words}


@cache
def _formats() -> tuple[type[LogFormat], ...]:
    return tuple(LOG_FORMATS.load(name) for name in LOG_FORMATS.names())


@cache
def _words() -> list[bytes]:
    # In this order those that begin alike share a bucket of the search: twice as fast as in another.
    of_formats = (word for log_format in _formats() for word in log_format.words)
    return sorted({*of_formats, *CHECKPOINT_WORDS, *RECORD_WORDS, *TRACEBACK_WORDS, *_CAUSE_OF})


class _Route(NamedTuple):
    """Who reads a line, by the words in it."""

    formats: tuple[int, ...]
    checkpoint: bool
    record: bool
    traceback: bool
    causes: tuple[bytes, ...]


@lru_cache(maxsize=1024)
def _route(indexes: tuple[int, ...]) -> _Route:
    words = {_words()[index]: None for index in indexes}
    return _Route(
        formats=tuple(
            number
            for number, log_format in enumerate(_formats())
            if not words.keys().isdisjoint(log_format.words)
        ),
        checkpoint=not words.keys().isdisjoint(CHECKPOINT_WORDS),
        record=not words.keys().isdisjoint(RECORD_WORDS),
        traceback=not words.keys().isdisjoint(TRACEBACK_WORDS),
        causes=tuple(word for word in words if word in _CAUSE_OF),
    )


class LogEvents:
    """Reads one log from its start; fed pieces of any size."""

    def __init__(self) -> None:
        self._search = LineSearch(_words())
        self._formats = [log_format() for log_format in _formats()]
        self._tracebacks = Tracebacks()

    def feed(self, data: bytes) -> list[Event]:
        """The events of all lines that end in `data`, in their order."""
        return [event for line in self._search.feed(data) for event in self._read(line)]

    def finish(self) -> list[Event]:
        """The events of the last line if it has no end, and of a traceback that was never explained."""
        events = [event for line in self._search.finish() for event in self._read(line)]
        unexplained = self._tracebacks.finish()
        return events if unexplained is None else [*events, unexplained]

    def _read(self, line: MarkedLine) -> list[Event]:
        text = _TERMINAL_CODE.sub(b"", line.text) if b"\x1b" in line.text else line.text
        route = _route(line.words)
        events: list[Event] = []
        for index in route.formats:
            events.extend(self._steps(index, text, whole=line.whole))
        if route.checkpoint:
            events.extend(read_checkpoints(text))
        if route.record:
            events.extend(read_records(text))
        symptoms = [_CAUSE_OF[word].find(text, word) for word in route.causes]
        known = [symptom for symptom in symptoms if symptom is not None]
        events.extend(known)
        if route.traceback and (symptom := self._tracebacks.read(text, explained=bool(known))):
            events.append(symptom)
        return events

    def _steps(self, index: int, text: bytes, *, whole: bool) -> list[Event]:
        log_format = self._formats[index]
        uncut = text if whole else _CUT_NUMBER.sub(b"", text)
        label = _LABEL.match(text)
        steps: list[Event] = [
            StepPrinted(
                line=line,
                format_name=log_format.name,
                label=None if label is None else label[1] or label[2] or label[3],
                redrawn=log_format.redraws,
            )
            for line in log_format.read(uncut)
        ]
        return steps if whole else [*steps, *_cut(steps, number_cut=uncut != text)]


def _cut(steps: list[Event], *, number_cut: bool) -> list[Event]:
    """Whether a line without end lost something: a bar or a file may also lack only its last line end."""
    last = steps[-1] if steps else None
    if not isinstance(last, StepPrinted):
        return [CutStep(None)] if number_cut else []
    lost_its_time = last.line.step.step_time_s is None
    return [CutStep(last.line.step.global_step)] if number_cut or lost_its_time else []
