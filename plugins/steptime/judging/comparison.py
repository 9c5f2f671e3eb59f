"""Findings: of each cell of a comparison whether it got slower, on what that rests, and one sentence.

A cell is a series of `judging.series` as its newest run was judged; what is chance among many cells is told
apart here, as it depends on which are compared.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from steptime.errors import UserError, shown
from steptime.judging.causes import Cause, causes
from steptime.judging.detection import (
    FALSE_DISCOVERY_RATE,
    FEWEST_RUNS,
    FRESH_RUNS,
    Baseline,
    Direction,
    Standing,
    adjusted,
)
from steptime.judging.drift import Drift
from steptime.judging.judgements import (
    PUBLISHED_THROUGHPUT,
    Judged,
    against_publication,
    judged_since,
    newest,
)
from steptime.judging.placement import Placement
from steptime.judging.series import JudgedRun, Series, changes, judged_runs
from steptime.recipes.sweep_planning import plan_sweep, runs_of
from steptime.recipes.sweeps import load_sweep
from steptime.results import columns, judgement_rows
from steptime.results.columns import Column
from steptime.results.repeating import repeat_command_of_record
from steptime.results.store import Store


@dataclass(frozen=True)
class Finding:
    """What is found of one cell."""

    series: Series
    run: JudgedRun
    """Its newest run."""
    standing: Standing
    changes: tuple[str, ...] = ()
    """What changed between its last usual run and the first that was not, if it is slower or faster."""
    fresh_runs: str | None = None
    """What starts the runs that a suspicion waits for; None if today's recipes have no such run."""
    drift: Drift | None = None
    """How it drifted slower, if no run of it did."""
    drift_since: float | None = None
    """Unix time."""
    placement: Placement | None = None
    """On which nodes it was suspected, and decided by fresh runs."""
    q_values: Mapping[Direction, float] | None = None
    """Its p-values, adjusted for all cells of the comparison."""

    @property
    def verdict(self) -> str:
        """`slower`, `faster`, `unchanged` or `insufficient history`.

        A suspicion that is likely to be chance among so many cells is unchanged, until fresh runs confirm it.
        """
        state, direction = self.standing.state, self.standing.direction
        if state == "insufficient history":
            return state
        reported = state == "confirmed" or (state == "suspected" and self.q_value <= FALSE_DISCOVERY_RATE)
        return direction if reported and direction is not None else "unchanged"

    @property
    def q_value(self) -> float:
        """That of the direction in question; 1 if there is none."""
        direction = self.standing.direction
        return 1.0 if direction is None or self.q_values is None else self.q_values[direction]

    @property
    def change_percent(self) -> float | None:
        """Of the runs judged, relative to the baseline: above 0 is slower."""
        return None if self.standing.change is None else 100 * self.standing.change


