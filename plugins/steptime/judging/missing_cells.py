"""What a comparison lacks: planned cells that failed or did not run, and cells that are too noisy to judge.

A cell is one configuration. The planned cells of a sweep are those of its file. If the file plans none of
the cells that ran under the sweep's name, those that ran in the four weeks before count as planned. A sweep
that did not run is included if it is overdue. Outside of sweeps, the planned cells are those that ran.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from types import MappingProxyType
from typing import Any

from steptime.durations import WEEK_S
from steptime.errors import UserError
from steptime.judging.detection import LEAST_CHANGE, SeriesState
from steptime.judging.series import Series, by_series, cell_names, recent_seconds
from steptime.recipes.models import Run
from steptime.recipes.sweep_planning import expand_cell, plan_sweep
from steptime.recipes.sweeps import load_sweep
from steptime.store.columns import Row
from steptime.store.run_queries import Store
from steptime.wording import counted, date, first_names

LOOK_BACK_S = 4 * WEEK_S
"""How long before a comparison the runs of a sweep are used to learn its cells."""
_NEWEST_RUNS = 200
"""Newest runs of a series among which those are looked for that failed since the newest valid one."""
LARGEST_UNSEEN_CHANGE = 0.05
"""A cell is too noisy if a single run slower by this much is noticed in fewer than 4 of 5 cases."""
_OVERDUE = 1.25
"""A sweep is overdue after this times the longest interval between its runs."""
LEVEL_RUNS = 52
"""Newest runs of a cell that are searched for two alternating levels."""
_FEWEST_RUNS = 12
_FEWEST_OF_A_LEVEL = 3
_FEWEST_ALTERNATIONS = 4
"""Fewest changes between the two levels: a step has one, a slowdown that was fixed has two."""
_UNUSUAL_DEVIATION = 1.5
"""Least relative deviation of an alternating cell, as a multiple of the median over all cells."""
_NAMED = 4
"""Most cells with one cause that the line names."""
_ORDINALS = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class MissingCell:
    """A planned series of runs (cell) without a valid result, or whose newest attempts failed."""

    series: Series
    cause: str
    """Why it has no result, without the cell's name."""
    attempts: int
    """Number of failed attempts; 0 if it did not run."""
    last_job: str | None
    """Job name of its newest run, valid or not; None if it never ran, or if its newest job left no run."""
    last_ran: float | None
    """Unix time at which its newest run was submitted, or its newest job created; None if it never ran."""
    weeks: int = 1
    """In how many weeks in a row it has failed, the newest included; more than four are not counted."""

    @property
    def sentence(self) -> str:
        """The state in words: failed and why, or did not run, why, and when it last ran."""
        if not self.attempts:
            last = "it has never run" if self.last_ran is None else f"it ran last on {date(self.last_ran)}"
            return f"did not run: {self.cause}; {last}"
        times = "" if self.attempts == 1 else f" {self.attempts} times, the newest"
        return f"failed{times}: {self.cause}{self._for_weeks}"

    @property
    def _for_weeks(self) -> str:
        if self.weeks == 1:
            return ""
        if self.weeks > len(_ORDINALS):
            return "; it has failed for more than four weeks"
        return f"; it fails for the {_ORDINALS[self.weeks - 1]} week"


