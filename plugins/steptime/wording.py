"""Words in sentences for people."""

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural: `1 run`, `1,204 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """List names with commas; of more than `most`, only the first ones: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
