"""The content of the web pages as JSON, for the web server and for the report file."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.judging import incidents
from steptime.judging.comparison import compare_dag_run
from steptime.judging.findings import COLUMNS as COMPARED
from steptime.judging.findings import Comparison
from steptime.judging.judgements import newest_judgements
from steptime.judging.missing_cells import find_cause, find_missing, list_lost_jobs
from steptime.judging.node import describe_node
from steptime.judging.node_effects import node_effects
from steptime.judging.node_evidence import read_node_runs
from steptime.judging.node_pairs import describe_node_pairs
from steptime.judging.record_changes import record_differences
from steptime.judging.run_findings import (
    RUN_VERDICT_COLUMNS,
    add_verdicts,
    describe_run,
    make_findings,
    results_with_verdicts,
    verdict_of_run,
)
from steptime.judging.run_sets import COLUMNS as OF_SETS
from steptime.judging.run_sets import Measure, compare_sets
from steptime.judging.series import RECENT_RUNS, Series, recent_seconds
from steptime.judging.trend import COLUMNS as TREND
from steptime.judging.trend import (
    passes_until_s,
    shown_range,
    since_sentence,
    trend,
    verdict_sentence,
)
from steptime.judging.trial_answers import COLUMNS as OF_TRIAL
from steptime.judging.trial_answers import TrialAnswer, read_answer
from steptime.measure.gpu_samples import gpu_samples
from steptime.measure.metrics import peak_source
from steptime.measure.repeating import describe_repeat
from steptime.measure.report import csv_text, export_row
from steptime.measure.stragglers import rank_times
from steptime.store.columns import COLUMNS
from steptime.store.run_queries import Store

MayEdit = Callable[[str | None], bool]
"""A function that returns whether the reader may edit the runs of a DAG (None: runs without a DAG)."""

_MOST_TRIALS = 20
"""Most DAG runs of trials that are listed: the answer of each is computed."""
TREND_RUNS = 400
"""Newest runs of a series that its trend shows at first: more points than a chart is wide enough for."""
_KNOWN_TOGETHER = 50
"""Most DAG runs that can be chosen to show how they scale."""
_OF_A_TREND = [column.name for column in TREND if not column.series]
"""Columns of a trend that vary within a series; the others are given once."""


def columns() -> dict[str, Any]:
    """Describe the columns of results (`columns`), a `comparison`, `sets`, a `trend`, a `trial`, a `verdict`.

    Each has its heading, unit and format.
    """
    return {
        "columns": [column.published for column in COLUMNS],
        "comparison": [column.published for column in COMPARED],
        "sets": [column.published for column in OF_SETS],
        "verdict": [column.published for column in RUN_VERDICT_COLUMNS],
        "trend": [column.published for column in TREND],
        "trial": [column.published for column in OF_TRIAL],
    }


def comparison(store: Store, compared: Comparison) -> dict[str, Any]:
    """Return which series (cells) of a comparison got slower or faster, and what the runs cost.

    `{"sentence", "completeness", "took", "cost", "goodput", "remarks", "columns": […], "rows": [[…], …],
    "recent"}`, with one row for each series.

    - `sentence`: the numbers of slower, faster and unchanged series; `completeness`: which planned series are
      missing and why; `remarks`: sentences on each change and its common causes.
    - `took`: number and cost of all runs, rejected ones included; `cost`: GPU-hours by cluster, and those of
      the period before; `goodput`: what the GPU-hours were spent on.
    - `recent`: for each row, the times in s that its series' recent runs are judged by, oldest first.
    """
    recent = compared.recent or recent_seconds(store)
    return (
        sentences(compared)
        | table([column.name for column in COMPARED], compared.rows)
        | {"recent": [recent.get(finding.series, [])[-RECENT_RUNS:] for finding in compared.findings]}
    )


def sentences(compared: Comparison) -> dict[str, Any]:
    """Return the texts of a comparison for the page *This week*: conclusions, counts, costs and remarks."""
    return {
        "sentence": compared.sentence,
        "completeness": compared.completeness and compared.completeness.as_json,
        "took": compared.took,
        "cost": compared.cost,
        "goodput": compared.goodput,
        "remarks": compared.remarks,
    }


def incidents_since(store: Store, since: float, may_edit: MayEdit) -> dict[str, Any]:
    """Return the active incidents and those closed at or after `since` (Unix time): `{"incidents": […]}`.

    Each has `recent`, the recent times of its most changed series, oldest first, in seconds.
    """
    found = incidents.incidents(store, closed_since=since)
    recent = recent_seconds(store) if found else {}
    listed = [
        {
            "id": incident.id,
            "cluster": incident.cluster,
            "nodes": incident.nodes,
            "state": incident.state,
            "direction": incident.direction,
            "title": incident.title,
            "evidence": incident.evidence,
            "note": incident.note,
            "noted_by": incident.noted_by,
            "silence": incident.silence,
            "judged_cells": incident.judged_cells,
            "cells": [
                {
                    "label": cell.series.label,
                    "job_name": cell.job_name,
                    "change_percent": 100 * cell.change,
                    "usual_s": cell.usual_s,
                    "state": cell.state,
                }
                for cell in incident.affected
            ],
            "recent": recent.get(incident.affected[0].series, []),
            "may_edit": incident.may_be_changed(may_edit),
        }
        for incident in found
    ]
    return {"incidents": listed}


def node(store: Store, cluster: str, name: str) -> dict[str, Any]:
    """Return how a node compares with others: what `describe_node` returns, and `drain`.

    That is the command that keeps new jobs off the node; None if there is none.
    """
    described = describe_node(store, cluster, name)
    reason = next(iter(described["pairs"]), described["incident"] or "slow in benchmarks")
    return described | {"drain": drain_command(cluster, name, reason)}


def nodes(store: Store) -> dict[str, Any]:
    """Return by how much each node slows the runs on it, by the last four weeks, the slowest first.

    `{"nodes": [{"cluster", "node", "difference_percent", "low_percent", "high_percent", "runs", "cells"}]}`;
    low and high are the ends of the 95 % interval.
    """
    effects = [
        {
            "cluster": effect.cluster,
            "node": effect.node,
            "difference_percent": 100 * effect.change,
            "low_percent": 100 * effect.low,
            "high_percent": 100 * effect.high,
            "runs": effect.runs,
            "cells": effect.cells,
        }
        for effect in node_effects(read_node_runs(store, time.time()))
    ]
    return {"nodes": effects}


def drain_command(cluster: str, node: str, reason: str) -> str | None:
    """Return the command that keeps new jobs off a node.

    None if this kind of cluster has no such command, or if there is no file of the cluster here.
    """
    try:
        argv = load_cluster(cluster).drain_command(node, f"steptime: {reason}")
    except UserError:
        return None
    return shlex.join(argv) if argv else None


def scaling(store: Store, together: str | None) -> dict[str, Any]:
    """Return the performance runs of a DAG run, `together`, to show how they scale.

    By default it is the newest one with several GPU counts. `{"known": […], "together", "columns", "rows"}`:
    `known` lists the DAG runs to choose from, `together` is the chosen one.
    """
    known = store.measured_together(limit=_KNOWN_TOGETHER)
    chosen = together or next((dag_run["together"] for dag_run in known), None)
    rows = [] if chosen is None else store.performance_runs(chosen)
    return {"known": known, "together": chosen} | results(rows)


def results(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows of the store as a table: `{"columns": […], "rows": [[…], …]}`."""
    return table([column.name for column in COLUMNS], rows)


