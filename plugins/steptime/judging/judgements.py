"""Judge the stored runs, and store and read these judgements.

Publishing a run judges all runs of its series again, in the same transaction, because runs do not end in the
order in which they were submitted. There are two kinds of judgement: `history` compares a run with the
earlier runs of its series (`judging.detection`), and `drift` describes a slow change of the series, stored
with its newest run.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile
from typing import Any

from steptime.errors import UserError
from steptime.judging.detection import (
    BASELINE_RUNS,
    CONFIRMATION_RUNS,
    FEWEST_RUNS,
    Baseline,
    RunSeconds,
    SeriesState,
    series_states,
)
from steptime.judging.drift import find_drift
from steptime.judging.onset import Onset, Ramp, likely_indexes, likely_ramp
from steptime.judging.placement import Placement
from steptime.judging.record_changes import changes, is_notable
from steptime.judging.run_judgement import EarlierStep, Judgement, rows_to_store, with_job_names
from steptime.judging.series import Series, SeriesRun, all_series, by_series, series_runs
from steptime.measure.column_values import column_values
from steptime.store import efficiency, judgement_queries
from steptime.store.database import StoreConnection, lock_series, read_connection, write_transaction
from steptime.store.run_models import Result, Verdict
from steptime.store.run_queries import Store
from steptime.store.writing import RunWriter

_LATEST_RUNS = 6
"""Newest runs of a series that a comparison uses: one a week, with its confirmation runs, and some more."""


class SeriesRecords:
    """Compares the records (settings, software, nodes) of a series' runs, and reads each only when needed."""

    def __init__(
        self, read: Callable[[str], str], setup_sha256s: Callable[[], Mapping[str, str | None]]
    ) -> None:
        """`read` returns a job's record, `setup_sha256s` a hash of the software and settings of each job."""
        self._read, self._setup_sha256s = cache(read), cache(setup_sha256s)
        self._changes = cache(lambda before, after: tuple(changes(self._read(before), self._read(after))))

    def changes(self, before: str, after: str) -> tuple[str, ...]:
        """Return what changed from one job to a later one, given by name: texts such as `image a → b`."""
        return self._changes(before, after)

    def changed(self, jobs: Sequence[str]) -> set[int]:
        """Return the indexes of jobs whose software or settings (nodes aside) differ from the job before."""
        made = [self._setup_sha256s().get(job) for job in jobs]
        known = (index for index in range(1, len(made)) if None not in made[index - 1 : index + 1])
        return {index for index in known if made[index - 1] != made[index]}

    def notable(self, jobs: Sequence[str]) -> set[int]:
        """Return the indexes of jobs at which something besides nodes and the version of steptime changed."""
        return {
            index
            for index in self.changed(jobs)
            if any(map(is_notable, self.changes(jobs[index - 1], jobs[index])))
        }


def run_writer(store: Store) -> RunWriter:
    """Return a writer of runs that judges the series of a run whenever its published runs change."""
    return RunWriter(store.url, column_values, _judge_its_series)


def store_imported(
    store: Store, imported: Iterable[tuple[Result, Verdict, Mapping[str, Any] | None]]
) -> None:
    """Store imported runs with their verdicts, then judge each series that got new runs. Nobody is notified.

    The third item of each says who accepted the run's level as a baseline, when and why; None if nobody did.
    """
    judged: dict[Series, None] = {}
    writer = RunWriter(store.url, column_values, _judge_nothing)
    for result, verdict, accepted in imported:
        name = result.job.name
        writer.store_measurement(result)
        writer.store_verdict(name, verdict)
        if verdict.valid:
            writer.publish(name)
        if accepted is not None:
            with write_transaction(store.url) as connection:
                judgement_queries.accept(connection, judgement_queries.run_id(connection, name), **accepted)
        judged[Series.from_run(result.run)] = None
    for series in judged:
        if series.is_judged:
            with write_transaction(store.url) as connection:
                judge_series(connection, series)


def _judge_nothing(_connection: StoreConnection, _row: Mapping[str, Any]) -> None:
    """Do nothing: the series is judged later."""


def judge_all(store: Store) -> int:
    """Judge all runs of the store again, and compute scaling efficiencies; return the number of series."""
    efficiency.compute_all(store.url)
    every_series = all_series(store)
    for series, _ in every_series:
        with write_transaction(store.url) as connection:
            judge_series(connection, series)
    return len(every_series)


