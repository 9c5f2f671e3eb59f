"""Problems that no single line shows: what is missing, what is there twice, what is not a number."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise

from steptime.logs.checkpoints import Checkpoint
from steptime.logs.formats import NotFinite
from steptime.logs.models import Problem, Step

_MOST_NAMED = 6
"""Spans of steps that a sentence has; what is left is counted."""
_MOST_LISTED = 10_000
"""Steps: a garbled number may leave a gap of billions."""


def named_steps(steps: Iterable[int]) -> str:
    """Sorted global steps with their gaps folded, for a sentence.

    >>> named_steps([3, 7, 8, 9])
    'global steps 3, 7 to 9'
    """
    spans: list[range] = []
    for step in steps:
        if spans and step == spans[-1].stop:
            spans[-1] = range(spans[-1].start, step + 1)
        else:
            spans.append(range(step, step + 1))
    return _named_spans(spans)


def _named_spans(spans: Sequence[range]) -> str:
    shown = [str(span[0]) + (f" to {span[-1]}" if len(span) > 1 else "") for span in spans[:_MOST_NAMED]]
    more = f" and {sum(map(len, spans[_MOST_NAMED:]))} more" if spans[_MOST_NAMED:] else ""
    return f"global step{'s' if sum(map(len, spans)) > 1 else ''} {', '.join(shown)}{more}"


def incomplete(
    numbers: Sequence[int], *, begin: int | None, end: int | None, first: int, last: int | None
) -> Iterator[Problem]:
    """Report steps that are missing, or are not of the plan from `first` to `last`, if that is known.

    `begin` and `end` are the steps with which the log should begin and end, if they are known. A log with a
    line every tenth step has no gaps; its interval is named instead.
    """
    if end is not None and numbers[-1] < end:
        missing = range(numbers[-1] + 1, end + 1)
        message = (
            f"training ended at step {numbers[-1]} of {end}: "
            f"{len(missing)} step{'s are' if len(missing) > 1 else ' is'} missing at the end"
        )
        yield Problem(kind="short", message=message, fatal=True, steps=tuple(missing[:_MOST_LISTED]))
    gaps = [range(before + 1, after) for before, after in pairwise(numbers) if after - before > 1]
    distances = {after - before for before, after in pairwise(numbers)}
    if gaps and len(distances) == 1 and len(numbers) > 2:
        message = f"the log has one line per {distances.pop()} steps"
        yield Problem(kind="log_interval", message=message, fatal=False)
        gaps = []
    elif begin is not None and begin < numbers[0]:
        gaps.insert(0, range(begin, numbers[0]))
    if gaps:
        steps = tuple(islice(chain.from_iterable(gaps), _MOST_LISTED))
        message = f"the log lacks {_named_spans(gaps)}"
        yield Problem(kind="missing_steps", message=message, fatal=False, steps=steps)
    if beyond := [number for number in numbers if number < first or (last is not None and number > last)]:
        planned = f"from step {first}" + ("" if last is None else f" to {last}")
        message = f"the log has {named_steps(beyond)}, but the run was planned {planned}"
        yield Problem(kind="unexpected_steps", message=message, fatal=False, steps=tuple(beyond))


def restarted(after: int, at: int, retrained: Sequence[int], *, from_scratch: bool) -> Problem:
    """Report that training went back or began anew: what was trained from there before does not count."""
    message = f"training was restarted: after step {after} it went on at step {at}"
    if from_scratch or not retrained:
        message += ", and only the new attempt counts" if from_scratch else ""
        return Problem(kind="restart", message=message, fatal=False)
    were = "were" if len(retrained) > 1 else "was"
    message += f", so {named_steps(retrained)} {were} trained twice; the later times count"
    return Problem(kind="duplicate_steps", message=message, fatal=False, steps=tuple(retrained))


def not_finite(steps: Mapping[int, NotFinite]) -> Iterator[Problem]:
    """Report steps whose loss or gradient norm is NaN or infinite."""
    for kind, name in (("nan_loss", "loss"), ("nan_grad_norm", "gradient norm")):
        if broken := [number for number, values in steps.items() if name in values]:
            value = steps[broken[0]][name]
            broken.sort()
            message = f"the {name} is {'NaN' if math.isnan(value) else value} at {named_steps(broken)}"
            yield Problem(kind=kind, message=message, fatal=True, steps=tuple(broken))


def untimed(steps: Sequence[Step]) -> Iterator[Problem]:
    """Report steps that were printed without their time."""
    if without := tuple(step.global_step for step in steps if step.step_time_s is None):
        which = "any step" if len(without) == len(steps) else named_steps(without)
        message = f"the log gives no step time for {which}"
        yield Problem(kind="no_step_time", message=message, fatal=False, steps=without)


def repeated(repeats: Mapping[int, int]) -> Iterator[Problem]:
    """Report steps that several ranks printed, and how often."""
    if repeats:
        steps = tuple(sorted(repeats))
        printed = "are printed up to" if len(steps) > 1 else "is printed"
        times = f"{max(repeats.values()) + 1} times, as by several ranks; each counts once"
        message = f"{named_steps(steps)} {printed} {times}"
        yield Problem(kind="repeated_lines", message=message, fatal=False, steps=steps)


def unfinished_saves(attempts: Sequence[Sequence[Checkpoint]]) -> Iterator[Problem]:
    """Asynchronous saves that never ended; those of an earlier attempt were given up with it."""
    for attempt in attempts:
        begun = sum(checkpoint.timing.asynchronous for checkpoint in attempt)
        if missing := sum(checkpoint.unfinished for checkpoint in attempt):
            is_last = attempt is attempts[-1]
            message = f"{missing} of {begun} asynchronous checkpoint saves did not end"
            message = message if is_last else f"in an earlier attempt: {message}"
            yield Problem(kind="checkpoint_not_finalised", message=message, fatal=is_last)
