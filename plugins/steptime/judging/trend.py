"""A series over time: each run with its judgement at that time and what changed before it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

from steptime.judging import findings
from steptime.judging.completeness import MissingCell
from steptime.judging.detection import Standing
from steptime.judging.judgements import judge_now, read_judgement
from steptime.judging.models import Judgement
from steptime.judging.onset import changed_words, date
from steptime.judging.record_changes import node_changes, setup_changes
from steptime.judging.series import Series, SeriesRun, series_runs
from steptime.recipes.models import Mode
from steptime.recipes.published import PUBLISHED_THROUGHPUT
from steptime.store import columns, judgement_queries
from steptime.store.columns import Column
from steptime.store.database import read_connection
from steptime.store.run_queries import Store

_COMPARED = {column.name: column for column in findings.COLUMNS}

COLUMNS = (
    replace(columns.BY_NAME["submitted_at"], priority=0),
    columns.BY_NAME["job_name"],
    Column("judged_s", "number", "What the run is judged by.", heading="time", unit="s", priority=0),
    *(_COMPARED[name] for name in ("change_percent", "verdict", "suspicion", "baseline_s")),
    Column("low_s", "number", "Above it, one run is usual.", heading="usual from", unit="s", priority=3),
    Column("high_s", "number", "Below it, one run is usual.", heading="usual to", unit="s", priority=3),
    *(columns.BY_NAME[name] for name in ("published_step_time_s", "against_publication")),
    _COMPARED["minimum_detectable_change_percent"],
    _COMPARED["since"],
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
    *(_COMPARED[name] for name in ("judged_on", *columns.series_columns())),
)
"""The columns of a trend, which has a row for each run."""


OWN_VERDICT = tuple(_COMPARED[name] for name in ("verdict", "suspicion", "change_percent", "baseline_s"))
"""Columns that compare a run with the history of its own series."""


class RunVerdict(NamedTuple):
    """How a run compares with the usual times of its series, in words."""

    sentence: str
    changed: str
    """What changed when its level began; empty if nothing did."""


def read_verdict(store: Store, row: Mapping[str, Any]) -> RunVerdict | None:
    """Return how a run (a row of the store) compares with its history; None if it is not judged."""
    if row["state"] != "valid" or not Series.from_row(row).is_judged:
        return None
    judged = read_judgement(store, row)
    if judged is None:
        return None
    return RunVerdict(run_sentence(judged), changed_words(judged.changes, judged.onset))


def with_verdicts(store: Store, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the store with the columns `OWN_VERDICT`, which compare each run with its series.

    They are None for runs that are not judged.
    """
    first = min((row["submitted_at"] for row in rows), default=0.0)
    kept = judgement_queries.verdicts(store, since=first)
    found = []
    for row in rows:
        stood = kept.get(row["job_name"])
        values = dict.fromkeys(column.name for column in OWN_VERDICT)
        if stood is not None and (runs := series_runs([row])):
            usual = stood["baseline_mean_s"]
            change = None if usual is None else runs[0].seconds / usual - 1
            values |= {
                "verdict": _own_verdict(stood["verdict"], stood["direction"], change),
                "suspicion": stood["verdict"] if stood["direction"] else "",
                "change_percent": None if change is None else 100 * change,
                "baseline_s": usual,
            }
        found.append(dict(row) | values)
    return found


def trend(store: Store, series: Series) -> list[dict[str, Any]]:
    """Return a row for each judged run of a series, oldest first, with the columns `COLUMNS`.

    `low_s` and `high_s` are the limits of a usual run at that time; None if too few runs precede it.
    """
    judged = judge_now(store, series)
    changed = _changes(store, series, [one.run for one in judged])
    with read_connection(store.url) as connection:
        accepted = judgement_queries.accepted(connection, series.key)
    levels = _levels(judged)
    return [
        _row(one.run, one.standing, changed.get(one.run.job_name, ("", "")))
        | {
            "since": one.onset and one.onset.at,
            "level_s": levels.get(one.run.job_name),
            "accepted": _accepted(accepted.get(one.run.job_name)),
        }
        for one in judged
    ]


def sentence(series: Series, rows: Sequence[Mapping[str, Any]], missing: MissingCell | None = None) -> str:
    """Sum up a series: name, newest verdict, what failed or did not run since, and when its level began."""
    return f"{series.full_name}: {verdict_sentence(rows, missing)} {since_sentence(rows)}".rstrip()


