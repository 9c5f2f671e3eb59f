"""What every log format offers, and the reading of names and numbers that they share."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple, Protocol

from steptime.logs.models import Step

COUNT = rb"\d{1,15}(?!\d)"
"""A printed step number; more digits are no step."""

NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf))"
"""A number as trainers print it: `49`, `2.693`, `1.249e+03`, `2e+3`, `nan`, with or without text behind."""

_MAX_RECORD_BYTES = 4096
"""No step's fields reach further: what follows is other text in the same line."""

_LARGEST_COUNT = 2**53
"""Beyond it neighbouring whole numbers are one float."""

_NUMBER = re.compile(rb"\s*(" + NUMBER + rb")")


class StepLine(NamedTuple):
    """One printed step."""

    step: Step
    text: bytes
    """The step's own text: equal if a line is only printed again."""
    last_step: int | None = None
    """The run's last global step, if the line has it (`iteration 3/49`)."""
    grad_norm: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether neither loss nor gradient norm is NaN or infinite."""
        return math.isfinite(self.step.loss or 0.0) and math.isfinite(self.grad_norm or 0.0)


class LogFormat(Protocol):
    """A framework's step lines. An instance reads one log from its start, and may remember."""

    name: ClassVar[str]
    words: ClassVar[tuple[bytes, ...]]
    """Byte strings of which every step line has at least one, as long and rare as can be."""
    redraws: ClassVar[bool]
    """Whether the same step is printed again and again by design, as a progress bar does."""

    def read(self, line: bytes) -> Iterable[StepLine]:
        """The steps of a line: one, several if line ends were lost, none if it only looks like one.

        The line has no terminal codes and no number that was cut at the end of the data.
        """
        ...


def records(line: bytes, start: re.Pattern[bytes]) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """Each match of `start` with the text from there to the next: glued lines fall apart."""
    matches = list(start.finditer(line))
    ends = [following.start() for following in matches[1:]] + [len(line)]
    for match, end in zip(matches, ends, strict=False):
        begin = match.start()
        yield match, line[begin : min(end, begin + _MAX_RECORD_BYTES)]


def fields(text: bytes) -> dict[bytes, bytes]:
    """What follows each name in `name: 1 | name: 2` or `name=1, name=2`, by name; the first of a name counts.

    A value is read with `real` or `whole`, as other text may be glued behind the number.
    """
    values = {}
    for pair in reversed(text.replace(b"=", b":").replace(b",", b"|").split(b"|")):
        name, _, value = pair.partition(b":")
        values[name.strip()] = value
    return values


def real(text: bytes | None) -> float | None:
    """The number that `text` begins with, NaN and infinity included; None if there is none."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        number = _NUMBER.match(text)
        return float(number[1]) if number else None


def whole(text: bytes | None) -> int | None:
    """A printed whole number, also `99.00` or `2e+3`; None for NaN and for what no counter reaches."""
    number = real(text)
    return int(number) if number is not None and abs(number) <= _LARGEST_COUNT else None


def gibibytes(text: bytes) -> int | None:
    """Bytes of a printed number of GiB; None for NaN and for what no memory has."""
    number = real(text)
    return round(number * 2**30) if number is not None and abs(number) * 2**30 <= _LARGEST_COUNT else None