def judge_series(connection: StoreConnection, series: Series) -> None:
    """Judge all runs of a series within a transaction, and store the judgements that changed."""
    key = series.key
    lock_series(connection, key)
    judged = _judge_rows(
        connection, series, judgement_queries.read_runs(connection, key, series.time_columns)
    )
    of_runs = {judgement.run.row["id"]: rows_to_store(judgement) for judgement in judged}
    judgement_queries.write(connection, key, of_runs)


def accept(store: Store, beginning: str, *, note: str, accepted_by: str, now: float | None = None) -> str:
    """Make a run the start of a new baseline of its series. Returns the job name of the baseline's first run.

    If the run belongs to a suspected or confirmed change, the baseline starts at the first run of that
    change, else at the run itself.

    Args:
        beginning: name of the run's job, a unique beginning of it, or `last`.
        note: why the level is accepted.
        accepted_by: name of the person who accepts it.
        now: Unix time.

    Raises UserError for an unknown or ambiguous name, and for a run that is not judged.
    """
    row = store.run_named(beginning)
    series, job_name = Series.from_row(row), row["job_name"]
    with write_transaction(store.url) as connection:
        lock_series(connection, series.key)
        runs = (
            judgement_queries.read_runs(connection, series.key, series.time_columns)
            if series.is_judged
            else []
        )
        by_name = {judgement.run.job_name: judgement for judgement in _judge_rows(connection, series, runs)}
        if job_name not in by_name:
            raise UserError(
                f"run {job_name} is not judged, so it cannot begin a new baseline: name a valid, judged run."
            )
        began = {judgement.began_with for judgement in by_name.values()}
        first = by_name[job_name if job_name in began else by_name[job_name].began_with].run
        accepted_at = time.time() if now is None else now
        judgement_queries.accept(
            connection, first.row["id"], note=note, accepted_by=accepted_by, accepted_at=accepted_at
        )
        judge_series(connection, series)
    return first.job_name


def series_judgements(store: Store, series: Series, *, limit: int | None = None) -> list[Judgement]:
    """Return the judgements of a series' newest runs, at most `limit`, newest first.

    Runs that have no time to judge are left out, but count.
    """
    rows = judgement_queries.rows_with_judgements(store, series.key, limit=limit)
    return _read_judgements(store, series, rows, hidden_series(store))


def newest_judgements(store: Store) -> dict[Series, tuple[str, Judgement | None]]:
    """Return the job of each judged series' newest run, and its judgement; None if it has no time to judge.

    Newest first, only of series that ran in the year before the newest run: it takes no longer each year.
    """
    rows = judgement_queries.latest_rows_with_judgements(store, None, 1)
    jobs = {Series.from_row(row): str(row["job_name"]) for row in rows}
    latest = _latest_of_each(store, rows)
    return {series: (jobs[series], next(iter(judged), None)) for series, judged in latest.items()}


def read_judgement(store: Store, row: Mapping[str, Any]) -> Judgement | None:
    """Return the judgement of a stored run.

    None if it is rejected, has no time, or its mode is not judged.
    """
    series = Series.from_row(row)
    if not series.is_judged:
        return None
    rows = judgement_queries.rows_with_judgements(store, {"job_name": row["job_name"]}, limit=1)
    return next(iter(_read_judgements(store, series, rows, hidden_series(store))), None)


def judgements_of_runs(store: Store, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Series, Judgement]]:
    """Yield the series and the judgement of each of these runs (rows of the store) that is judged."""
    stored = judgement_queries.by_job(store, names=[row["job_name"] for row in rows])
    judged = by_series({**row, **stored[row["job_name"]]} for row in rows if row["job_name"] in stored)
    hidden = hidden_series(store)
    for series, runs in judged.items():
        yield from ((series, judgement) for judgement in _read_judgements(store, series, runs, hidden))


def judgements_since(store: Store, since: float) -> dict[Series, list[Judgement]]:
    """Return, by series, the judgements of its runs submitted at or after `since` (Unix time), newest first.

    At most the six newest runs of a series are included.
    """
    return _latest_of_each(store, judgement_queries.latest_rows_with_judgements(store, since, _LATEST_RUNS))


def select_judgements(store: Store, selected: Mapping[str, Any]) -> dict[Series, list[Judgement]]:
    """Return, by series, the judgements of its six newest runs with these column values, newest first."""
    return _latest_of_each(store, judgement_queries.rows_with_judgements(store, selected))


