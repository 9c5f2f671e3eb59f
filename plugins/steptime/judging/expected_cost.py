"""Estimate what runs will cost, from the earlier runs of their series, or from the published step time."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from steptime.errors import SystemFailure
from steptime.judging.series import Series
from steptime.recipes.models import Run
from steptime.recipes.notation import format_hours, format_time_limit
from steptime.recipes.published import published_performance
from steptime.store.run_queries import RunTimes, Store

_LATEST_RUNS = 12
"""Newest runs of a series that the estimate uses."""


class Source(StrEnum):
    """What the expected cost of a run is computed from: its series' history, or the published step time."""

    HISTORY = "history"
    PUBLICATION = "publication"
    NONE = "none"


@dataclass(frozen=True)
class Expected:
    """The expected cost of one run."""

    source: Source
    seconds: float | None = None
    """Duration of the job, or only of its steps if estimated by a publication; None without an estimate."""
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Cost:
    """The expected cost of several runs."""

    each: tuple[Expected, ...]
    problem: str | None = None
    """Why the history could not be read; None if it was."""

    @property
    def gpu_hours(self) -> float | None:
        """Expected GPU-hours of all runs that have an estimate; None if no run has one."""
        known = [expected.gpu_hours for expected in self.each if expected.gpu_hours is not None]
        return sum(known) if known else None

    @property
    def sentence(self) -> str:
        """A sentence with the GPU-hours, the longest job's duration, and how many runs each source covers."""
        hours, unread = self.gpu_hours, f" ({self.problem})" if self.problem else ""
        if hours is None:
            return f"no history and no publication: upper bound only{unread}"
        longest = format_time_limit(round(max(expected.seconds or 0 for expected in self.each)))
        counts = Counter(expected.source for expected in self.each)
        of = {
            Source.HISTORY: "by the history of their series",
            Source.PUBLICATION: "by the publication, start and end of the job apart",
            Source.NONE: "left out: no history and no publication, upper bound only",
        }
        origins = "; ".join(f"{counts[source]} {of[source]}" for source in Source if counts[source])
        return f"expected {format_hours(hours)} GPU-hours, the longest job {longest} ({origins}){unread}"


def expected_cost(runs: Iterable[Run], store: Store | None = None) -> Cost:
    """Estimate what runs will cost. A failure to read the store is returned as `problem`, not raised.

    Raises UserError if the store cannot be used at all: its address is invalid, or another version made it.
    """
    by_configuration: dict[tuple[Series, int, int], Expected] = {}
    store, problem, each = store or Store(), None, []
    for run in runs:
        # A run of a trial, which is not judged, costs what those of the same configuration cost.
        series = Series.from_run(run.model_copy(update={"trial": None}))
        alike = (series, run.max_steps - run.first_step, run.time_limit_s)  # repeats are
        if alike not in by_configuration:
            past: Sequence[RunTimes] = ()
            try:
                if problem is None and store.exists():
                    past = store.run_times(series.key, _LATEST_RUNS)
            except SystemFailure as error:
                problem = f"the history cannot be read: {error}"
            by_configuration[alike] = _expected(run, past)
        each.append(by_configuration[alike])
    return Cost(tuple(each), problem)


def _expected(run: Run, past: Sequence[RunTimes]) -> Expected:
    steps = run.max_steps - run.first_step
    # The published step time is that of the published settings.
    published = None if run.tuning else published_performance(run.recipe)
    if past:
        around = statistics.median(times.job_s - times.step_s * times.steps for times in past)
        seconds = max(around, 0) + statistics.median(times.step_s for times in past) * steps
        source = Source.HISTORY
    elif published is not None and published.step_time is not None:
        seconds, source = published.step_time * steps, Source.PUBLICATION
    else:
        return Expected(Source.NONE)
    # The cluster ends a job at its limit.
    seconds = min(seconds, run.time_limit_s)
    return Expected(source, seconds, run.recipe.gpus * seconds / 3600)
