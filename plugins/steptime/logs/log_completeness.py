"""Find out whether a training ended, and find problems that no single line shows, such as missing steps.

docs/reference/logs.md has the rule: which evidence of the end exists, and which takes precedence.
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import NamedTuple

from steptime.logs.checkpoints import Checkpoint
from steptime.logs.formats import NotFinite, formats_of
from steptime.logs.training_log import Problem, Step

_MOST_NAMED = 6
"""Maximum number of ranges of steps named in a sentence; the steps of the others are counted."""
_MOST_LISTED = 10_000
"""Maximum number of missing steps listed: a garbled number may cause a gap of billions."""

_LIKE_A_STEP = re.compile(
    rb"(?m)^.{0,200}?(?<!validate )(?:\b(?i:steps?|iter|iteration|global_step)\b.{0,3}?[ =:#'\"]{1,3}\d"
    rb".{0,300}(?:\b[Ll]oss|_loss['\"]?[:=] ?[-\d.])|'loss': [\d'].{0,300}'epoch': ).{0,200}"
)
"""A line with a number of a step, or with an epoch as Hugging Face prints it, and a loss."""
_BAR = re.compile(rb"(?:it/s|s/it)\b.{0,200}(?i:loss)")
_BY_STEP_LINE = (
    "as in 'iter {step}: loss {loss}, time {ms}ms', by `step_line` of the launcher in the workload's file, "
    "or by --step-line of `steptime parse`"
)
_TIMES = {"step_time_s", "step_time_ms", "rounded_step_time_s", "tokens_per_s_per_gpu"}
_LONGEST_LINE = 120
_WARM_UP = 3
_LEAST_TIMED, _MOST_TIMED = 10, 1000
_SLOW, _MOST_SLOW = 3.0, 0.1
_TREND, _CERTAIN = 0.2, 0.8

CLOSING_WORDS = (b"`Trainer.fit` stopped: ", b"[after training is done]", b"Training completed")
_CLOSING = re.compile(
    rb"`Trainer\.fit` stopped: (?:`max_steps=(?P<max_steps>\d{1,15})` reached|(?P<no>No training batches))?"
    rb"|\[after training is done\]|\bTraining completed\b"
)


class Closing(NamedTuple):
    """The message with which a framework says that its training is over."""

    max_steps: int | None = None
    """Number of trained steps according to the message."""
    nothing_to_train: bool = False
    """Whether the message says that there was nothing to train."""


def read_closing(line: bytes) -> list[Closing]:
    """Return the closing message of Lightning (NeMo), Megatron or torchtitan in a line, if any."""
    return [
        Closing(None if match["max_steps"] is None else int(match["max_steps"]), match["no"] is not None)
        for match in _CLOSING.finditer(line)
    ]


class End(NamedTuple):
    """What a log shows about how its training ended."""

    last_step: int | None
    """The last step of the plan, or else the one that the step lines announce."""
    planned: bool
    """Whether `last_step` is from the run's plan, and not from the log's step lines."""
    closing: Closing | None = None
    printed: tuple[int, int] | None = None
    """Iterations done and total in the last line, if these are not global steps."""

    def is_complete(self, numbers: Sequence[int]) -> bool:
        """Return whether a training whose log has these global steps, in order, is complete.

        It is by its last step, or by a closing message if that step is unknown or has no line of its own.
        """
        if numbers and self.last_step is not None and numbers[-1] >= self.last_step:
            return True
        if not numbers or self.closing is None:
            return False
        if self.last_step is None:
            return True
        if self.closing.max_steps is not None:
            return not self.planned or self.closing.max_steps > self.last_step
        # With a line every tenth step the last steps may have none.
        before = numbers[-2] if len(numbers) > 1 else -1
        return self.last_step - numbers[-1] < numbers[-1] - before

    def is_known(self) -> bool:
        """Return whether plan or log tell when training is complete: by a last step or a closing message."""
        return self.last_step is not None or self.closing is not None


def named_steps(steps: Iterable[int]) -> str:
    """Format sorted global steps for a sentence, with consecutive ones as ranges.

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


