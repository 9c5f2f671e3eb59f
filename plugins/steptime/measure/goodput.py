"""Goodput: the share of the jobs' GPU-hours spent in training steps, and where the rest went.

A run's log shows its steps and the time spent waiting for checkpoints; the rest of its job counts as start
and end. A job without a valid run counts as lost. Time in the queue takes no GPU-hours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steptime.measure.metrics import gpu_hours
from steptime.store.run_models import Result

TRAINING = "training steps"
_OF_RUNS = {TRAINING: "in_steps_s", "first steps": "first_steps_s", "checkpoints": "in_checkpoints_s"}
PARTS = (*_OF_RUNS, "start and end", "failures", "resubmissions")
"""`failures` are jobs whose run failed, was cancelled or was rejected; `resubmissions` are jobs that failed
through their cluster and were replaced by another."""
_LEAST_PERCENT = 0.5
"""Smallest part of the GPU-hours, in percent, that `Goodput.sentence` names."""


@dataclass(frozen=True)
class JobTimes:
    """How the time of one job was spent, in seconds."""

    in_steps_s: float
    """Time in training steps; a step before the window counts for at most the time of a steady one."""
    first_steps_s: float
    """How much longer the steps before the window took than steady ones: compilation and warm-up."""
    in_checkpoints_s: float
    """Time that training waited for checkpoints, loads included."""


def job_times(result: Result) -> JobTimes | None:
    """Return how the time of a run's job was spent, from its log; None if nothing was measured.

    If the log has one line for every ten steps, with their mean time, each line counts as ten steps.
    """
    measured, log, run = result.measurement, result.log, result.run
    times = {step.global_step: step.step_time_s for step in log.steps if step.step_time_s is not None}
    if measured is None or not times:
        return None
    steady_s = measured.steady_step_time_s or measured.step_time_mean_s
    steps_per_line = (max(times) - run.first_step + 1) / len(times)
    first = steps_per_line * sum(
        max(0.0, time - steady_s) for step, time in times.items() if step < run.window.first
    )
    waited = [
        checkpoint.duration_s if checkpoint.blocked_s is None else checkpoint.blocked_s
        for checkpoint in log.checkpoints
    ]
    return JobTimes(steps_per_line * sum(times.values()) - first, first, sum(time or 0.0 for time in waited))


@dataclass(frozen=True)
class Goodput:
    """How the GPU-hours of jobs were spent: on training steps (the goodput), checkpoints, failures, …"""

    hours: Mapping[str, float]
    """GPU-hours by part: `training steps`, and the lost parts."""

    @property
    def allocated(self) -> float:
        """All GPU-hours of the jobs, the sum of the parts."""
        return sum(self.hours.values())

    @property
    def percent(self) -> dict[str, float]:
        """Share of each part in percent; that of `training steps` is the goodput."""
        return {part: 100 * hours / self.allocated for part, hours in self.hours.items()}

    @property
    def sentence(self) -> str:
        """A text such as `goodput 71 %; 12 % start and end, 9 % failures`, the largest loss first."""
        percent = self.percent
        goodput = f"goodput {percent.pop(TRAINING):.0f} %"
        largest = sorted(percent, key=lambda part: -percent[part])
        rest = ", ".join(
            f"{percent[part]:.0f} % {part}" for part in largest if percent[part] >= _LEAST_PERCENT
        )
        return f"{goodput}; {rest}" if rest else goodput


def compute_goodput(rows: Iterable[Mapping[str, Any]], lost: Iterable[Mapping[str, Any]]) -> Goodput | None:
    """Return how the GPU-hours of runs, and of jobs without a run in the store, were spent.

    `rows` are runs of the store, and `lost` is from `Store.lost_jobs`. Valid runs without a step time are
    ignored. None if no job took GPU-hours.
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