@dataclass(frozen=True)
class SelectedRuns:
    """The runs that a query selects, rejected ones included, as arguments for the store's methods."""

    dag_id: str | None
    dag_run_id: str | None
    scope: Mapping[str, Any]
    """Conditions on the DAG run of the runs; None means any."""
    filters: Mapping[str, Any]

    @property
    def whole(self) -> dict[str, Any]:
        """All conditions of the selection, as keyword arguments of the store's methods."""
        return {"include_rejected": True, **self.scope, **self.filters}


def select_results(store: Store, selection: SelectedRuns, limit: int) -> dict[str, Any]:
    """Return the newest runs of a selection, at most `limit`, as a table in the order of the pages.

    `matching` is the number of runs in the selection, `all` the number without its filters, and `choices` the
    values to filter by. If a DAG run is selected, `comparison` has the texts of the comparison of its series,
    and each run has the columns `RUN_VERDICT_COLUMNS`, as in the CSV file.
    """
    every = store.count(include_rejected=True, **selection.scope)
    rows = store.results(limit=limit, in_reading_order=True, **selection.whole)
    matching = len(rows)
    if matching == limit:  # or more
        matching = store.count(**selection.whole) if selection.filters else every
    counts = {"matching": matching, "all": every, "choices": store.choices(**selection.scope)}
    if selection.dag_id is None or selection.dag_run_id is None:
        return results(rows) | counts
    compared = compare_dag_run(store, selection.dag_id, selection.dag_run_id)
    names = [column.name for column in (*COLUMNS, *RUN_VERDICT_COLUMNS)]
    return table(names, add_verdicts(store, rows)) | {"comparison": sentences(compared)} | counts


def select_csv(store: Store, selection: SelectedRuns) -> str:
    """Return all runs of a selection, each with its verdict, as CSV in the order of the pages."""
    columns = (*COLUMNS, *RUN_VERDICT_COLUMNS)
    rows = results_with_verdicts(store, in_reading_order=True, **selection.whole)
    return csv_text((export_row(row, columns) for row in rows), [column.name for column in columns])