def _latest_of_each(store: Store, rows: Iterable[Mapping[str, Any]]) -> dict[Series, list[Judgement]]:
    """Return the newest judgements of each series; `rows` are ordered newest first."""
    hidden = hidden_series(store)
    return {
        series: _read_judgements(store, series, runs[:_LATEST_RUNS], hidden)
        for series, runs in by_series(rows).items()
    }


def hidden_series(store: Store) -> set[Series]:
    """Return the series with runs that the store's user may not read."""
    return {Series.from_row(row) for row in judgement_queries.hidden(store)}


def _read_judgements(
    store: Store, series: Series, rows: Sequence[Mapping[str, Any]], hidden: Collection[Series]
) -> list[Judgement]:
    """Return the judgement of each of a series' runs, newest first.

    `rows` are the runs, newest first, with the columns of their stored judgements. They are judged now if one
    has no stored judgement yet, or if the store's user may not read all runs of the series: stored judgements
    are based on all of them.
    """
    runs = series_runs(rows)
    if all(run.row["series_state"] for run in runs) and series not in hidden:
        return [Judgement.from_row(run) for run in runs]
    names = {run.job_name for run in runs}
    return [judgement for judgement in reversed(judge_now(store, series)) if judgement.run.job_name in names]


def judge_now(store: Store, series: Series) -> list[Judgement]:
    """Judge a series by only the runs that the store's user may read; return the judgements, oldest first."""
    rows = store.results(**series.key)[::-1]
    with read_connection(store.url) as connection:
        return _judge_rows(connection, series, rows)


def _judge_rows(
    connection: StoreConnection, series: Series, rows: Sequence[Mapping[str, Any]]
) -> list[Judgement]:
    """Judge stored runs of a series, oldest first, with the baselines that people have accepted."""
    begin = judgement_queries.accepted(connection, series.key)
    records = SeriesRecords(
        partial(judgement_queries.record, connection),
        partial(judgement_queries.setup_sha256s, connection, series.key),
    )
    return judge_runs(series_runs(rows), records, begin)


def judge_runs(
    runs: Sequence[SeriesRun], records: SeriesRecords, begin_anew: Collection[str] = ()
) -> list[Judgement]:
    """Judge runs of one series, oldest first, each by those before it.

    `begin_anew` has the job names of runs at which the history starts again.
    """
    seconds = [RunSeconds.of(run.job_name, run.seconds) for run in runs]
    indexes = {index for index, run in enumerate(runs) if run.job_name in begin_anew}
    judged: list[Judgement] = []
    for index, (run, state) in enumerate(zip(runs, series_states(seconds, indexes), strict=True)):
        reported = state.newest_step
        judgement = Judgement(
            run,
            reported,
            placement=Placement.from_series_state(runs, index, reported.suspicion or reported),
            earlier=() if reported is state else _earlier_steps(judged[index - len(reported.since)]),
        )
        judged.append(_with_onset(judgement, runs, records))
    # Runs of a slowdown that has just ended look like a small one that is still there.
    latest = [one.series_state for one in judged[-FEWEST_RUNS:]]
    if judged and not any(one.direction == "slower" and one.state == "confirmed" for one in latest):
        judged[-1] = _with_slow_change(judged[-1], runs[max(indexes, default=0) :], records)
    return judged


def _earlier_steps(before: Judgement) -> tuple[EarlierStep, ...]:
    """Return the slowdowns up to this judgement, of the last run before a further one was suspected."""
    began = before.onset.at if before.onset else before.run.row["submitted_at"]
    return (*before.earlier, EarlierStep(before.series_state.against.mean, began))


