"""Problems that no single line shows: what is missing, what is there twice, what is not a number."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from steptime.logs.attempts import Attempts
from steptime.logs.checkpoints import Checkpoint
from steptime.logs.formats import StepLine
from steptime.logs.models import Problem, Step
from steptime.logs.naming import Span, named_spans, named_steps

_MOST_STEPS_LISTED = 10_000
"""A garbled step number may leave a gap of billions."""


def incomplete(
    numbers: Sequence[int], *, begin: int | None, end: int | None, first: int, last: int | None
) -> Iterator[Problem]:
    """Steps that are missing, or there although the run was planned from `first` to `last`, if that is known.

    `begin` and `end` are the steps with which the log should begin and end, if they are known. A log with a
    line every tenth step has no gaps: that is named as what it is.
    """
    if end is not None and numbers[-1] < end:
        missing = f"{end - numbers[-1]} step{'s are' if end - numbers[-1] > 1 else ' is'} missing at the end"
        message = f"training ended at step {numbers[-1]} of {end}: {missing}"
        yield Problem(kind="short", message=message, fatal=True, steps=_listed([(numbers[-1] + 1, end)]))
    gaps = [(before + 1, after - 1) for before, after in pairwise(numbers) if after - before > 1]
    distances = {after - before for before, after in pairwise(numbers)}
    if gaps and len(distances) == 1 and len(numbers) > 2:
        message = f"the log has one line per {distances.pop()} steps"
        yield Problem(kind="log_interval", message=message, fatal=False)
    elif gaps := [*([(begin, numbers[0] - 1)] if begin is not None and begin < numbers[0] else []), *gaps]:
        message = f"the log lacks {named_spans(gaps)}"
        yield Problem(kind="missing_steps", message=message, fatal=False, steps=_listed(gaps))
    if beyond := [number for number in numbers if number < first or (last is not None and number > last)]:
        planned = f"from step {first}" + ("" if last is None else f" to {last}")
        message = f"the log has {named_steps(beyond)}, but the run was planned {planned}"
        yield Problem(kind="unexpected_steps", message=message, fatal=False, steps=tuple(beyond))


def not_finite(lines: Iterable[StepLine]) -> Iterator[Problem]:
    """Steps whose loss or gradient norm is NaN or infinite."""
    values: list[tuple[str, str, Callable[[StepLine], float | None]]] = [
        ("nan_loss", "loss", lambda line: line.step.loss),
        ("nan_grad_norm", "gradient norm", lambda line: line.grad_norm),
    ]
    printed = list(lines)
    for kind, name, value_of in values:
        found = {line.step.global_step: value_of(line) or 0.0 for line in printed}
        if broken := {step: value for step, value in found.items() if not math.isfinite(value)}:
            value, steps = next(iter(broken.values())), tuple(sorted(broken))
            message = f"the {name} is {'NaN' if math.isnan(value) else value} at {named_steps(steps)}"
            yield Problem(kind=kind, message=message, fatal=True, steps=steps)


def untimed(steps: Sequence[Step]) -> Iterator[Problem]:
    """Steps that were printed without their time."""
    if without := tuple(step.global_step for step in steps if step.step_time_s is None):
        which = "any step" if len(without) == len(steps) else named_steps(without)
        message = f"the log gives no step time for {which}"
        yield Problem(kind="no_step_time", message=message, fatal=False, steps=without)


def repeated(attempts: Attempts) -> Iterator[Problem]:
    """Steps that several ranks printed."""
    if steps := tuple(sorted(attempts.repeats)):
        printed = "are printed up to" if len(steps) > 1 else "is printed"
        times = f"{max(attempts.repeats.values()) + 1} times, as by several ranks; each counts once"
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


def _listed(ranges: Sequence[Span]) -> tuple[int, ...]:
    listed: list[int] = []
    for first, last in ranges:
        listed.extend(range(first, min(last + 1, first + _MOST_STEPS_LISTED - len(listed))))
    return tuple(listed)