@dataclass(frozen=True)
class Completeness:
    """How many of the planned series of runs (cells) were judged, failed or did not run, and which."""

    judged: int
    """Number of judged cells, without those of insufficient history."""
    insufficient_history: int = 0
    without_a_number: int = 0
    """Number of cells whose valid runs have no time to judge."""
    failed: tuple[MissingCell, ...] = ()
    """Cells that ran without a valid result."""
    not_run: tuple[MissingCell, ...] = ()
    failed_since: tuple[MissingCell, ...] = ()
    """Judged cells whose newest attempts failed."""
    too_noisy: tuple[Series, ...] = ()
    """Judged cells whose minimum detectable change is above `LARGEST_UNSEEN_CHANGE`."""
    alternating: tuple[Series, ...] = ()
    """Judged cells that alternate between two levels; they are not among those too noisy."""
    names: Mapping[Series, str] = field(default_factory=dict)
    """The name of each planned cell: its label, and what tells apart cells that share one."""

    @property
    def planned(self) -> int:
        """Number of planned series of runs (cells)."""
        known = self.judged + self.insufficient_history + self.without_a_number
        return known + len(self.failed) + len(self.not_run)

    @property
    def line(self) -> str:
        """Counts of cells in one line: planned, judged, failed (and why), not run, too noisy, alternating.

        The run times of an alternating cell jump back and forth between two levels.
        """
        return self._line(self._with_causes)

    @property
    def counts(self) -> str:
        """The same counts as in `line`, without names and causes of cells that failed or did not run."""
        return self._line(lambda cells, what: f"{len(cells)} {what}")

    def _line(self, describe: Callable[[Sequence[MissingCell], str], str]) -> str:
        parts = [f"{self.judged} judged"]
        if self.insufficient_history:
            parts.append(f"{self.insufficient_history} with insufficient history")
        if self.without_a_number:
            parts.append(f"{self.without_a_number} without a time to judge")
        parts += [describe(self.failed, "failed"), describe(self.not_run, "not run")]
        line = f"{counted(self.planned, 'cell')} planned: {', '.join(parts)}"
        if self.failed_since:
            line += f"; {describe(self.failed_since, 'shown by an earlier run, as the newest failed')}"
        percent = f"{100 * LARGEST_UNSEEN_CHANGE:g} %"
        for cells, what in (
            (self.too_noisy, f"too noisy to detect {percent}"),
            (self.alternating, "alternating between two levels"),
        ):
            if cells:
                line += f"; {len(cells)} {what} ({self._named(cells)})"
        return line

    @property
    def missing(self) -> list[dict[str, Any]]:
        """Planned cells that failed or did not run, and judged cells whose newest run failed, as JSON."""
        return [
            {
                "cell": self._name(cell.series),
                "sentence": cell.sentence,
                "attempts": cell.attempts,
                "job_name": cell.last_job,
            }
            for cell in (*self.failed, *self.not_run, *self.failed_since)
        ]

    @property
    def remarks(self) -> list[str]:
        """A sentence for each cell in `missing`, which begins with its name."""
        return [f"{cell['cell']} {cell['sentence']}" for cell in self.missing]

    @property
    def as_json(self) -> dict[str, Any]:
        """The counts, and the cells that are missing, too noisy, or alternate between two levels, as JSON."""
        return {
            "line": self.line,
            "counts": self.counts,
            "planned": self.planned,
            "judged": self.judged,
            "insufficient_history": self.insufficient_history,
            "without_a_number": self.without_a_number,
            "failed": len(self.failed),
            "not_run": len(self.not_run),
            "missing": self.missing,
            "too_noisy": [self._name(series) for series in self.too_noisy],
            "alternating": [self._name(series) for series in self.alternating],
        }

    def _with_causes(self, cells: Sequence[MissingCell], what: str) -> str:
        by_cause: dict[str, list[Series]] = defaultdict(list)
        for cell in cells:
            by_cause[cell.cause].append(cell.series)
        why = "; ".join(f"{self._named(series)}: {cause}" for cause, series in by_cause.items())
        return f"{len(cells)} {what}" + (f" ({why})" if why else "")

    def _named(self, cells: Sequence[Series]) -> str:
        return first_names([self._name(series) for series in cells], _NAMED)

    def _name(self, series: Series) -> str:
        return self.names.get(series, series.label)


