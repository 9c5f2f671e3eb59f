"""Goodput: which part of the GPU-hours that jobs took went into training steps, and where the rest went.

A run's log has its steps and what training waited for checkpoints; the rest of its job's time is its start
and its end. Jobs without a valid run are lost as a whole, and time in the queue takes no GPU-hours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steptime.results.metrics import gpu_hours

if TYPE_CHECKING:
    from steptime.results.models import Result

TRAINING = "training steps"
_OF_RUNS = {TRAINING: "in_steps_s", "first steps": "first_steps_s", "checkpoints": "in_checkpoints_s"}
PARTS = (*_OF_RUNS, "start and end", "failures", "resubmissions")
"""Failures are jobs whose run failed, was cancelled or was rejected; resubmissions those that their cluster
failed, and for which another job was submitted."""
_LEAST_PERCENT = 0.5
"""A smaller part is not named in a sentence."""


@dataclass(frozen=True)
class JobTimes:
    """Where the time of one job went, in seconds."""

    in_steps_s: float
    """In training steps: of the first ones only as long as a steady step takes."""
    first_steps_s: float
    """What the steps before the window took longer than steady ones: compilation and warm-up."""
    in_checkpoints_s: float
    """What training waited for checkpoints, loads included."""


def job_times(result: "Result") -> JobTimes | None:
    """Return where the time of a run's job went, as its log shows; None if nothing was measured.

    A log with a line for every tenth step has means of ten steps, so each line counts ten times.
    """
    measured, log, run = result.measurement, result.log, result.run
    times = {step.global_step: step.step_time_s for step in log.steps if step.step_time_s is not None}
    if measured is None or not times:
        return None
    steady_s = measured.steady_step_time_s or measured.step_time_mean_s
    each = (max(times) - run.first_step + 1) / len(times)
    first = each * sum(max(0.0, time - steady_s) for step, time in times.items() if step < run.window.first)
    waited = [
        checkpoint.duration_s if checkpoint.blocked_s is None else checkpoint.blocked_s
        for checkpoint in log.checkpoints
    ]
    return JobTimes(each * sum(times.values()) - first, first, sum(time or 0.0 for time in waited))


@dataclass(frozen=True)
class Goodput:
    """What the GPU-hours of several jobs went into."""

    hours: Mapping[str, float]
    """By part: `training steps` and what is lost."""

    @property
    def allocated(self) -> float:
        """All of them."""
        return sum(self.hours.values())

    @property
    def percent(self) -> dict[str, float]:
        """Their parts in percent: that of `training steps` is the goodput."""
        return {part: 100 * hours / self.allocated for part, hours in self.hours.items()}

    @property
    def sentence(self) -> str:
        """As in `goodput 71 %; 12 % start and end, 9 % failures`, the largest part first."""
        percent = self.percent
        goodput = f"goodput {percent.pop(TRAINING):.0f} %"
        largest = sorted(percent, key=lambda part: -percent[part])
        rest = ", ".join(
            f"{percent[part]:.0f} % {part}" for part in largest if percent[part] >= _LEAST_PERCENT
        )
        return f"{goodput}; {rest}" if rest else goodput


def compute_goodput(rows: Iterable[Mapping[str, Any]], lost: Iterable[Mapping[str, Any]]) -> Goodput | None:
    """Return the goodput of runs of the store, and of jobs that left no run there (`Store.lost_jobs`).

    A valid run without a step time counts for nothing. None if nothing took GPU-hours.
    """
    hours = dict.fromkeys(PARTS, 0.0)
    for row in rows:
        spent = row["gpu_hours"] or 0.0
        if row["state"] == "rejected":
            hours["failures"] += spent
        elif row["in_steps_s"] is not None:
            known = {part: row["gpus"] * row[column] / 3600 for part, column in _OF_RUNS.items()}
            known["start and end"] = max(0.0, spent - sum(known.values()))
            hours = {part: hours[part] + known.get(part, 0.0) for part in hours}
    for job in lost:
        spent = gpu_hours(job["gpus"], job["started_at"], job["ended_at"]) or 0.0
        hours["resubmissions" if job["resubmitted"] else "failures"] += spent
    return Goodput(hours) if sum(hours.values()) else None
