"""Numbers, names and dates as they stand in sentences for people."""

from collections.abc import Sequence
from datetime import datetime


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural: `1 run`, `1,204 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """List names with commas; of more than `most`, only the first ones: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def date(at: float) -> str:
    """Return the local date of a Unix time, as in `2026-10-22`."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d}"


def date_and_time(at: float) -> str:
    """Return the local date and time of a Unix time to the minute, as in `2026-11-27 18:05`."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M}"