def _with_onset(judgement: Judgement, runs: Sequence[SeriesRun], records: SeriesRecords) -> Judgement:
    """Add when a suspected or confirmed slowdown or speed-up began, and what changed then.

    A suspected one began with the run that raised the suspicion. The beginning of a confirmed one is searched
    for among the runs from the second of the baseline to the first after the suspicion. If they drift rather
    than jump, no change is the cause. Newest runs that are nearer to the baseline again say nothing about it.
    """
    series_state = judgement.series_state
    if series_state.state not in ("suspected", "confirmed") or series_state.direction is None:
        return judgement
    names = [run.job_name for run in runs]
    first = names.index(with_job_names(series_state.since)[0][0])
    indexes, ramp = (first, first, first), None
    if series_state.state == "confirmed":
        begin = names.index(with_job_names(series_state.against.runs)[0][0])
        end = min(names.index(judgement.run.job_name), first + BASELINE_RUNS) + 1
        end -= _back_at_usual(series_state, [run.seconds for run in runs[first + 1 : end]])
        seconds, changed = [run.seconds for run in runs[begin:end]], records.notable(names[begin:end])
        times = [run.row["submitted_at"] for run in runs[begin:end]]
        ramp = likely_ramp(seconds, times, series_state.direction, changed)
        if ramp is not None and ramp.is_clear:
            indexes = (begin + ramp.at, begin + ramp.earliest, begin + ramp.latest)
            return replace(judgement, onset=Onset.of(runs, indexes, weekly=ramp.weekly))
        found = likely_indexes(
            seconds, range(1, first + CONFIRMATION_RUNS - begin), series_state.direction, changed
        )
        indexes = (begin + found[0], begin + found[1], begin + found[2])
    return _began_at(judgement, runs, indexes, records, ramp)


def _back_at_usual(series_state: SeriesState, since: Sequence[float]) -> int:
    """Return how many of the newest runs are nearer to the baseline than to the confirmed level.

    `since` are the runs after the one that raised the suspicion; the first ones confirmed it.
    """
    against = series_state.against
    level = against.change(since[:CONFIRMATION_RUNS])
    later = reversed(since[CONFIRMATION_RUNS:])
    return sum(1 for _ in takewhile(lambda run: against.is_nearer(run, level), later))


def _began_at(
    judgement: Judgement,
    runs: Sequence[SeriesRun],
    indexes: tuple[int, int, int],
    records: SeriesRecords,
    ramp: Ramp | None,
) -> Judgement:
    """Add that the level began with one of these runs (likeliest, earliest, latest), and what changed.

    `ramp` is a drift that explains the runs about as well, if there is one.
    """
    names = [run.job_name for run in runs]
    at, earliest, latest = indexes
    within = {earliest - 1 + index for index in records.notable(names[earliest - 1 : latest + 1])} - {at}
    nearby = [
        change
        for index in sorted(within)
        for change in records.changes(names[index - 1], names[index])
        if is_notable(change)
    ]
    return replace(
        judgement,
        onset=Onset.of(runs, indexes, dict.fromkeys(nearby), perhaps_weekly=ramp.weekly if ramp else None),
        changes=records.changes(names[at - 1], names[at]),
    )


def _with_slow_change(judgement: Judgement, runs: Sequence[SeriesRun], records: SeriesRecords) -> Judgement:
    """Add the slow change that ends with the last of these runs: a drift, or a step, which is confirmed.

    None of a run that is suspected as slower: the confirmation runs decide first what that one is.
    """
    if (judgement.series_state.state, judgement.series_state.direction) == ("suspected", "slower"):
        return judgement
    names = [run.job_name for run in runs]
    seconds = [(run.job_name, run.seconds) for run in runs]
    times = [run.row["submitted_at"] for run in runs]
    drift = find_drift(seconds, [names[index] for index in records.changed(names)], times)
    if drift is not None and drift.step is not None:  # reading all records is slow
        drift = find_drift(seconds, [names[index] for index in records.notable(names)], times) or drift
    if drift is None:
        return judgement
    drift = replace(drift, began_at=runs[names.index(drift.since)].row["submitted_at"])
    if drift.step is None:
        return replace(judgement, drift=drift)
    at, earliest, latest = (len(runs) + index for index in drift.step)
    before, after = (
        tuple(RunSeconds.of(run.job_name, run.seconds) for run in part) for part in (runs[:at], runs[at:])
    )
    against = Baseline().with_runs(*before)
    series_state = SeriesState("confirmed", "slower", after, against, judgement.series_state.baseline, after)
    step = replace(judgement, series_state=series_state, drift=drift, placement=None)
    searched = len(runs) - sum(level.runs for level in drift.levels)
    changed = {index - searched for index in records.notable(names[searched:])}
    ramp = likely_ramp([run.seconds for run in runs[searched:]], times[searched:], "slower", changed)
    return _began_at(step, runs, (at, earliest, latest), records, ramp)


def _judge_its_series(connection: StoreConnection, row: Mapping[str, Any]) -> None:
    """Judge the series of a run whose published state changed."""
    series = Series.from_row(row)
    if series.is_judged:
        judge_series(connection, series)
