"""What a log format is, and the reading of names and numbers that all share."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from itertools import repeat
from typing import Any, NamedTuple

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

Values = dict[str, bytes]
"""What is printed of a step, by quantity: a key of `READERS`, or a counter, `iterations` and the like."""


class StepLine(NamedTuple):
    """One printed step, in numbers."""

    step: Step
    grad_norm: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether neither loss nor gradient norm is NaN or infinite."""
        return math.isfinite(self.step.loss or 0.0) and math.isfinite(self.grad_norm or 0.0)


@dataclass(frozen=True, eq=False)
class LogFormat:
    """A framework's step lines, each read for itself."""

    name: str
    words: tuple[bytes, ...]
    """Byte strings of which every step line has at least one, as long and rare as can be."""
    start: re.Pattern[bytes]
    """Where a step begins; its named groups are quantities."""
    fields: Mapping[bytes, str]
    """The names that follow, and which quantities they are."""
    counters: tuple[str, ...] = ("iteration",)
    """Quantities that count steps; the first that is printed counts. A line without is of the next step."""
    first: int = 0
    """What is printed for global step 0."""
    redraws: bool = False
    """Whether the same step is printed again and again by design, as a progress bar does."""

    def find(self, line: bytes) -> Iterator[tuple[bytes, Values]]:
        """The steps of a line, each with its own text: several if line ends were lost, none if it only looks
        like one.

        The line has no terminal codes and no number that was cut at the end of the data.
        """
        matches = list(self.start.finditer(line))
        ends = [following.start() for following in matches[1:]] + [len(line)]
        for match, end in zip(matches, ends, strict=False):
            text = line[match.start() : min(end, match.start() + _MAX_RECORD_BYTES)]
            groups = {name: value for name, value in match.groupdict().items() if value is not None}
            yield text, self.values(text) | groups

    def values(self, text: bytes) -> Values:
        """What follows each name in `name: 1 | name: 2` or `name=1, name=2`; the first of a name counts."""
        values = {}
        for pair in reversed(text.replace(b"=", b":").replace(b",", b"|").split(b"|")):
            name, _, value = pair.partition(b":")
            quantity = self.fields.get(name.strip())
            if quantity and _NUMBER.match(value):
                values[quantity] = value
        return values

    def number(self, values: Values) -> int | None:
        """The global step; None if the values are of the step that follows."""
        for name in self.counters:
            if (count := whole(values.get(name))) is not None:
                return count - self.first
        return None

    def last_step(self, number: int, values: Values) -> int | None:
        """The run's last step. A further epoch counts iterations anew, and its end is not the run's."""
        counts_run = "iterations" in values and int(values["iteration"]) - self.first == number
        return int(values["iterations"]) - self.first if counts_run else None

    def line(self, number: int, values: Values) -> StepLine:
        """A step in numbers."""
        if whole(values.get("nan_iterations")):
            values = values | {"loss": b"nan"}  # Megatron leaves a loss that is no number out of its line
        (step,) = steps([number], {name: [value] for name, value in values.items()})
        return StepLine(step, real(values.get("grad_norm")))


def steps(numbers: Iterable[int], columns: Mapping[str, Iterable[bytes | None]]) -> list[Step]:
    """Steps of what is printed of them by quantity, one quantity after the other, as that is fast."""
    of_fields: dict[str, Iterable[Any]] = {}
    for quantity, texts in columns.items():
        if quantity in READERS:
            field, read = READERS[quantity]
            of_fields[field] = map(read, texts)
    return list(map(Step, numbers, *(of_fields.get(field.name, repeat(None)) for field in fields(Step)[1:])))


def real(text: bytes | None) -> float | None:
    """The number that `text` begins with, NaN and infinity included; None if there is none."""
    try:
        return float(text or b"")
    except ValueError:
        number = _NUMBER.match(text or b"")
        return float(number[1]) if number else None


def whole(text: bytes | None) -> int | None:
    """A printed whole number, also `99.00` or `2e+3`; None for NaN and for what no counter reaches."""
    if text is not None and text.isdigit() and len(text) < 16:
        return int(text)
    number = real(text)
    return int(number) if number is not None and abs(number) <= _LARGEST_COUNT else None


def milliseconds(text: bytes | None) -> float | None:
    """Seconds in exactly the printed digits: 20289.1 ms are 20.2891 s, which a division would not give."""
    try:
        return None if text is None else float(text.strip() + b"e-3")
    except ValueError:
        number = real(text)
        return None if number is None else float(Decimal(repr(number)).scaleb(-3))


def gibibytes(text: bytes | None) -> int | None:
    """Bytes of a printed number of GiB; None for NaN and for what no memory has."""
    number = real(text)
    return round(number * 2**30) if number is not None and abs(number) * 2**30 <= _LARGEST_COUNT else None


READERS: dict[str, tuple[str, Callable[[bytes | None], Any]]] = {
    "step_time_ms": ("step_time_s", milliseconds),
    "peak_memory_gib": ("peak_memory_bytes", gibibytes),
    **{
        name: (name, real)
        for name in ("step_time_s", "wall_time_s", "loss", "learning_rate", "tflops_per_gpu")
    },
    **{name: (name, whole) for name in ("global_batch_size", "consumed_samples", "peak_memory_bytes")},
}
"""By quantity: the field of `Step` that it becomes, and how it is read."""
