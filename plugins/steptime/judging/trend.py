"""A series over time: each run with its judgement at that time and what changed before it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from steptime.judging.detection import SeriesState
from steptime.judging.findings import BY_NAME, Finding
from steptime.judging.judgements import series_judgements
from steptime.judging.missing_cells import MissingCell
from steptime.judging.record_changes import node_changes, setup_changes
from steptime.judging.run_findings import RUN_VERDICT_COLUMNS, make_findings, verdict_of_run
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.judging.verdicts import describe_verdict
from steptime.recipes.models import Mode
from steptime.recipes.published import PUBLISHED_THROUGHPUT
from steptime.store import judgement_queries
from steptime.store.columns import BY_NAME as RESULT_COLUMNS
from steptime.store.columns import Column, series_columns
from steptime.store.database import read_connection
from steptime.store.run_queries import Store
from steptime.wording import counted, date

_PRIORITIES = {"change_percent": 2, "run_change_percent": 0}

COLUMNS = (
    replace(RESULT_COLUMNS["submitted_at"], priority=0),
    RESULT_COLUMNS["job_name"],
    Column("run_s", "number", "What the run is judged by.", heading="time", unit="s", priority=0),
    *(
        replace(column, priority=_PRIORITIES.get(column.name, column.priority))
        for column in RUN_VERDICT_COLUMNS
    ),
    Column("low_s", "number", "Above it, one run is usual.", heading="usual from", unit="s", priority=3),
    Column("high_s", "number", "Below it, one run is usual.", heading="usual to", unit="s", priority=3),
    *(RESULT_COLUMNS[name] for name in ("published_step_time_s", "against_publication")),
    BY_NAME["since"],
    Column("changes", "text", "What changed since the run before it.", heading="changed", priority=2),
    Column(
        "node_changes", "text", "Its nodes, if they are others than before it.", heading="nodes", priority=5
    ),
    Column("accepted", "text", "Why the level that begins with it was accepted, and by whom.", priority=3),
    Column(
        "level_s",
        "number",
        "Of a series that got slower without a run that stood out, the level that the run belongs to.",
        heading="level",
        unit="s",
        priority=4,
    ),
    *(BY_NAME[name] for name in ("judged_on", *series_columns())),
)
"""The columns of a trend, which has a row for each run."""


def trend(store: Store, series: Series, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Return a row for each judged run of a series, oldest first, with the columns `COLUMNS`.

    `low_s` and `high_s` are the limits of a usual run at that time; None if too few runs precede it. With
    `limit`, only of its newest runs, at most that many.
    """
    judged = series_judgements(store, series, limit=limit)[::-1]
    changed = _changes(store, series, [judgement.run for judgement in judged])
    with read_connection(store.url) as connection:
        accepted = judgement_queries.accepted(connection, series.key)
    levels = _levels(judged)
    return [
        _row(finding, changed.get(finding.run.job_name, ("", "")))
        | {
            "level_s": levels.get(finding.run.job_name),
            "accepted": _accepted(accepted.get(finding.run.job_name)),
        }
        for finding in make_findings(store, [(series, judgement) for judgement in judged])
    ]


def sentence(series: Series, rows: Sequence[Mapping[str, Any]], missing: MissingCell | None = None) -> str:
    """Sum up a series: name, newest verdict, what failed or did not run since, and when its level began."""
    return f"{series.full_name}: {verdict_sentence(rows, missing)} {since_sentence(rows)}".rstrip()


def verdict_sentence(
    rows: Sequence[Mapping[str, Any]], missing: MissingCell | None, runs: int | None = None
) -> str:
    """Sum up the newest verdict of a series and what failed or did not run since, in one sentence.

    `rows` are those of `trend`, oldest first; `runs` is the number of all, by default that of `rows`.
    """
    since = f"; since then it {missing.sentence}" if missing else ""
    if not rows:
        return f"no run has a time to be judged by{since.replace('since then it', 'it')}."
    last = rows[-1]
    stands = f"{last['run_s']:.4g} s, {describe_verdict(last['verdict'], last['series_state'])}"
    until = f" until {date(last['submitted_at'])}" if missing else ""
    return f"{stands}{until}, after {counted(runs or len(rows), 'run')}{since}."