def differences(store: Store, run: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return how two runs (rows of the store) differ: `{"run", "other", "step_times", "made", "apart"}`.

    `step_times` has the seconds of each step of both runs, `made` how their records differ. `apart` lists the
    columns that put them in different series, whose times are not comparable.
    """
    names = [run["job_name"], other["job_name"]]
    times = store.step_times(names)
    return {
        "run": run,
        "other": other,
        "step_times": [sorted(times.get(name, {}).items()) for name in names],
        "made": record_differences(*(store.record(name)["content"] for name in names)),
        "apart": Series.from_row(run).differences(Series.from_row(other)),
    }


def two_sets(store: Store, a: str, b: str, measure: Measure | None) -> dict[str, Any]:
    """Return how two sets of runs compare over all cells: `{"sentence", …, "columns", "rows", "choices"}`.

    `a` and `b` are conditions, separated by semicolons. `choices` has the values that conditions may name, by
    column. Without both sets there are only `choices`. Raises UserError for conditions that cannot be read,
    and for a set without runs.
    """
    choices = {"choices": store.choices(state="valid")}
    if not a.strip() or not b.strip():
        return choices
    sets = ([part for part in text.split(";") if part.strip()] for text in (a, b))
    compared = compare_sets(store, *sets, measure=measure)
    rows = [cell.row for cell in compared.cells]
    return compared.as_json | table([column.name for column in OF_SETS], rows) | choices


def node_pairs(store: Store, sweep: str) -> dict[str, Any]:
    """Return what a sweep over pairs of nodes measured, with its `findings` as sentences.

    Raises UserError if no run of the sweep had two nodes.
    """
    described = describe_node_pairs(store, sweep)
    return described.model_dump(mode="json") | {"findings": described.findings}


def trials(store: Store, since: float) -> dict[str, Any]:
    """Return the answers of trials with a run submitted at or after `since` (Unix time): `{"trials": […]}`.

    Newest first, each with its DAG run (`together`: `dag_id/run_id`), when its newest run was submitted, the
    `sentences` of its answer, and how much it has run.
    """
    listed = []
    for dag_run in store.trials(since=since, limit=_MOST_TRIALS):
        together = f"{dag_run['dag_id']}/{dag_run['dag_run_id']}"
        if (answer := _trial_answer(store, together)) is not None:
            listed.append(
                dag_run
                | {
                    "together": together,
                    "sentences": answer.sentences,
                    "rounds": answer.state.round,
                    "gpu_hours": answer.gpu_hours,
                    "ended": answer.state.ended,
                }
            )
    return {"trials": listed}


def trial(store: Store, together: str) -> dict[str, Any]:
    """Return the answer of the trial of a DAG run, given as `dag_id/run_id`.

    It is that of `steptime trial show`, with its `sentences`, and the variants as a table. If the DAG run has
    no result yet, or is no trial, `trial` is None, and nothing else is known.
    """
    dag_id, _, dag_run_id = together.partition("/")
    of = {"together": together, "dag_id": dag_id, "dag_run_id": dag_run_id}
    answer = _trial_answer(store, together)
    if answer is None:
        return of | {"trial": None}
    variants = table([column.name for column in OF_TRIAL], answer.rows)
    return answer.content | of | {"sentences": answer.sentences} | variants


def trial_csv(store: Store, together: str) -> str:
    """Return the variants of a trial as the CSV of `steptime trial show`; only its head without a result."""
    answer = _trial_answer(store, together)
    return csv_text(answer.rows if answer else [], [column.name for column in OF_TRIAL])


def _trial_answer(store: Store, together: str) -> TrialAnswer | None:
    dag_id, _, dag_run_id = together.partition("/")
    return read_answer(store, dag_id, dag_run_id)


def series(store: Store, among: Iterable[str] | None = None) -> dict[str, Any]:
    """Return every judged series that ran in the last year with its newest run, worst first.

    `{"series": [{"label", "job_name", "verdict", "series_state", "direction", "change_percent", …}, …]}`;
    these four are None if the newest run has no time to judge. `among` restricts it to series whose newest
    run has one of these job names.
    """
    wanted = None if among is None else set(among)
    newest = newest_judgements(store)
    judgements = [(of, judgement) for of, (_, judgement) in newest.items() if judgement is not None]
    findings = {finding.series: finding for finding in make_findings(store, judgements)}
    listed = []
    for judged_series, (job, _) in newest.items():
        if wanted is None or job in wanted:
            finding = findings.get(judged_series)
            verdict = verdict_of_run(finding)
            verdict["direction"] = finding.series_state.direction if finding else None
            listed.append({**judged_series.key, "label": judged_series.label, "job_name": job} | verdict)
    return {"series": sorted(listed, key=_worst_first)}


def _worst_first(series: Mapping[str, Any]) -> tuple[int, float]:
    slower = series["direction"] == "slower"
    order = {"confirmed": 0, "suspected": 1}.get(series["series_state"], 2) if slower else 2
    return order, -(series["change_percent"] or 0.0)


def series_trend(
    store: Store, judged_series: Series, may_accept: bool, limit: int | None = TREND_RUNS
) -> dict[str, Any]:
    """Return a series over time, oldest run first: `{"label", "series", "columns", "rows", …}`.

    - `rows`: of the newest runs, at most `limit`; `runs` is the number of all.
    - `may_accept`: whether the user may accept a new usual time; returned as given.
    - `stands`: the newest verdict in words, with what failed or did not run since; `missing`: whether
      anything failed or did not run.
    - `since`: a sentence on when the series got slower or faster.
    - `range`: the ends of the y axis in s, and whether the published time lies between them; None without
      rows.
    - `passes_until_s`: the longest step time that still counts as reaching the published one; None if none is
      published.
    - `failed`: rejected runs, and jobs that failed without a log (their `job_name` is None), oldest first;
      only those since the first of `rows` if there are more runs.
    """
    points, missing = trend(store, judged_series, limit=limit), find_missing(store, judged_series)
    runs, since = len(points), None
    if limit is not None and points and (total := store.count(**judged_series.key)) > limit:
        runs, since = total, points[0]["submitted_at"]
    names = ("job_name", "submitted_at", "reason")
    failed = store.results(
        include_rejected=True, state="rejected", since=since, only=names, **judged_series.key
    )
    failed += [
        {"job_name": None, "submitted_at": job["created_at"], "reason": job["reason"] or job["state"]}
        for job in list_lost_jobs(store, judged_series, since)
    ]
    return {
        "label": judged_series.label,
        "series": judged_series.key,
        "runs": runs,
        "stands": verdict_sentence(points, missing, runs),
        "missing": missing is not None,
        "may_accept": may_accept,
        "since": since_sentence(points),
        "range": shown_range(points) if points else None,
        "passes_until_s": passes_until_s(points[-1]) if points else None,
        "failed": sorted(failed, key=lambda attempt: attempt["submitted_at"]),
    } | table(_OF_A_TREND, points)


def run(store: Store, row: Mapping[str, Any], may_edit: MayEdit) -> dict[str, Any]:
    """Return one run with its steps, checkpoints, checks and record.

    - `run`: its row, with the columns `RUN_VERDICT_COLUMNS`.
    - `sentence`: how it compares with its series' usual times; `changed`: what changed when the series got
      slower or faster. Both are None for a run that is not judged.
    - `cause`: why it was rejected, in one line; `repeat`: see `measure.repeating.describe_repeat`.
    - `forward_pass`: a sentence on the spread of its ranks; None if they were not timed.
    - `gpu_samples`: a sentence on power, clock and temperature of its GPUs; None if they were not sampled.
    - `has_trend`: whether runs of its series are judged.
    - `may_accept`: whether the user may accept its time as the new usual one.
    - `may_run_again`: whether it comes from a mapped task, in a DAG run that the user may edit.
    """
    job_name = row["job_name"]
    has_trend = Series.from_row(row).is_judged
    judged = describe_run(store, row)
    is_mapped = row["task_id"] is not None and (row["map_index"] or 0) >= 0
    record, parsed = store.record(job_name), store.parsed_log(job_name)
    times = rank_times(parsed["log"].get("rank_times"))
    samples = gpu_samples(parsed["log"].get("gpu_samples"))
    return {
        "run": add_verdicts(store, [row])[0],
        "peak_source": peak_source(row),
        "sentence": judged and judged.sentence,
        "changed": judged and judged.changed,
        "has_trend": has_trend,
        "may_accept": has_trend and row["state"] == "valid" and may_edit(row["dag_id"]),
        "may_run_again": is_mapped and may_edit(row["dag_id"]),
        "steps": store.steps(job_name),
        "checkpoints": store.checkpoints(job_name),
        "checks": store.checks(job_name),
        "forward_pass": times and times.summary,
        "gpu_samples": samples and samples.summary,
        **parsed,
        # As text: a browser would parse and write 1.0 as 1, and the checksum would no longer match.
        "record": record["content"],
        "record_sha256": record["sha256"],
        "cause": find_cause(store, row),
        "repeat": describe_repeat(record["content"]),
    }


def table(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as lists of values, with the column names given once, which is short for many rows."""
    return {"columns": names, "rows": [[row[name] for name in names] for row in rows]}