def completeness(
    store: Store,
    judged: Mapping[Series, SeriesState],
    ran: Sequence[Row],
    before: Sequence[Row] = (),
    *,
    planned: Iterable[Series] = (),
    lost: Sequence[Row] = (),
    only: Mapping[str, Any] = MappingProxyType({}),
    recent: Mapping[Series, Sequence[float]] | None = None,
    now: float | None = None,
) -> Completeness:
    """Return how many series of runs (cells) a comparison should have, which of them are missing, and why.

    Args:
        store: where causes of failures are read.
        judged: the state of each series that has a run to judge.
        ran: all runs of the comparison, rejected ones included.
        before: runs before the comparison; they show which series a sweep has, and whether the sweep is
            overdue.
        planned: further series that should have run; those in `ran`, and those of the sweeps in `ran`, count
            as planned anyway.
        lost: jobs of the comparison that left no run, from `Store.lost_jobs`; cancelled ones do not count.
        only: values by column; only series with these values are counted.
        recent: the seconds of the newest `LEVEL_RUNS` runs of each series; by default they are read.
        now: Unix time.
    """
    attempts, earlier = by_series(ran), by_series(before)
    planned = (series for series in planned if series.is_judged)
    jobs = _by_series(lost)
    known = (*attempts, *_cells_of_sweeps(ran, before, now), *planned, *judged, *jobs)
    cells = dict.fromkeys(series for series in known if series.has(only))
    failed, failed_since, not_run, without_log, without_a_number = [], [], [], [], 0
    for series in cells:
        rejected = _newest_rejected(attempts.get(series, ()))
        if rejected and series in judged:
            failed_since.append((series, rejected))
        elif rejected and len(rejected) == len(attempts[series]):
            failed.append((series, rejected))
        elif series not in attempts and series not in judged and series in jobs:
            without_log.append((series, jobs[series]))
        elif series not in attempts and series not in judged:
            not_run.append(_not_run(series, ran, earlier.get(series, ())))
        elif series not in judged:
            without_a_number += 1
    causes = rejection_causes(store, [rows[0] for _, rows in (*failed, *failed_since)])
    times = [row["submitted_at"] for _, rows in failed for row in rows]
    times += [job["created_at"] for _, rows in without_log for job in rows]
    lost_before = _lost_jobs(store, min(times) - LOOK_BACK_S) if times else {}
    insufficient = sum(state.state == "insufficient history" for state in judged.values())
    alternating = _alternating(recent_seconds(store, LEVEL_RUNS) if recent is None else recent, judged)
    return Completeness(
        judged=len(judged) - insufficient,
        insufficient_history=insufficient,
        without_a_number=without_a_number,
        failed=(
            *(
                _failed(series, rows, causes, earlier.get(series, ()), lost_before.get(series, ()))
                for series, rows in failed
            ),
            *(
                _lost(series, rows, earlier.get(series, ()), lost_before.get(series, ()))
                for series, rows in without_log
            ),
        ),
        not_run=tuple(not_run),
        failed_since=tuple(_failed(series, rows, causes) for series, rows in failed_since),
        too_noisy=tuple(
            series for series, state in judged.items() if _too_noisy(state) and series not in alternating
        ),
        alternating=tuple(alternating),
        names=dict(zip(cells, cell_names([series.key for series in cells]), strict=True)),
    )


def find_missing(store: Store, series: Series, now: float | None = None) -> MissingCell | None:
    """Return why a series lacks a valid run: its newest attempts failed, or it did not run in the last week.

    If no attempt failed, None if it ran in the last week, never ran, or is planned by no sweep.
    """
    now = time.time() if now is None else now
    since = now - WEEK_S
    rows = store.results(include_rejected=True, limit=_NEWEST_RUNS, **series.key)
    rejected = _newest_rejected(rows)
    sweep = rows[0]["sweep"] if rows else None
    is_late = sweep is not None and rows[0]["submitted_at"] < since
    if not rejected and not is_late:
        return None
    begin = min(since, rejected[0]["submitted_at"]) if rejected else since
    jobs = list_lost_jobs(store, series, begin - LOOK_BACK_S)
    newest = [job for job in jobs if job["created_at"] >= since]
    if rejected and (rejected[0]["submitted_at"] >= since or not newest):
        return _failed(series, rejected, rejection_causes(store, rejected[:1]), rows, jobs)
    if not is_late:
        return None
    of_sweep = store.results(include_rejected=True, sweep=sweep, since=since - LOOK_BACK_S)
    ran = [row for row in of_sweep if row["submitted_at"] >= since]
    before = [row for row in of_sweep if row["submitted_at"] < since]
    if series not in _cells_of_sweeps(ran, before, now):
        return None
    return _lost(series, newest, rows, jobs) if newest else _not_run(series, ran, rows)


