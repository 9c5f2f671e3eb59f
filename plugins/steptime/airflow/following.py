"""What a person who waits for a job gets to read: states, why it queues, the steps as they come."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import fmean

from steptime.clusters.base import Cluster, Job, JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.logs.models import Problem, Step
from steptime.logs.progress import StepFollower
from steptime.recipes.models import Run

_RECENT_STEPS = 10
"""Steps whose mean time gives the estimate of the time left."""
_STEPS_ON_LINES_OF_THEIR_OWN = 5
"""When more steps than these came since the last look, one line sums them up."""
_LONGEST_SILENCE_S = 60
_UNKNOWN_POLLS = 3
"""Accounting lags behind the queue: so many polls in a row must miss a job before it counts as gone."""


class JobFollower:
    """Follows one job through the polls of its cluster, and says what is new.

    `say` gets one line at a time, `warn` what needs attention. Failed polls are forgiven until nothing was
    heard of the job for `patience_s` seconds.
    """

    def __init__(
        self,
        run: Run,
        job: Job,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self._run = run
        self._job = job
        self._say = say
        self._warn = warn
        self._patience_s = patience_s
        self._last_heard = time.monotonic()
        self._last_said: tuple[JobState, str] | None = None
        self._unknown_polls = 0
        self._steps = StepFollower()
        self._offset = 0
        self._running_since: float | None = None
        self._last_report = 0.0
        self._unreported: list[Step] = []
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    async def observe(self, cluster: Cluster, status: JobStatus) -> JobStatus | None:
        """Take in what a poll found, and what the log has grown by; the status once the job has ended.

        UNKNOWN counts as an end when several polls in a row say so.
        """
        self._unknown_polls = self._unknown_polls + 1 if status.state is JobState.UNKNOWN else 0
        is_over = not status.state.is_live and not 0 < self._unknown_polls < _UNKNOWN_POLLS
        if not is_over:
            self._say_state(status)
        if status.state is not JobState.QUEUED:
            await self._read_log(cluster)
        self._last_heard = time.monotonic()
        if is_over:
            self._take_in(self._steps.finish())
        self._report_steps(at_end=is_over)
        if is_over:
            self._say_state(status)
        return status if is_over else None

    def missed(self, error: Exception) -> None:
        """Take in that the cluster could not be asked. Raises SystemFailure when that has lasted too long."""
        silent_s = time.monotonic() - self._last_heard
        self._warn(
            f"cannot ask the cluster '{self._job.cluster}' (nothing heard for {silent_s:.0f} s): {error}"
        )
        if silent_s > self._patience_s:
            raise SystemFailure(
                f"nothing heard of job '{self._job.name}' from the cluster '{self._job.cluster}' for "
                f"{silent_s:.0f} s: {error}"
            ) from error

    def _say_state(self, status: JobStatus) -> None:
        now = (status.state, status.reason)
        if now == self._last_said:
            return
        self._last_said = now
        line = f"job {self._job.name}: {status.state}"
        if status.state is JobState.RUNNING and status.started_at is not None:
            line += f" since {datetime.fromtimestamp(status.started_at, UTC):%H:%M:%S} UTC"
            if status.nodes:
                line += f" on {', '.join(status.nodes)}"
        if status.exit_code is not None:
            line += f", exit code {status.exit_code}"
        self._say(f"{line}, {status.reason}" if status.reason else line)
        if status.state is JobState.RUNNING and self._running_since is None:
            self._running_since = time.monotonic()

    async def _read_log(self, cluster: Cluster) -> None:
        while chunk := await cluster.read(self._job.log_path, self._offset):
            self._offset += len(chunk)
            self._take_in(self._steps.feed(chunk))

    def _take_in(self, news: Sequence[Step | Problem]) -> None:
        for one in news:
            if isinstance(one, Problem):
                self._warn(f"in the training's log: {one.message}")
                continue
            self._unreported.append(one)
            if one.step_time_s is not None:
                self._recent.append(one.step_time_s)

    def _report_steps(self, *, at_end: bool = False) -> None:
        # A run of minutes is reported at every look, a run of hours about sixty times an hour.
        running_s = 0.0 if self._running_since is None else time.monotonic() - self._running_since
        if not self._unreported:
            return
        if not at_end and time.monotonic() - self._last_report < min(_LONGEST_SILENCE_S, running_s / 60):
            return
        if len(self._unreported) <= _STEPS_ON_LINES_OF_THEIR_OWN:
            for step in self._unreported:
                self._say(self._line(f"step {step.global_step}", step, step.step_time_s))
        else:
            times = [step.step_time_s for step in self._unreported if step.step_time_s is not None]
            first, last = self._unreported[0], self._unreported[-1]
            steps = f"steps {first.global_step}-{last.global_step}"
            self._say(self._line(steps, last, fmean(times) if times else None, mean=True))
        self._unreported.clear()
        self._last_report = time.monotonic()

    def _line(self, steps: str, last: Step, step_time_s: float | None, *, mean: bool = False) -> str:
        remaining = self._run.max_steps - 1 - last.global_step
        parts = [f"{steps} of {self._run.first_step}-{self._run.max_steps - 1}"]
        if step_time_s is not None:
            parts.append(f"{'mean ' if mean else ''}{step_time_s:.4g} s")
        if last.loss is not None:
            parts.append(f"loss {last.loss:.4g}")
        if self._recent and remaining > 0:
            parts.append(f"about {_duration(fmean(self._recent) * remaining)} left")
        return " · ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
