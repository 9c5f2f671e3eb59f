"""Problems that no single line shows: what is missing, what is there twice, what is not a number."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from steptime.logs.attempts import Attempts, Restart
from steptime.logs.checkpoints import Checkpoint
from steptime.logs.formats import StepLine
from steptime.logs.models import Problem, Step
from steptime.logs.naming import Span, named_spans, named_steps

_MOST_STEPS_LISTED = 10_000
"""A garbled step number may leave a gap of billions."""


def short(last: int, expected_last: int) -> list[Problem]:
    """Whether training ended before its last step."""
    if last >= expected_last:
        return []
    missing = expected_last - last
    message = (
        f"training ended at step {last} of {expected_last}: "
        f"{missing} step{'s are' if missing > 1 else ' is'} missing at the end"
    )
    return [Problem(kind="short", message=message, fatal=True, steps=_listed([(last + 1, expected_last)]))]


def missing_steps(numbers: Sequence[int], expected_first: int | None) -> list[Problem]:
    """Gaps between the logged steps, and before the first if it is known which it should be.

    A log with a line every tenth step has no gaps: that is named as what it is.
    """
    gaps = [(before + 1, after - 1) for before, after in pairwise(numbers) if after - before > 1]
    interval = _interval(numbers)
    if interval > 1:
        message = f"the log has one line per {interval} steps"
        return [Problem(kind="log_interval", message=message, fatal=False)]
    if expected_first is not None and numbers[0] > expected_first:
        gaps.insert(0, (expected_first, numbers[0] - 1))
    if not gaps:
        return []
    message = f"the log lacks {named_spans(gaps)}"
    return [Problem(kind="missing_steps", message=message, fatal=False, steps=_listed(gaps))]


def unexpected_steps(numbers: Sequence[int], first: int, last: int | None) -> list[Problem]:
    """Steps before the first that was planned, or after the last if it is known."""
    beyond = [number for number in numbers if number < first or (last is not None and number > last)]
    if not beyond:
        return []
    planned = f"from step {first}" + ("" if last is None else f" to {last}")
    message = f"the log has {named_steps(beyond)}, but the run was planned {planned}"
    return [Problem(kind="unexpected_steps", message=message, fatal=False, steps=tuple(beyond))]


def not_finite(lines: Iterable[StepLine]) -> list[Problem]:
    """Steps whose loss or gradient norm is NaN or infinite."""
    values: list[tuple[str, str, Callable[[StepLine], float | None]]] = [
        ("nan_loss", "loss", lambda line: line.step.loss),
        ("nan_grad_norm", "gradient norm", lambda line: line.grad_norm),
    ]
    problems = []
    printed = list(lines)
    for kind, name, value_of in values:
        broken = {}
        for line in printed:
            value = value_of(line)
            if value is not None and not math.isfinite(value):
                broken[line.step.global_step] = value
        if broken:
            value = next(iter(broken.values()))
            message = (
                f"the {name} is {'NaN' if math.isnan(value) else value} at {named_steps(sorted(broken))}"
            )
            problems.append(Problem(kind=kind, message=message, fatal=True, steps=tuple(sorted(broken))))
    return problems


def untimed(steps: Sequence[Step]) -> list[Problem]:
    """Steps that were printed without their time."""
    without = [step.global_step for step in steps if step.step_time_s is None]
    if not without:
        return []
    steps_without = "any step" if len(without) == len(steps) else named_steps(without)
    message = f"the log gives no step time for {steps_without}"
    return [Problem(kind="no_step_time", message=message, fatal=False, steps=tuple(without))]


def restarted(restart: Restart) -> Problem:
    """A restart: which steps it trained again, if some of the attempt before still count."""
    back = f"training was restarted: after step {restart.after_step} it went on at step {restart.at_step}"
    if restart.from_scratch:
        return Problem(kind="restart", message=f"{back}, and only the new attempt counts", fatal=False)
    if not restart.retrained:
        return Problem(kind="restart", message=back, fatal=False)
    twice = (
        f"{named_steps(restart.retrained)} {'were' if len(restart.retrained) > 1 else 'was'} trained twice"
    )
    message = f"{back}, so {twice}; the later times count"
    return Problem(kind="duplicate_steps", message=message, fatal=False, steps=restart.retrained)


def repeated(attempts: Attempts) -> list[Problem]:
    """Steps that several ranks printed."""
    if not attempts.repeats:
        return []
    most = max(attempts.repeats.values()) + 1
    printed = "are printed up to" if len(attempts.repeats) > 1 else "is printed"
    steps = tuple(sorted(attempts.repeats))
    message = f"{named_steps(steps)} {printed} {most} times, as by several ranks; each counts once"
    return [Problem(kind="repeated_lines", message=message, fatal=False, steps=steps)]


def unfinished_saves(attempts: Sequence[Sequence[Checkpoint]]) -> list[Problem]:
    """Asynchronous saves that never ended; those of an earlier attempt were given up with it."""
    problems = []
    for number, attempt in enumerate(attempts, 1):
        begun = sum(checkpoint.timing.asynchronous for checkpoint in attempt)
        if missing := sum(checkpoint.unfinished for checkpoint in attempt):
            last = number == len(attempts)
            message = f"{missing} of {begun} asynchronous checkpoint saves did not end"
            message = message if last else f"in an earlier attempt: {message}"
            problems.append(Problem(kind="checkpoint_not_finalised", message=message, fatal=last))
    return problems


def _interval(numbers: Sequence[int]) -> int:
    """The constant distance between logged steps; 1 if it is not constant, or the steps are too few."""
    distances = {after - before for before, after in pairwise(numbers)}
    return distances.pop() if len(distances) == 1 and len(numbers) > 2 else 1


def _listed(ranges: Sequence[Span]) -> tuple[int, ...]:
    listed: list[int] = []
    for first, last in ranges:
        listed.extend(range(first, min(last + 1, first + _MOST_STEPS_LISTED - len(listed))))
    return tuple(listed)