def since_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say when the series got slower or faster and what changed then, or that it drifts; empty if neither."""
    last = rows[-1] if rows else None
    if last is not None and last["series_state"] in ("suspected", "confirmed"):
        if last["drift_words"]:
            return f"It {last['drift_words']} since the run of {date(last['since'])}: no single change."
        began = next((row for row in rows if row["submitted_at"] == last["since"]), last)
        changed = f"; changed then: {began['changes']}" if began["changes"] else ""
        perhaps = f" It may be {last['perhaps_words']} instead." if last["perhaps_words"] else ""
        return f"Its level began with the run of {date(last['since'])}{changed}.{perhaps}"
    levels = [row["level_s"] for row in rows if row["level_s"] is not None]
    if not levels:
        return ""
    percent = 100 * (levels[-1] / min(levels) - 1)
    return f"It drifts slowly, by {percent:.1f} % since its fastest level: advice, no verdict."


def shown_range(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, bool]:
    """Return the y axis of a trend's chart: its ends in seconds, and whether the published time is within.

    The published time is included if it is close to the runs.
    """
    published = rows[-1]["published_step_time_s"]
    known = [row[name] for row in rows for name in ("run_s", "low_s", "high_s") if row[name] is not None]
    low, high = min(known), max(known)
    room = max(high - low, high * 0.02)
    near = published is not None and low - room < published < high + room
    if near:
        low, high = min(low, published), max(high, published)
    margin = 0.06 * ((high - low) or high * 0.02)
    return low - margin, high + margin, near


def passes_until_s(row: Mapping[str, Any]) -> float | None:
    """Return the longest step time (s) within 95 % of the published throughput; None if none is published."""
    published: float | None = row["published_step_time_s"]
    return None if published is None else published / PUBLISHED_THROUGHPUT


def _changes(store: Store, series: Series, runs: Sequence[SeriesRun]) -> dict[str, tuple[str, str]]:
    """Return by job name what changed since the previous run, and how the nodes changed.

    Records are long, so only those of neighbouring runs with different software or settings are read.
    """
    since = runs[0].row["submitted_at"] if runs else 0.0
    with read_connection(store.url) as connection:
        made = judgement_queries.setup_sha256s(connection, series.key, since)
    others = [
        (before.job_name, after.job_name)
        for before, after in pairwise(runs)
        if made[after.job_name] is None or made[before.job_name] != made[after.job_name]
    ]
    records = store.records(list(dict.fromkeys(chain.from_iterable(others))))
    made_otherwise = {after: setup_changes(records[before], records[after]) for before, after in others}
    return {
        after.job_name: (
            "; ".join(made_otherwise.get(after.job_name, ())),
            "; ".join(node_changes(before.row["nodes"], after.row["nodes"])),
        )
        for before, after in pairwise(runs)
    }


def _levels(judged: Sequence[Judgement]) -> dict[str, float]:
    """Return by job name the median seconds of the drift level that a run belongs to, if there is a drift."""
    drift = judged[-1].drift if judged else None
    levels: dict[str, float] = {}
    if drift is not None:
        begins = {level.first: level.seconds for level in drift.levels}
        seconds = None
        for judgement in judged:
            seconds = begins.get(judgement.run.job_name, seconds)
            if seconds is not None:
                levels[judgement.run.job_name] = seconds
    return levels


def _accepted(level: Mapping[str, Any] | None) -> str:
    return "" if level is None else f"{level['note']} ({level['accepted_by']})"


def _row(finding: Finding, changed: tuple[str, str]) -> dict[str, Any]:
    """Return the row of a run; `changed` says what changed since the run before it, and how the nodes did."""
    run = finding.run
    low, high = _usual(finding.series_state)
    performance = run.row["mode"] == Mode.PERFORMANCE
    return {
        **run.row,
        **verdict_of_run(finding),
        "published_step_time_s": run.row["published_step_time_s"] if performance else None,
        "run_s": run.seconds,
        "judged_on": run.judged_on,
        "since": finding.since,
        "drift_words": finding.onset.drift_words if finding.onset else "",
        "perhaps_words": finding.onset.perhaps_words if finding.onset else "",
        "low_s": low,
        "high_s": high,
        "changes": changed[0],
        "node_changes": changed[1],
    }


def _usual(series_state: SeriesState) -> tuple[float, float] | tuple[None, None]:
    """Return the usual range of one run in seconds, or a pair of None."""
    against = series_state.against
    if not against.suffices:
        return None, None
    bound = against.bound()
    return against.mean * (1 - bound), against.mean * (1 + bound)
