"""The numbers that are printed of a step, and the steps that they make up."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from itertools import repeat
from typing import Any

from steptime.logs.models import Step

COUNT = rb"\d{1,15}(?!\d)"
"""A printed step number; more digits are no step."""

NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf))"
"""A number as trainers print it: `49`, `2.693`, `1.249e+03`, `2e+3`, `nan`, with or without text behind."""

FIRST_NUMBER = re.compile(rb"\s*(" + NUMBER + rb")")

_FIELDS = [field.name for field in fields(Step)[1:]]
_TOO_LONG = 16
"""Digits of a whole number that may be beyond the largest."""
_LARGEST_COUNT = 2**53
"""Beyond it neighbouring whole numbers are one float."""


def real(text: bytes | None) -> float | None:
    """The number that `text` begins with, NaN and infinity included; None if there is none."""
    try:
        return float(text or b"")
    except ValueError:
        number = FIRST_NUMBER.match(text or b"")
        return float(number[1]) if number else None


def whole(text: bytes | None) -> int | None:
    """A printed whole number, also `99.00` or `2e+3`; None for NaN and for what no counter reaches."""
    if text is not None and text.isdigit() and len(text) < _TOO_LONG:
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


def steps(numbers: Iterable[int], columns: Mapping[str, Sequence[bytes | None]]) -> list[Step]:
    """Steps of what is printed of them by quantity, one quantity after the other, as that is fast."""
    of_fields: dict[str, Iterable[Any]] = {}
    for quantity, texts in columns.items():
        if quantity in READERS:
            field, read = READERS[quantity]
            try:
                of_fields[field] = _AT_ONCE[read](texts)
            except (TypeError, ValueError, OverflowError):
                of_fields[field] = map(read, texts)
    return list(map(Step, numbers, *(of_fields.get(name, repeat(None)) for name in _FIELDS)))


def _wholes(texts: Sequence[bytes]) -> list[int]:
    if max(map(len, texts)) >= _TOO_LONG:
        raise ValueError
    return list(map(int, texts))


def _gibibytes(texts: Sequence[bytes]) -> list[int]:
    sizes = [round(float(text) * 2**30) for text in texts]
    if max(map(abs, sizes)) > _LARGEST_COUNT:
        raise ValueError
    return sizes


_AT_ONCE: dict[Callable[[bytes | None], Any], Callable[[Sequence[Any]], list[Any]]] = {
    real: lambda texts: list(map(float, texts)),
    whole: _wholes,
    milliseconds: lambda texts: [float(text + b"e-3") for text in texts],
    gibibytes: _gibibytes,
}
"""The same of many texts, three times as fast; they raise an error if one of the texts needs care."""
