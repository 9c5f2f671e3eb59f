"""How global steps are named in sentences."""

from collections.abc import Iterable, Sequence

_SHOWN = 6
"""Spans written out; what is left is counted."""

Span = tuple[int, int]
"""First and last step, both included."""


def named_steps(steps: Iterable[int]) -> str:
    """Sorted global steps with their gaps folded: `global steps 3, 7 to 9`.

    >>> named_steps([3, 7, 8, 9])
    'global steps 3, 7 to 9'
    """
    spans: list[Span] = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], step)
        else:
            spans.append((step, step))
    return named_spans(spans)


def named_spans(spans: Sequence[Span]) -> str:
    """Spans of steps, which may be too long to list.

    >>> named_spans([(3, 3), (7, 9)])
    'global steps 3, 7 to 9'
    """
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in spans[:_SHOWN]]
    more = f" and {sum(last - first + 1 for first, last in spans[_SHOWN:])} more" if spans[_SHOWN:] else ""
    plural = "" if len(spans) == 1 and spans[0][0] == spans[0][1] else "s"
    return f"global step{plural} {', '.join(shown)}{more}"
