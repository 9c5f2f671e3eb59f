"""What every log format offers, and the reading of names and numbers that they share."""

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
"""Beyond, a float no longer tells neighbours apart."""

_FIELD = re.compile(rb"(?<![A-Za-z_])([A-Za-z_]+(?: in s)?)\s*[:=]\s*(" + NUMBER + rb")")


class StepLine(NamedTuple):
    """One printed step."""

    step: Step
    text: bytes
    """The step's own text: equal where a line is only printed again."""
    last_step: int | None = None
    """The run's last global step, where the line says so (`iteration 3/49`)."""
    grad_norm: float | None = None


class LogFormat(Protocol):
    """A framework's step lines. An instance reads one log from its start, and may remember."""

    name: ClassVar[str]
    words: ClassVar[tuple[bytes, ...]]
    """Byte strings of which every step line has at least one, as long and rare as can be."""
    redraws: ClassVar[bool]
    """Whether the same step is printed again and again by design, as a progress bar does."""

    def read(self, line: bytes) -> Iterable[StepLine]:
        """The steps of a line: one, several where line ends were lost, none where it only looks like one.

        The line has no terminal codes and no number that was cut at the end of the data.
        """
        ...


def records(line: bytes, start: re.Pattern[bytes]) -> Iterator[tuple[re.Match[bytes], bytes]]:
    """Each match of `start` with the text from there to the next: glued lines fall apart."""
    matches = list(start.finditer(line))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        end = following.start() if following else len(line)
        yield match, line[match.start() : min(end, match.start() + _MAX_RECORD_BYTES)]


def fields(text: bytes) -> dict[bytes, bytes]:
    """The numbers of `name: number` and `name=number` by name, whatever stands between; the first counts."""
    return dict(reversed(_FIELD.findall(text)))


def real(text: bytes | None) -> float | None:
    """A printed number, NaN and infinity included; None stays None."""
    return None if text is None else float(text)


def whole(text: bytes | None) -> int | None:
    """A printed whole number, also `99.00` or `2e+3`; None for NaN and for what no counter reaches."""
    number = real(text)
    return int(number) if number is not None and abs(number) <= _LARGEST_COUNT else None