@dataclass(frozen=True)
class Comparison:
    """The findings of a selection of the store, worst first."""

    findings: tuple[Finding, ...]
    without_runs: int = 0
    """Cells of the selection that have no run to judge."""
    causes: tuple[Cause, ...] = ()
    """What cells that moved have in common."""

    @property
    def confirmed_slower(self) -> bool:
        """Whether anything is slower for certain."""
        return any(one.verdict == "slower" and one.standing.state == "confirmed" for one in self.findings)

    @property
    def names(self) -> list[str]:
        """What each finding is called: its label, with more if two have the same."""
        labels = Counter(one.series.label for one in self.findings)
        return [
            one.series.label if labels[one.series.label] == 1 else one.series.full_name
            for one in self.findings
        ]

    @property
    def sentence(self) -> str:
        """How many cells are slower, faster, unchanged, unknown; and the worst of them."""
        counts = Counter(one.verdict for one in self.findings)
        parts = [f"{counts[verdict]} {verdict}" for verdict in ("slower", "faster", "unchanged")]
        if unknown := counts["insufficient history"]:
            parts.append(f"{unknown} with insufficient history")
        if self.without_runs:
            parts.append(f"{self.without_runs} without a run to judge")
        cells = len(self.findings) + self.without_runs
        sentence = f"{cells} cell{'' if cells == 1 else 's'}: {', '.join(parts)}"
        if counts["slower"]:
            worst = self.findings[0]
            sentence += f"; worst {self.names[0]} {worst.change_percent:+.1f} %, {worst.standing.state}"
        for cause in self.causes:
            sentence += f"; {len(cause.cells)} by {cause.name}"
        if drifting := sum(one.drift is not None for one in self.findings):
            sentence += f"; {drifting} drift{'s' if drifting == 1 else ''} slowly"
        if waiting := sum(one.standing.state == "suspected" for one in self.findings):
            sentence += f"; {waiting} wait{'s' if waiting == 1 else ''} for fresh runs"
        return sentence

    @property
    def remarks(self) -> list[str]:
        """A sentence for each cause, then for each cell that moved: what changed, or what to do."""
        return [cause.sentence for cause in self.causes] + [
            f"{name}: {remark}"
            for name, one in zip(self.names, self.findings, strict=True)
            for remark in (*_remarks(one), *_drift_remarks(one))
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each finding, by `COLUMNS`."""
        return [
            _row(name, one) | {"cause": "; ".join(self._names_of_causes(one.series))}
            for name, one in zip(self.names, self.findings, strict=True)
        ]

    def _names_of_causes(self, series: Series) -> list[str]:
        return [cause.name for cause in self.causes if series in cause.cells]


def compare_since(store: Store, since: float) -> Comparison:
    """The cells that have run since then (Unix time)."""
    return _compare(store, judged_since(store, since))


def compare_sweep(store: Store, name: str) -> Comparison:
    """The cells of the newest run of a sweep; where the store has none, as it is planned today.

    Raises UserError for a sweep that is in neither.
    """
    rows = store.newest_sweep_run(name)
    return compare_cells(store, rows) if rows else compare_planned(store, name)


def compare_planned(store: Store, name: str) -> Comparison:
    """The cells of a sweep as it is planned today. Raises UserError for one that `config/` has not."""
    planned = (Series.of_run(run) for cell in plan_sweep(load_sweep(name)).cells for run in runs_of(cell))
    return _compare(store, {one: newest(store, one) for one in planned if one.is_judged})


def compare_cells(store: Store, rows: Sequence[Mapping[str, Any]]) -> Comparison:
    """The cells that these runs of the store are of, as each stands by its newest run."""
    cells = dict.fromkeys(Series.of_row(row) for row in rows)
    stand = judged_since(store, min((row["submitted_at"] for row in rows), default=math.inf))
    return _compare(store, {one: stand.get(one, []) for one in cells if one.is_judged})


def compare_runs(store: Store, earlier: str, later: str) -> Comparison:
    """Two runs of one series, by job name or its beginning: the later one against the earlier.

    How far two runs usually are apart is known from those before both. Raises UserError if there is no
    such run, if one is rejected, and if they are of different series.
    """
    rows = [store.run_named(name) for name in (earlier, later)]
    for row in rows:
        if row["state"] != "valid":
            raise UserError(f"run {row['job_name']} is rejected and not judged: {row['reason']}")
    series, other = map(Series.of_row, rows)
    names = [row["job_name"] for row in rows]
    if series != other:
        differ = ", ".join(series.differences(other))
        raise UserError(f"{' and '.join(names)} are not of one series and cannot be judged: {differ}.")
    if names[0] == names[1]:
        raise UserError(f"'{shown(earlier)}' and '{shown(later)}' are the same run, {names[0]}: name two.")
    if not series.is_judged:
        raise UserError(f"runs in mode {series.mode} are not judged: their times are not for comparison.")
    runs = judged_runs(store.results(**series.key)[::-1])
    by_name = {run.job_name: run for run in runs}
    for name in names:
        if name not in by_name:
            raise UserError(f"run {name} has no time that it could be judged by.")
    one, two = (by_name[name] for name in names)
    before = list(takewhile(lambda run: run.job_name not in names, runs))
    standing = _two_runs(before, one, two)
    found = Finding(series, two, standing, _changes(store, one, two), _fresh_runs(store, two, standing))
    return Comparison(among_all([found]))


def among_all(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings of one comparison, worst first, each with what its p-values are among all of them."""
    findings = list(findings)
    judged = [one for one in findings if one.standing.against.suffices]
    directions: tuple[Direction, ...] = ("slower", "faster")
    q_values = {
        direction: adjusted([one.standing.p_value(direction) for one in judged]) for direction in directions
    }
    known = [
        replace(one, q_values={direction: q_values[direction][place] for direction in directions})
        for place, one in enumerate(judged)
    ]
    unknown = [one for one in findings if not one.standing.against.suffices]
    return tuple(sorted((*known, *unknown), key=_worst_first))


def _compare(store: Store, cells: Mapping[Series, Sequence[Judged]]) -> Comparison:
    """Each cell by the latest of its runs, which come first."""
    began = _began(store, cells)
    findings = [
        Finding(
            series,
            one.run,
            one.standing,
            one.changes,
            _fresh_runs(store, one.run, one.standing),
            one.drift,
            began.get(one.drift.since) if one.drift else None,
            one.placement,
        )
        for series, (one, *_) in ((series, some) for series, some in cells.items() if some)
    ]
    return Comparison(among_all(findings), len(cells) - len(findings), causes(cells, began))


def _began(store: Store, cells: Mapping[Series, Sequence[Judged]]) -> dict[str, float]:
    """When the jobs were submitted with which suspicions and drifts began, in Unix time."""
    runs = [one for some in cells.values() for one in some]
    known = {one.run.job_name: one.run.row["submitted_at"] for one in runs}
    wanted = {one.began_with for one in runs} | {one.drift.since for one in runs if one.drift}
    return known | judgement_rows.submitted_at(store, wanted - known.keys())


def _changes(store: Store, before: JudgedRun, after: JudgedRun) -> tuple[str, ...]:
    return tuple(changes(*(store.record(run.job_name)["content"] for run in (before, after))))


def _fresh_runs(store: Store, newest: JudgedRun, standing: Standing) -> str | None:
    if standing.state != "suspected":
        return None
    command = repeat_command_of_record(json.loads(store.record(newest.job_name)["content"]))
    return command and f"{command} --repeats {FRESH_RUNS}"


def _two_runs(before: Sequence[JudgedRun], one: JudgedRun, two: JudgedRun) -> Standing:
    """Whether two single runs are further apart than those before them usually are."""
    usual = Baseline().with_runs(*(run.seconds for run in before))
    against = replace(usual, level=(one.seconds,))
    judged = (two.seconds,)
    if not against.suffices:
        return Standing("insufficient history", None, judged, against)
    direction = against.direction(judged)
    return Standing("unchanged" if direction is None else "suspected", direction, judged, against)


def _worst_first(finding: Finding) -> tuple[int, float]:
    order = ("slower", "faster", "unchanged", "insufficient history")
    return order.index(finding.verdict), -(finding.change_percent or 0)


def _remarks(finding: Finding) -> list[str]:
    standing = finding.standing
    if standing.state not in ("suspected", "confirmed"):
        return []
    where = finding.placement.words if finding.placement and standing.state == "confirmed" else ""
    sentence = f"{standing.direction} by {abs(finding.change_percent or 0):.1f} %, {standing.state}{where}; "
    if finding.changes:
        sentence += f"since the last usual run changed: {'; '.join(finding.changes)}"
    else:
        sentence += "nothing is recorded that changed since the last usual run"
    if standing.state == "suspected":
        sentence += f"; {FRESH_RUNS} fresh runs decide" + (
            f": {finding.fresh_runs}" if finding.fresh_runs else ""
        )
    return [sentence]


def _drift_remarks(finding: Finding) -> list[str]:
    drift = finding.drift
    if drift is None or finding.drift_since is None:
        return []
    since = datetime.fromtimestamp(finding.drift_since).astimezone()
    levels = " → ".join(f"{level.seconds:.4g} s" for level in drift.levels)
    return [
        f"drifts slowly, by {100 * drift.change:.1f} % since {since:%Y-%m-%d} ({levels}); advice, no verdict"
    ]


def _row(name: str, finding: Finding) -> dict[str, Any]:
    standing, row = finding.standing, finding.run.row
    against, over = standing.against, row["step_time_over_published"]
    known = against.suffices
    return {column.name: row.get(column.name) for column in COLUMNS} | {
        "cell": name,
        "verdict": finding.verdict,
        "suspicion": standing.state if standing.direction else "",
        "change_percent": finding.change_percent,
        "judged_s": sum(standing.judged) / len(standing.judged),
        "judged_runs": len(standing.judged),
        "judged_on": finding.run.judged_on,
        "baseline_s": against.mean if against.runs or against.level else None,
        "baseline_runs": len(against.runs),
        "minimum_detectable_change_percent": 100 * against.minimum_detectable_change if known else None,
        "p_value": standing.p_value(standing.direction or "slower") if known else None,
        "q_value": finding.q_value if standing.direction else None,
        "against_publication": None if over is None else against_publication(over),
        "changes": "; ".join(finding.changes),
        "suspected_on": finding.placement and finding.placement.suspected,
        "fresh_on": finding.placement and finding.placement.fresh_nodes,
        "drift_percent": finding.drift and 100 * finding.drift.change,
        "drift_since": finding.drift_since,
    }


def _of_runs(*names: str) -> tuple[Column, ...]:
    return tuple(columns.BY_NAME[name] for name in names)


OF_SERIES = (
    *("workload", "size", "dtype", "gpu_type", "scaling", "proxy", "cluster", "mode", "gpus"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel"),
)
"""Columns of the results that say which series it is."""

COLUMNS = (
    Column("cell", "text", "The series, short.", priority=0),
    Column(
        "verdict",
        "text",
        "`slower`, `faster`, `unchanged`, or `insufficient history`.",
        priority=0,
    ),
    Column(
        "suspicion",
        "text",
        "`suspected` until two fresh runs have come, then `confirmed` or `dismissed`.",
        priority=0,
    ),
    Column(
        "change_percent",
        "number",
        "The runs judged relative to the baseline: above 0 is slower.",
        heading="change",
        unit="%",
        priority=0,
        decimals=1,
    ),
    Column(
        "minimum_detectable_change_percent",
        "number",
        "Slowdown that one run of the cell shows in 4 of 5 cases.",
        heading="least seen",
        unit="%",
        priority=3,
        decimals=1,
    ),
    Column("judged_s", "number", "Mean of the runs judged.", heading="now", unit="s", priority=1),
    Column("judged_runs", "integer", "Runs judged: the newest, or the two that confirm.", priority=8),
    Column("baseline_s", "number", "Mean of the baseline.", heading="baseline", unit="s", priority=1),
    Column(
        "baseline_runs",
        "integer",
        f"Runs of the baseline; below {FEWEST_RUNS} nothing is judged.",
        priority=4,
    ),
    Column(
        "judged_on",
        "text",
        "What of each run is judged: the median of its steady steps, or a column of the results.",
        priority=5,
        shared=True,
    ),
    Column("p_value", "number", "How often so large a change is chance in an unchanged series."),
    Column("q_value", "number", "The same for all cells of the comparison, after Benjamini and Hochberg."),
    *_of_runs("step_time_over_published", "scaling_efficiency_percent", "gpu_hours", "queue_wait_s"),
    Column(
        "against_publication",
        "text",
        f"`passes` from {100 * PUBLISHED_THROUGHPUT:g} % of the published throughput on, else `below`.",
        heading="publication",
        priority=3,
    ),
    *_of_runs(*OF_SERIES),
    *_of_runs("job_name", "submitted_at"),
    Column("changes", "text", "What changed between the last usual run and the first that was not."),
    Column("suspected_on", "text", "Nodes of the run that raised the suspicion, as in `node[1-4]`."),
    Column("fresh_on", "text", "Nodes of the fresh runs that decide it."),
    Column(
        "drift_percent",
        "number",
        "How much slower its level is than its fastest was, where no run stood out: advice alone.",
        heading="drift",
        unit="%",
        priority=3,
        decimals=1,
    ),
    Column("drift_since", "time", "Until when it had its fastest level.", heading="drifts since"),
    Column(
        "cause", "text", "What several cells have in common that moved: a node, or `common-mode`.", priority=2
    ),
)
"""Of a comparison, in the order of CSV and JSON; what is named as in the results is of the newest run."""