def verdict_sentence(rows: Sequence[Mapping[str, Any]], missing: MissingCell | None) -> str:
    """Sum up the newest verdict of a series and what failed or did not run since, in one sentence.

    `rows` are those of `trend`, oldest first.
    """
    since = f"; since then it {missing.sentence}" if missing else ""
    if not rows:
        return f"no run has a time to be judged by{since.replace('since then it', 'it')}."
    last, runs = rows[-1], len(rows)
    stands = ", ".join(filter(None, (f"{last['judged_s']:.4g} s", last["verdict"], last["suspicion"])))
    until = f" until {date(last['submitted_at'])}" if missing else ""
    return f"{stands}{until}, after {runs} run{'' if runs == 1 else 's'}{since}."


def run_sentence(judged: Judgement) -> str:
    """Describe how a run compares with the usual times of its series, and how certain that is."""
    against, seconds = judged.standing.against, judged.run.seconds
    slow = f"; {judged.run.row['stragglers']}" if judged.run.row["stragglers"] else ""
    if not against.suffices:
        return f"{seconds:.4g} s, insufficient history: {len(against.runs)} earlier runs{slow}"
    change = 100 * against.change([seconds])
    stands = {"unchanged": "within the usual spread", "dismissed": "not confirmed by confirmation runs"}
    return (
        f"{seconds:.4g} s, {abs(change):.1f} % {'slower' if change > 0 else 'faster'} than usual "
        f"({against.mean:.4g} s over {len(against.runs)} runs), "
        f"{stands.get(judged.standing.state, judged.standing.state)}{slow}"
    )


def since_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say when the series got slower or faster and what changed then, or that it drifts; empty if neither."""
    last = rows[-1] if rows else {"since": None}
    if last["since"] is not None:
        began = next((row for row in rows if row["submitted_at"] == last["since"]), last)
        changed = f"; changed then: {began['changes']}" if began["changes"] else ""
        return f"Its level began with the run of {date(last['since'])}{changed}."
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
    known = [row[name] for row in rows for name in ("judged_s", "low_s", "high_s") if row[name] is not None]
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
    with read_connection(store.url) as connection:
        made = judgement_queries.made_sha256s(connection, series.key)
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
    found: dict[str, float] = {}
    if drift is not None:
        begins = {level.first: level.seconds for level in drift.levels}
        seconds = None
        for one in judged:
            seconds = begins.get(one.run.job_name, seconds)
            if seconds is not None:
                found[one.run.job_name] = seconds
    return found


def _accepted(level: Mapping[str, Any] | None) -> str:
    return "" if level is None else f"{level['note']} ({level['accepted_by']})"


def _row(run: SeriesRun, standing: Standing, changed: tuple[str, str]) -> dict[str, Any]:
    against = standing.against
    low, high = _usual(standing)
    change = against.change([run.seconds]) if against.suffices else None
    performance = run.row["mode"] == Mode.PERFORMANCE
    return dict(run.row) | {
        "published_step_time_s": run.row["published_step_time_s"] if performance else None,
        "verdict": _own_verdict(standing.state, standing.direction, change),
        "suspicion": standing.state if standing.direction else "",
        "judged_s": run.seconds,
        "judged_on": run.judged_on,
        "baseline_s": against.mean if against.runs else None,
        "change_percent": None if change is None else 100 * change,
        "low_s": low,
        "high_s": high,
        "minimum_detectable_change_percent": (
            100 * against.minimum_detectable_change if against.suffices else None
        ),
        "changes": changed[0],
        "node_changes": changed[1],
    }


def _own_verdict(state: str, direction: str | None, change: float | None) -> str:
    """Return the verdict of one run: slower or faster only if that is suspected or confirmed."""
    if change is None:
        return "insufficient history"
    stands_out = state in ("suspected", "confirmed") and (change > 0) == (direction == "slower")
    return direction if stands_out and direction else "unchanged"


def _usual(standing: Standing) -> tuple[float, float] | tuple[None, None]:
    """Return the usual range of one run in seconds, or a pair of None."""
    against = standing.against
    if not against.suffices:
        return None, None
    bound = against.bound()
    return against.mean * (1 - bound), against.mean * (1 + bound)