def report_early_end(numbers: Sequence[int], end: End) -> Iterator[Problem]:
    """Yield a problem if the training ended before its last step, or if the log does not show its end."""
    if end.is_complete(numbers):
        return
    if not end.is_known():
        message = (
            f"the log does not show whether training ended at step {numbers[-1]}: it has neither a last step "
            "nor closing words"
        )
        yield Problem(kind="end_unknown", message=message, fatal=True)
    elif end.last_step is not None:
        missing = range(numbers[-1] + 1, end.last_step + 1)
        printed = "" if end.printed is None else " (printed as {} of {})".format(*end.printed)
        message = (
            f"training ended{' by itself' if end.closing else ''} at step {numbers[-1]} of "
            f"{end.last_step}{printed}: "
            f"{len(missing)} step{'s are' if len(missing) > 1 else ' is'} missing at the end"
        )
        yield Problem(kind="short", message=message, fatal=True, steps=tuple(missing[:_MOST_LISTED]))


def report_no_steps(
    bytes_read: int, closing: Closing | None, last_lines: bytes, step_line: str | None, *, loaded: bool
) -> Problem:
    """Return the problem of a log without any step: empty, nothing left to train, or no step found.

    If `last_lines`, the end of the log, has steps that a terminal wrapped, or that are neither of a known
    format nor of the form `step_line`, or a progress bar, the problem says so. `loaded` tells whether the
    training loaded a checkpoint.
    """
    if closing is not None and (loaded or closing.nothing_to_train):
        message = (
            "training ended without a step: nothing was left to train, as of a checkpoint of its last step"
        )
        return Problem(kind="nothing_to_train", message=message, fatal=True)
    if not bytes_read:
        return Problem(kind="empty_log", message="the log is empty", fatal=True)
    message = f"no training step in the log's {bytes_read:,} bytes"
    formats = formats_of(step_line)
    unwrapped = re.sub(rb"\r?\n", b"", last_lines)
    joined = [values for log_format in formats for _, values in log_format.find(unwrapped)]
    if any(not _TIMES.isdisjoint(values) for values in joined):
        message += ": its step lines are wrapped, as by a terminal; read the file that the job itself wrote"
        return Problem(kind="wrapped_lines", message=message, fatal=True)
    if unknown := _LIKE_A_STEP.search(last_lines):
        line = unknown[0].decode(errors="replace").strip()[:_LONGEST_LINE]
        line = "".join(letter if letter.isprintable() else " " for letter in line)
        if step_line is None:
            names = ", ".join(log_format.name for log_format in formats)
            message += (
                f" is of a format that is read ({names}), but it has lines such as '{line}': say how they "
                f"look, {_BY_STEP_LINE}"
            )
        else:
            message += (
                f" is of the form '{step_line}', but it has lines such as '{line}': correct `step_line`"
            )
        return Problem(kind="unknown_format", message=message, fatal=True)
    bar = ", but a progress bar, which has no time of a step" if _BAR.search(last_lines) else ""
    if bar or closing is not None:
        ended = ", though training ended by itself" if closing is not None else ""
        message += (
            f"{bar}{ended}: if it has trained, have it print a line for each step, and say how that looks, "
            f"{_BY_STEP_LINE}"
        )
        return Problem(kind="unknown_format", message=message, fatal=True)
    return Problem(kind="no_steps", message=message, fatal=True)


def report_gaps(
    numbers: Sequence[int], *, begin: int | None, first: int, last: int | None
) -> Iterator[Problem]:
    """Yield problems for gaps in the steps, and for steps outside the planned range `first` to `last`.

    `begin` is the step with which the log should begin, if known. If all steps are equally far apart, as in a
    log with a line for every tenth step, that interval is reported instead of gaps.
    """
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


def report_restart(after: int, at: int, retrained: Sequence[int], *, from_scratch: bool) -> Problem:
    """Return the problem that training was restarted and went on at step `at` after step `after`.

    `retrained` are the steps trained twice, whose later times count. With `from_scratch`, no step of the
    earlier attempt is left.
    """
    message = f"training was restarted: after step {after} it went on at step {at}"
    if from_scratch or not retrained:
        message += ", and only the new attempt counts" if from_scratch else ""
        return Problem(kind="restart", message=message, fatal=False)
    were = "were" if len(retrained) > 1 else "was"
    message += f", so {named_steps(retrained)} {were} trained twice; the later times count"
    return Problem(kind="duplicate_steps", message=message, fatal=False, steps=tuple(retrained))


