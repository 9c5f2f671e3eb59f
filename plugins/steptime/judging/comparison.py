"""Compare runs with their history, for all cells of a week, sweep, DAG run or plan; or compare two runs.

A cell is one configuration, and its runs form a series (`judging.series`); the newest run in the comparison
decides the cell's verdict.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from steptime.errors import UserError, one_line
from steptime.judging.common_causes import FEWEST_CELLS_TOGETHER, causes
from steptime.judging.detection import (
    CONFIRMATION_RUNS,
    Baseline,
    SeriesState,
)
from steptime.judging.findings import Comparison, Finding, rank_findings
from steptime.judging.incidents import NEW_LEVEL, incidents, silenced_cells
from steptime.judging.judgements import (
    judgements_since,
    read_judgement,
    select_judgements,
    series_judgements,
)
from steptime.judging.missing_cells import LEVEL_RUNS, LOOK_BACK_S, completeness
from steptime.judging.node_effects import NodeRun, as_evidence, node_runs
from steptime.judging.node_evidence import read_node_runs
from steptime.judging.record_changes import changes, has_changed_to, is_notable
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun, recent_seconds, series_runs
from steptime.judging.verdicts import adjust_q_values, read_q_values
from steptime.measure.goodput import compute_goodput
from steptime.measure.repeating import repeat_command_of_record
from steptime.measure.report import describe_cost, sum_up
from steptime.recipes.models import Run
from steptime.recipes.sweep_planning import expand_cell, plan_sweep
from steptime.recipes.sweeps import load_sweep
from steptime.store.columns import series_columns
from steptime.store.database import one_read
from steptime.store.run_queries import Store
from steptime.store.run_records import read_setup

_ALL: Mapping[str, Any] = MappingProxyType({})
_COUNTED = tuple(
    dict.fromkeys(
        (
            *series_columns(),
            *("job_name", "submitted_at", "state", "reason", "sweep", "dag_id", "dag_run_id"),
            *("queue_wait_s", "gpu_hours", "in_steps_s", "first_steps_s", "in_checkpoints_s"),
        )
    )
)
"""The columns that tell what is missing and what the runs cost."""
_NONE: Mapping[Series, float] = MappingProxyType({})


def compare_since(store: Store, since: float, only: Mapping[str, Any] = _ALL) -> Comparison:
    """Return whether each series with a run submitted at or after `since` (Unix time) got slower or faster.

    `only` (values by column) selects the series to return. Verdicts depend on neither: see
    `judging.verdicts`.
    """
    with one_read(store.url):
        return _compare_since(store, since, only)


def _compare_since(store: Store, since: float, only: Mapping[str, Any]) -> Comparison:
    rows = store.results(include_rejected=True, since=since - LOOK_BACK_S, only=_COUNTED)
    ran = [row for row in rows if row["submitted_at"] >= since]
    lost = store.lost_jobs(since=since)
    comparison = _with_totals(
        store,
        compare_stored(store, judgements_since(store, since)),
        ran,
        rows[len(ran) :],
        lost=lost,
        only=only,
    )
    comparison = replace(comparison, new_levels=_new_levels(store, since, only))
    length = time.time() - since
    if length > LOOK_BACK_S:
        return comparison
    earlier = [row for row in rows[len(ran) :] if row["submitted_at"] >= since - length]
    return replace(comparison, cost=describe_cost(_selected(ran, only), _selected(earlier, only)))


def _new_levels(store: Store, since: float, only: Mapping[str, Any]) -> int:
    """Return how many series got faster at or after `since` (Unix time) and stayed so."""
    settled = {
        cell.series
        for incident in incidents(store, closed_since=since)
        if incident.direction == "faster" and incident.since >= since
        for cell in incident.cells
        if cell.state == NEW_LEVEL and cell.series.has(only)
    }
    return len(settled)


def compare_sweep(store: Store, name: str, only: Mapping[str, Any] = _ALL) -> Comparison:
    """Return whether each series of a sweep's newest DAG run got slower or faster.

    If the sweep never ran, compare the newest runs of the configurations that it plans today. `only` (values
    by column) selects the series to return. Raises UserError if there is no such sweep.
    """
    rows = store.newest_sweep_run(name)
    return compare_sweep_run(store, rows, only) if rows else compare_planned(store, name, only)


def compare_sweep_run(
    store: Store, rows: Sequence[Mapping[str, Any]], only: Mapping[str, Any] = _ALL
) -> Comparison:
    """Return whether each series of one DAG run of a sweep got slower or faster, by the series' newest run.

    `rows` are the DAG run's runs; `only` (values by column) selects the series to return.
    """
    lost = store.lost_jobs(dag_id=rows[0]["dag_id"], dag_run_id=rows[0]["dag_run_id"])
    return _with_totals(
        store, compare_cells(store, rows), rows, _runs_of_previous_weeks(store, rows), lost=lost, only=only
    )


def compare_dag_run(store: Store, dag_id: str, dag_run_id: str, planned: Iterable[Series] = ()) -> Comparison:
    """Return whether each series of a DAG run got slower or faster, by its newest run in that DAG run.

    `planned` are the series that should have run; those that did not are reported as missing.
    """
    scope: dict[str, Any] = {"dag_id": dag_id, "dag_run_id": dag_run_id}
    rows = store.results(include_rejected=True, **scope)
    comparison = compare_stored(store, select_judgements(store, scope))
    return _with_totals(
        store, comparison, rows, _runs_of_previous_weeks(store, rows), planned, lost=store.lost_jobs(**scope)
    )


def compare_planned(store: Store, name: str, only: Mapping[str, Any] = _ALL) -> Comparison:
    """Return whether each configuration of a sweep's present file got slower or faster, by its newest run.

    `only` (values by column) selects the series to return. Raises UserError if `config/` has no such sweep.
    """
    runs = (Series.from_run(run) for cell in plan_sweep(load_sweep(name)).cells for run in expand_cell(cell))
    planned = [series for series in runs if series.is_judged]
    comparison = compare_stored(
        store, {series: series_judgements(store, series, limit=1) for series in planned}
    ).only(only)
    return replace(
        comparison, completeness=completeness(store, comparison.series_states, (), planned=planned, only=only)
    )


def compare_cells(store: Store, rows: Sequence[Mapping[str, Any]]) -> Comparison:
    """Return whether each series with a run in `rows` got slower or faster, by its newest run."""
    cells = dict.fromkeys(Series.from_row(row) for row in rows)
    stand = judgements_since(store, min((row["submitted_at"] for row in rows), default=math.inf))
    return compare_stored(store, {series: stand.get(series, []) for series in cells if series.is_judged})


def finding_of_run(store: Store, row: Mapping[str, Any]) -> Finding | None:
    """Return whether a run's series had got slower or faster as of that run; None if the run is not judged.

    `row` is the run's row of the store.
    """
    judgement = read_judgement(store, row)
    if judgement is None:
        return None
    cells = {Series.from_row(row): [judgement]}
    return compare_stored(store, cells).findings[0]


def compare_runs(store: Store, earlier: str, later: str) -> Comparison:
    """Compare two runs of one series, each given by its job name, a unique beginning of it, or `last`.

    How far two runs usually differ is estimated from the runs before both. Raises UserError if a run is
    unknown, rejected or without a time, or if the two are not different runs of one judged series.
    """
    rows = [store.run_named(name) for name in (earlier, later)]
    for row in rows:
        if row["state"] != "valid":
            raise UserError(
                f"run {row['job_name']} was rejected, so it cannot be compared: {row['reason']} "
                "Name a valid run."
            )
    series, other = map(Series.from_row, rows)
    names = [row["job_name"] for row in rows]
    if series != other:
        differ = ", ".join(series.differences(other))
        raise UserError(
            f"{' and '.join(names)} belong to different series and cannot be compared: {differ}. "
            "Name two runs of one series."
        )
    if names[0] == names[1]:
        raise UserError(
            f"'{one_line(earlier)}' and '{one_line(later)}' name the same run, {names[0]}: name two runs."
        )
    if not series.is_judged:
        raise UserError(
            f"{' and '.join(names)} ran in mode {series['mode']}, whose times are not comparable: "
            "name runs in another mode."
        )
    runs = series_runs(store.results(**series.key)[::-1])
    by_name = {run.job_name: run for run in runs}
    for name in names:
        if name not in by_name:
            raise UserError(f"run {name} has no measured time to compare: name a run that has one.")
    earlier_run, later_run = (by_name[name] for name in names)
    before = list(takewhile(lambda run: run.job_name not in names, runs))
    series_state, read = _two_runs(before, earlier_run, later_run), record_reader(store)
    judgement = Judgement(later_run, series_state, tuple(changes(*map(read, names))))
    q_values = adjust_q_values([(series, judgement)])
    command = confirmation_runs_command(later_run, series_state, read)
    return Comparison((Finding(series, judgement, q_values.get(later_run.job_name, 1.0), command),))


def confirmation_runs_command(
    newest: SeriesRun, series_state: SeriesState, read_record: Callable[[str], str]
) -> str | None:
    """Return the command that repeats a suspected run, to confirm or dismiss that it is slower or faster.

    None if nothing is suspected, or if the current recipes would no longer give this run. `read_record`
    takes a job name and returns that job's record as JSON text.
    """
    if series_state.suspicion is None:
        return None
    command = repeat_command_of_record(json.loads(read_record(newest.job_name)))
    return command and f"{command} --repeats {CONFIRMATION_RUNS}"


def record_reader(store: Store, together: Collection[str] = ()) -> Callable[[str], str]:
    """Return a function that takes a job name and reads that job's record, as JSON text, from the store.

    The records of the jobs `together` are read in one query, when the first of them is wanted.
    """
    read = cache(lambda: store.records(list(together)))

    def record(job_name: str) -> str:
        known = read().get(job_name) if job_name in together else None
        return known or str(store.record(job_name)["content"])

    return record


def compare_judgements(
    cells: Mapping[Series, Sequence[Judgement]],
    read_record: Callable[[str], str],
    q_values: Mapping[str, float] | None = None,
    runs_on_nodes: Sequence[NodeRun] | None = None,
    silenced: Mapping[Series, float] = _NONE,
) -> Comparison:
    """Compare series by the newest judgement of each.

    Args:
        cells: the judgements of each series, newest first; series without one are left out.
        read_record: returns the record of a job as JSON text.
        q_values: by job name, the p-values of the newest runs, adjusted for the cells compared with them; by
            default these series are compared with each other.
        runs_on_nodes: the training runs of the last weeks, as evidence on nodes; by default those of `cells`.
        silenced: until when a series is silenced (Unix time).
    """
    newest = [(series, judgements[0]) for series, judgements in cells.items() if judgements]
    if q_values is None:
        q_values = adjust_q_values(newest)
    findings = [
        Finding(
            series,
            judgement,
            q_values.get(judgement.run.job_name, 1.0),
            confirmation_runs_command(judgement.run, judgement.series_state, read_record),
            silenced.get(series),
        )
        for series, judgement in newest
    ]
    made = cache(lambda job_name: read_setup(read_record(job_name)))
    if runs_on_nodes is None:
        runs_on_nodes = [
            run for series, judged in cells.items() for run in node_runs(series, as_evidence(judged[::-1]))
        ]

    def has_changed(job_name: str, change: str) -> bool:
        return has_changed_to(made(job_name), change)

    common = causes(cells, has_changed, runs_on_nodes)
    explained = {series: cause for cause in common for series in cause.cells}
    findings = [
        one.moved_by(explained[one.series])
        if one.series in explained
        else replace(one, harmless=_harmless(one, findings, has_changed))
        for one in findings
    ]
    return Comparison(rank_findings(findings), common)


def _harmless(
    finding: Finding, every: Iterable[Finding], has_changed: Callable[[str, str], bool]
) -> tuple[str, ...]:
    """Return the changes with which a cell became slower or faster, but which most others took without harm.

    The others are those of its cluster that are not slower or faster; four at least must have the change.
    """
    wanted = [change for change in finding.judgement.changes if finding.changed and is_notable(change)]
    usual = [
        one.run.job_name
        for one in every
        if wanted and one.series["cluster"] == finding.series["cluster"] and not one.changed
    ]
    having = {change: sum(has_changed(job, change) for job in usual) for change in wanted}
    most = max(FEWEST_CELLS_TOGETHER, (len(usual) + 1) / 2)
    return tuple(change for change in wanted if having[change] >= most)


def _with_totals(
    store: Store,
    comparison: Comparison,
    ran: Sequence[Mapping[str, Any]],
    before: Sequence[Mapping[str, Any]],
    planned: Iterable[Series] = (),
    *,
    lost: Sequence[Mapping[str, Any]],
    only: Mapping[str, Any] = _ALL,
) -> Comparison:
    """Return the comparison of the series selected by `only`, with totals, goodput and missing cells."""
    comparison = comparison.only(only)
    recent = recent_seconds(store, LEVEL_RUNS)
    missing = completeness(
        store, comparison.series_states, ran, before, planned=planned, lost=lost, only=only, recent=recent
    )
    selected = _selected(ran, only)
    if only:
        lost = [job for job in lost if Series.from_run(Run.model_validate(job["run"])).has(only)]
    goodput = compute_goodput(selected, lost)
    return replace(
        comparison,
        totals=sum_up(selected),
        goodput="" if goodput is None else goodput.sentence,
        completeness=missing,
        recent=recent,
    )


def _selected(rows: Iterable[Mapping[str, Any]], only: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in rows if Series.from_row(row).has(only)] if only else [*rows]


def _runs_of_previous_weeks(store: Store, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of the sweep of `rows` (one DAG run) in the four weeks before; none without a sweep."""
    if not rows or rows[0]["sweep"] is None:
        return []
    first = min(row["submitted_at"] for row in rows)
    of_sweep = store.results(include_rejected=True, sweep=rows[0]["sweep"], since=first - LOOK_BACK_S)
    return [row for row in of_sweep if row["submitted_at"] < first]


def compare_stored(store: Store, cells: Mapping[Series, Sequence[Judgement]]) -> Comparison:
    """Compare series of a store by the newest judgement of each; `cells` has them newest first."""
    newest = [(series, judgements[0]) for series, judgements in cells.items() if judgements]
    until = max((judgement.run.row["submitted_at"] for _, judgement in newest), default=0.0)
    return compare_judgements(
        cells,
        record_reader(store, {judgement.run.job_name for _, judgement in newest}),
        read_q_values(store, newest),
        read_node_runs(store, until),
        silenced_cells(store, dict(newest)),
    )


def _two_runs(before: Sequence[SeriesRun], earlier: SeriesRun, later: SeriesRun) -> SeriesState:
    """Return whether two single runs differ by more than the runs before them usually do."""
    usual = Baseline().with_runs(*(run.seconds for run in before))
    against = replace(usual, level=(earlier.seconds,))
    judged = (later.seconds,)
    if not against.suffices:
        return SeriesState("insufficient history", None, judged, against)
    direction = against.direction(judged)
    return SeriesState("unchanged" if direction is None else "suspected", direction, judged, against)
