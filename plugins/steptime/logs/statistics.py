"""Where step times become numbers: the statistics of a window, for the store and for `steptime parse`."""

import math
import statistics

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.logs.models import TrainingLog
from steptime.recipes.models import Window


class WindowStatistics(Frozen):
    """Step times of the steps that were logged in a window."""

    steps_in_window: int
    step_time_mean_s: float
    step_time_median_s: float
    step_time_std_s: float | None
    """Sample standard deviation (ddof=1); None with fewer than two steps."""
    wall_time_median_s: float | None
    """From the end of a step to the end of the next, where the trainer logged it."""
    tflops_per_gpu_logged: float | None
    """Mean of what the trainer itself logged in the window, where it did."""


def window_statistics(log: TrainingLog, window: Window) -> WindowStatistics:
    """Statistics over the steps of `window` that have a step time; one that is incomplete is taken as it is.

    Raises UserError naming the steps where there is none, or where a step time is not positive and finite.
    """
    steps = [step for step in log.steps if window.first <= step.global_step <= window.last]
    times = {step.global_step: step.step_time_s for step in steps if step.step_time_s is not None}
    if not times:
        raise UserError(f"{log.path} has no step time in the window {window}: {_what_is_there(log, window)}.")
    for global_step, time in times.items():
        if not (math.isfinite(time) and time > 0):
            raise UserError(
                f"{log.path}: the step time of global step {global_step} is {time} s, which cannot be."
            )
    tflops = [step.tflops_per_gpu for step in steps if step.tflops_per_gpu is not None]
    wall_times = [step.wall_time_s for step in steps if step.wall_time_s is not None]
    return WindowStatistics(
        steps_in_window=len(times),
        step_time_mean_s=statistics.fmean(times.values()),
        step_time_median_s=statistics.median(times.values()),
        step_time_std_s=statistics.stdev(times.values()) if len(times) > 1 else None,
        wall_time_median_s=statistics.median(wall_times) if wall_times else None,
        tflops_per_gpu_logged=statistics.fmean(tflops) if tflops else None,
    )


def checkpoint_seconds(log: TrainingLog) -> dict[str, float | None]:
    """Of the last save, which the next run loads, and the last load, which this run trained on.

    `checkpoint_save_s` is from its start until it was whole on disk, `checkpoint_blocked_s` how long training
    waited for it: less, where the save was asynchronous. None where the log does not tell.
    """
    last = {checkpoint.kind: checkpoint for checkpoint in log.checkpoints}
    save, load = last.get("save"), last.get("load")
    return {
        "checkpoint_save_s": save.duration_s if save else None,
        "checkpoint_blocked_s": save.blocked_s if save else None,
        "checkpoint_load_s": load.duration_s if load else None,
    }


def _what_is_there(log: TrainingLog, window: Window) -> str:
    """Which steps are missing, and which the log has instead."""
    first, last = window.first, window.last
    missing = f"global step {first} is" if first == last else f"global steps {first} to {last} are"
    numbers = [step.global_step for step in log.steps]
    if not numbers:
        return f"{missing} missing, as is every other step"
    return f"{missing} missing; the log has steps {min(numbers)} to {max(numbers)}"