def list_lost_jobs(store: Store, series: Series, since: float | None = None) -> list[Row]:
    """Return the failed jobs of a series that left no run in the store, newest first.

    `since` is the Unix time from which on jobs count; None for all.
    """
    return _lost_jobs(store, since).get(series, [])


def _lost_jobs(store: Store, since: float | None) -> dict[Series, list[Row]]:
    return _by_series(store.lost_jobs(since=since))


def _by_series(lost: Iterable[Row]) -> dict[Series, list[Row]]:
    """Return jobs that left no run by series, newest first; without cancelled ones."""
    jobs: dict[Series, list[Row]] = defaultdict(list)
    for job in lost:
        series = Series.from_run(Run.model_validate(job["run"]))
        if series.is_judged and job["state"] != "cancelled":
            jobs[series].append(job)
    return dict(jobs)


def find_cause(store: Store, row: Row) -> str | None:
    """Return in one line why a run was rejected; None if it was not.

    The cause is the first failure in its log, else the first check that failed.
    """
    if row["state"] != "rejected":
        return None
    return rejection_causes(store, [row]).get(row["job_name"]) or row["reason"]


def two_levels(seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the means (seconds) of two levels that the run times alternate between; None if they do not.

    The sorted times are split where the two parts deviate least from their means. The levels must differ by
    at least `LEAST_CHANGE`, and by so many standard deviations that only 1 % of series with a single level
    are mistaken for alternating ones.
    """
    if len(seconds) < _FEWEST_RUNS:
        return None
    ordered = sorted(seconds)
    indexes = range(_FEWEST_OF_A_LEVEL, len(ordered) - _FEWEST_OF_A_LEVEL + 1)
    squares, index = min((_squares(ordered[:split]) + _squares(ordered[split:]), split) for split in indexes)
    low, high = statistics.fmean(ordered[:index]), statistics.fmean(ordered[index:])
    deviation = (squares / (len(ordered) - 2)) ** 0.5
    if high - low < max(low * LEAST_CHANGE, (3 + 28 / len(ordered)) * deviation):
        return None
    is_high = [time_s >= ordered[index] for time_s in seconds]
    alternations = sum(before != after for before, after in pairwise(is_high))
    return (low, high) if alternations >= _FEWEST_ALTERNATIONS else None


def _squares(seconds: Sequence[float]) -> float:
    mean = statistics.fmean(seconds)
    return sum((time_s - mean) ** 2 for time_s in seconds)


def _alternating(recent: Mapping[Series, Sequence[float]], series: Collection[Series]) -> list[Series]:
    """Return the cells that vary more than others because they alternate between two levels."""
    times = {
        cell: seconds for cell, seconds in recent.items() if cell in series and len(seconds) >= _FEWEST_RUNS
    }
    deviations = {
        cell: math.sqrt(_squares(seconds) / (len(seconds) - 1)) / statistics.fmean(seconds)
        for cell, seconds in times.items()
    }
    usual = statistics.median(deviations.values()) if deviations else 0.0
    return [
        cell
        for cell in deviations
        if deviations[cell] > _UNUSUAL_DEVIATION * usual and two_levels(times[cell]) is not None
    ]


def _too_noisy(series_state: SeriesState) -> bool:
    against = series_state.against
    return against.suffices and against.minimum_detectable_change > LARGEST_UNSEEN_CHANGE


def _cells_of_sweeps(ran: Iterable[Row], before: Iterable[Row], now: float | None) -> list[Series]:
    """Return the cells of sweeps that ran or are overdue, from their files, else from their earlier runs."""
    of_sweep: dict[str, list[Row]] = defaultdict(list)
    for row in (*ran, *before):
        if row["sweep"] is not None:
            of_sweep[row["sweep"]].append(row)
    counts = {row["sweep"] for row in ran}
    cells: dict[Series, None] = {}
    for sweep, rows in of_sweep.items():
        if sweep in counts or _is_overdue(rows, time.time() if now is None else now):
            that_ran, of_file = by_series(rows), _cells_of_file(sweep)
            cells |= dict.fromkeys(that_ran if that_ran.keys().isdisjoint(of_file) else of_file)
    return list(cells)


def _is_overdue(rows: Iterable[Row], now: float) -> bool:
    """Return whether a sweep is due again, by its earlier intervals; one that ran once is due weekly."""
    began: dict[tuple[str, str], float] = {}
    for row in rows:
        dag_run = (row["dag_id"], row["dag_run_id"])
        began[dag_run] = min(row["submitted_at"], began.get(dag_run, now))
    starts = sorted(began.values())
    longest = max((after - start for start, after in pairwise(starts)), default=WEEK_S)
    return now - starts[-1] > _OVERDUE * longest


def _cells_of_file(sweep: str) -> list[Series]:
    """Return the cells that a sweep's file plans today; none if the file is missing or has a mistake."""
    try:
        cells = plan_sweep(load_sweep(sweep)).cells
    except UserError:
        return []
    planned = (Series.from_run(run) for cell in cells for run in expand_cell(cell))
    return [series for series in planned if series.is_judged]


def _newest_rejected(rows: Iterable[Row]) -> list[Row]:
    """Return the runs rejected since the newest valid one, newest first."""
    rejected: list[Row] = []
    for row in sorted(rows, key=lambda row: row["submitted_at"], reverse=True):
        if row["state"] == "valid":
            break
        if row["state"] == "rejected":
            rejected.append(row)
    return rejected


def _failed(
    series: Series,
    rejected: Sequence[Row],
    causes: Mapping[str, str],
    earlier: Sequence[Row] = (),
    lost: Sequence[Row] = (),
) -> MissingCell:
    """Describe a cell whose newest runs were rejected; `earlier` runs and `lost` jobs tell since when."""
    newest = rejected[0]
    cause = causes.get(newest["job_name"]) or newest["reason"] or "no reason is recorded"
    at = newest["submitted_at"]
    weeks = _weeks_failed(at, (*rejected, *earlier), lost)
    return MissingCell(series, cause, len(rejected), newest["job_name"], at, weeks)


def _lost(series: Series, jobs: Sequence[Row], earlier: Sequence[Row], lost: Sequence[Row]) -> MissingCell:
    """Describe a cell whose newest jobs left no run; `earlier` runs and `lost` jobs tell since when."""
    newest = jobs[0]
    at, cause = newest["created_at"], newest["reason"] or newest["state"]
    return MissingCell(series, cause, len(jobs), None, at, _weeks_failed(at, earlier, lost))


def _weeks_failed(at: float, rows: Iterable[Row], lost: Iterable[Row]) -> int:
    """Return in how many weeks in a row, up to `at` (Unix time), runs were rejected or jobs left no run."""
    rows = list(rows)
    valid = max((row["submitted_at"] for row in rows if row["state"] == "valid"), default=-math.inf)
    failed = [row["submitted_at"] for row in _newest_rejected(rows)]
    failed += [job["created_at"] for job in lost if valid < job["created_at"] <= at]
    ages = {0, *(round((at - time_s) / WEEK_S) for time_s in failed)}
    return next(week for week in count() if week not in ages)


def _not_run(series: Series, ran: Iterable[Row], earlier: Sequence[Row]) -> MissingCell:
    newest = max(earlier, key=lambda row: row["submitted_at"]) if earlier else None
    sweep = newest and newest["sweep"]
    if sweep is None:
        cause = "nothing of it has a result"
    elif any(row["sweep"] == sweep for row in ran):
        cause = f"sweep {sweep} has no result of it"
    else:
        cause = f"sweep {sweep} did not run"
    last = (newest["job_name"], newest["submitted_at"]) if newest else (None, None)
    return MissingCell(series, cause, 0, *last)


def rejection_causes(store: Store, rows: Sequence[Row]) -> dict[str, str]:
    """Return by job name why runs were rejected: first failure in the log, else first failed check."""
    names = [row["job_name"] for row in rows]
    causes: dict[str, str] = {}
    for job_name, log in store.parsed_logs(names).items():
        fatal = [problem["message"] for problem in log.get("problems", ()) if problem["fatal"]]
        causes |= {job_name: fatal[0].rstrip(".")} if fatal else {}
    for job_name, messages in store.failed_checks(names).items():
        causes.setdefault(job_name, messages[0].rstrip("."))
    return causes