def report_not_finite(steps: Mapping[int, NotFinite]) -> Iterator[Problem]:
    """Yield a problem if the loss or gradient norm of a step is NaN or infinite."""
    for kind, name in (("nan_loss", "loss"), ("nan_grad_norm", "gradient norm")):
        if broken := [number for number, values in steps.items() if name in values]:
            values = (steps[number][name] for number in broken)
            printed = dict.fromkeys("NaN" if math.isnan(value) else str(value) for value in values)
            broken.sort()
            message = f"the {name} is {' or '.join(printed)} at {named_steps(broken)}"
            yield Problem(kind=kind, message=message, fatal=True, steps=tuple(broken))


def report_untimed(steps: Sequence[Step]) -> Iterator[Problem]:
    """Yield a problem if steps were printed without their time."""
    if without := tuple(step.global_step for step in steps if step.step_time_s is None):
        which = "any step" if len(without) == len(steps) else named_steps(without)
        message = f"the log gives no step time for {which}"
        yield Problem(kind="no_step_time", message=message, fatal=False, steps=without)


def report_uneven_times(steps: Sequence[Step]) -> Iterator[Problem]:
    """Yield a remark if step times grow or fall steadily, or if single steps took far longer than the others.

    The first `_WARM_UP` steps are left out, and of a long log only the last `_MOST_TIMED` steps count.
    """
    last = steps[_WARM_UP:][-_MOST_TIMED:]
    timed = [(step.global_step, step.step_time_s) for step in last if step.step_time_s]
    if len(timed) < _LEAST_TIMED or not all(map(math.isfinite, (time_s for _, time_s in timed))):
        return
    numbers, times_s = zip(*timed, strict=True)
    median_s = statistics.median(times_s)
    slow = [number for number, time_s in timed if time_s > _SLOW * median_s]
    if slow and len(slow) <= _MOST_SLOW * len(timed):
        message = (
            f"{named_steps(slow)} took up to {max(times_s):.4g} s, and others {median_s:.4g} s: a mean over "
            "such a step is no step time"
        )
        yield Problem(kind="slow_steps", message=message, fatal=False, steps=tuple(slow))
    elif max(times_s) > min(times_s):
        slope_s, intercept_s = statistics.linear_regression(numbers, times_s)
        first_s, last_s = (slope_s * number + intercept_s for number in (numbers[0], numbers[-1]))
        is_certain = statistics.correlation(numbers, times_s) ** 2 > _CERTAIN
        if is_certain and abs(last_s - first_s) > _TREND * median_s:
            message = (
                f"the step time {'grows' if slope_s > 0 else 'falls'} from {first_s:.4g} s to {last_s:.4g} s "
                f"over steps {numbers[0]} to {numbers[-1]}: a mean of it is no step time"
            )
            yield Problem(kind="step_time_trend", message=message, fatal=False)


def report_repeated(repeats: Mapping[int, int]) -> Iterator[Problem]:
    """Yield a problem if several ranks printed the same steps; `repeats` counts the repetitions by step."""
    if repeats:
        steps = tuple(sorted(repeats))
        printed = "are printed up to" if len(steps) > 1 else "is printed"
        times = f"{max(repeats.values()) + 1} times, as by several ranks; each counts once"
        message = f"{named_steps(steps)} {printed} {times}"
        yield Problem(kind="repeated_lines", message=message, fatal=False, steps=steps)


def report_unfinished_saves(attempts: Sequence[Sequence[Checkpoint]]) -> Iterator[Problem]:
    """Yield a problem for each attempt with asynchronous checkpoint saves that did not finish.

    It is fatal only in the last attempt.
    """
    for attempt in attempts:
        begun = sum(checkpoint.timing.asynchronous for checkpoint in attempt)
        if missing := sum(checkpoint.unfinished for checkpoint in attempt):
            is_last = attempt is attempts[-1]
            message = f"{missing} of {begun} asynchronous checkpoint saves did not end"
            message = message if is_last else f"in an earlier attempt: {message}"
            yield Problem(kind="checkpoint_not_finalised", message=message, fatal=is_last)
