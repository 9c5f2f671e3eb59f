"""Findings: whether each cell of a comparison got slower or faster, the evidence, and a sentence about it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from steptime.judging.common_causes import CommonCause
from steptime.judging.detection import (
    CONFIRMATION_RUNS,
    FEWEST_RUNS,
    SeriesState,
)
from steptime.judging.drift import Drift
from steptime.judging.missing_cells import Completeness
from steptime.judging.onset import Onset, changed_words
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun, cell_names
from steptime.judging.verdicts import VERDICTS, SeriesVerdict, decide_verdict, describe_verdict
from steptime.measure.report import Totals
from steptime.store import columns
from steptime.store.columns import Column
from steptime.wording import counted, date


@dataclass(frozen=True)
class Finding:
    """Whether one series of runs (cell) got slower or faster as of one of its runs, with the evidence."""

    series: Series
    judgement: Judgement
    """The judgement of the run, in a comparison of the newest one."""
    q_value: float = 1.0
    """The p-value of the change, adjusted for the cells compared with it; 1 without a change."""
    confirmation_runs: str | None = None
    """The command for the runs that confirm or dismiss a suspicion; None if nothing is suspected, or if the
    current recipes would no longer give the run."""

    silenced_until: float | None = None
    """Unix time until which the incident of its change is silenced; None if it is not."""
    harmless: tuple[str, ...] = ()
    """Those of the changes with which the level began that most usual cells of its cluster have, too."""

    def moved_by(self, cause: CommonCause) -> Self:
        """Return the finding of a cell that moved with others by a common cause: it jumped with them."""
        onset = self.onset
        if onset is None or (onset.weekly is None and onset.perhaps_weekly is None):
            return self
        if onset.weekly is None:
            clear = replace(onset, perhaps_weekly=None)
            return replace(self, judgement=replace(self.judgement, onset=clear))
        began = min(max(cause.since, onset.earliest), onset.latest)
        changed = (cause.name,) if cause.kind == "change" else ()
        jumped = replace(onset, at=began, weekly=None)
        return replace(self, judgement=replace(self.judgement, onset=jumped, changes=changed))

    @property
    def run(self) -> SeriesRun:
        """The judged run."""
        return self.judgement.run

    @property
    def series_state(self) -> SeriesState:
        """Where the series stood after the run: unchanged, suspected, confirmed, …"""
        return self.judgement.series_state

    @property
    def onset(self) -> Onset | None:
        """When the suspected or confirmed level began; None if nothing is suspected or confirmed."""
        return self.judgement.onset

    @property
    def drift(self) -> Drift | None:
        """A slow drift, which is advice only; None if there is none or if it is a step, which is reported."""
        return None if self.judgement.is_step else self.judgement.drift

    @property
    def verdict(self) -> SeriesVerdict:
        """What people are told about the series: see `judging.verdicts.decide_verdict`."""
        return decide_verdict(self.series_state, self.q_value)

    @property
    def told(self) -> str:
        """Verdict and state in words: `slower, confirmed`; one word if both are the same."""
        return describe_verdict(self.verdict, self.series_state.state)

    @property
    def confirmation_runs_wanted(self) -> int:
        """How many more runs are needed to confirm or dismiss a suspected change; 0 if nothing is suspected.

        Suspicions that `verdict` reports as `unchanged` count too: otherwise they would have to wait for the
        next scheduled runs.
        """
        suspicion = self.series_state.suspicion
        return 0 if suspicion is None else CONFIRMATION_RUNS - max(0, len(suspicion.since) - 1)

    @property
    def changed(self) -> bool:
        """Whether the series is reported as slower or faster."""
        return self.verdict in ("slower", "faster")

    @property
    def is_silenced(self) -> bool:
        """Whether the series is reported as slower or faster, but counts apart: its incident is silenced."""
        return self.changed and self.silenced_until is not None

    @property
    def since(self) -> float | None:
        """Unix time at which the slower or faster level, or the drift, began; None if there is neither."""
        if self.onset is not None:
            return self.onset.at
        return None if self.drift is None else self.drift.began_at

    @property
    def verdict_columns(self) -> dict[str, Any]:
        """The verdict and what it rests on, by column: those of `VERDICT_COLUMNS`, and `since`."""
        against = self.series_state.against
        return {
            "verdict": self.verdict,
            "series_state": self.series_state.state,
            "change_percent": self.change_percent,
            "baseline_s": against.mean if against.runs or against.level else None,
            "minimum_detectable_change_percent": (
                100 * against.minimum_detectable_change if against.suffices else None
            ),
            "since": self.since,
        }

    @property
    def changes_in_words(self) -> str:
        """What changed when the suspected or confirmed level began, as text; empty if nothing did."""
        return changed_words(self.judgement.changes, self.onset)

    @property
    def evidence(self) -> str:
        """How a slowdown or speed-up was confirmed, what changed then, and which nodes or ranks differ."""
        state, placement = self.series_state, self.judgement.placement
        is_decided = state.state == "confirmed" and state.suspicion is None
        where = placement.words if placement and is_decided else ""
        if len(state.judged) > CONFIRMATION_RUNS:
            where = f" by all {len(state.judged)} runs since then"
        changed = self.changes_in_words
        then = f"changed then: {changed}" if changed else "nothing is recorded that changed then"
        if self.onset is not None and self.onset.weekly is not None:
            then = f"it {self.onset.drift_words}, so it is no single change"
        elif self.onset is not None and self.onset.perhaps_words:
            then += f"; it may be {self.onset.perhaps_words} instead"
        if self.harmless:
            then += f"; most cells that are as usual have {' and '.join(self.harmless)}, too"
        slow = self.run.row["stragglers"]
        return f"{state.state}{where}; {then}{f'; {slow}' if slow else ''}"

    @property
    def remarks(self) -> list[str]:
        """Sentences on a slowdown or speed-up: how much, since when, what changed, what to run."""
        return [*_remarks(self), *_drift_remarks(self)]

    @property
    def change_percent(self) -> float | None:
        """Change of the judged runs against the baseline in percent, above 0 is slower; None if unknown."""
        return None if self.series_state.change is None else 100 * self.series_state.change


@dataclass(frozen=True)
class Comparison:
    """The findings about several series of runs (cells), worst first, with common causes and totals."""

    findings: tuple[Finding, ...]
    causes: tuple[CommonCause, ...] = ()
    """What cells that got slower or faster have in common."""
    totals: Totals | None = None
    """Number and cost of all runs; None if it is not computed, as for two named runs."""
    cost: str = ""
    """GPU-hours by cluster, beside those of an equally long time before; empty if unknown."""
    goodput: str = ""
    """What the GPU-hours of the jobs were spent on; empty if unknown."""
    new_levels: int = 0
    """Number of cells that got faster in the period and stayed so, which is their usual level now."""
    completeness: Completeness | None = None
    """Which planned cells are missing and why; None if it is not computed, as for two named runs."""
    recent: Mapping[Series, Sequence[float]] = field(default_factory=dict)
    """The seconds of the newest runs of each series, oldest first; empty if they were not read."""

    def only(self, values: Mapping[str, Any]) -> Self:
        """Return the comparison with only the series with these values, and causes that explain any of them.

        Totals, cost, goodput and completeness remain those of all series.
        """
        findings = tuple(finding for finding in self.findings if finding.series.has(values))
        series = {finding.series for finding in findings}
        causes = tuple(cause for cause in self.causes if not series.isdisjoint(cause.about))
        return replace(self, findings=findings, causes=causes)

    @property
    def took(self) -> str:
        """A sentence with the number of cells and the number and cost of their runs; empty if unknown."""
        if self.totals is None:
            return ""
        return f"{counted(self.cells, 'cell')} · {self.totals.sentence}"

    @property
    def cells(self) -> int:
        """Number of series (cells) with a run to judge."""
        return len(self.findings)

    @property
    def series_states(self) -> dict[Series, SeriesState]:
        """The state of each series: unchanged, suspected, confirmed, …"""
        return {finding.series: finding.series_state for finding in self.findings}

    @property
    def confirmed_slower(self) -> bool:
        """Whether any series is confirmed as slower, silenced ones aside."""
        return any(
            finding.verdict == "slower"
            and finding.series_state.state == "confirmed"
            and not finding.is_silenced
            for finding in self.findings
        )

    @property
    def names(self) -> list[str]:
        """The name of each finding's cell: its label, and what tells apart cells that share one."""
        return cell_names([finding.series.key for finding in self.findings])

    @property
    def sentence(self) -> str:
        """Counts of slower, faster, unchanged and unknown (too little history) cells, and the worst cell."""
        counts = Counter(finding.verdict for finding in self.findings if not finding.is_silenced)
        parts = [f"{counts[verdict]} {verdict}" for verdict in ("slower", "faster", "unchanged")]
        if unknown := counts["insufficient history"]:
            parts.append(f"{unknown} with insufficient history")
        if silenced := [
            finding.silenced_until
            for finding in self.findings
            if finding.silenced_until and finding.is_silenced
        ]:
            parts.append(f"{len(silenced)} silenced until {date(min(silenced))}")
        sentence = f"{counted(self.cells, 'cell')}: {', '.join(parts)}"
        if self.new_levels:
            sentence += f"; {self.new_levels} at a new, faster level"
        if counts["slower"]:
            worst = self.findings[0]
            sentence += f"; worst {self.names[0]} {worst.change_percent:+.1f} %, {worst.series_state.state}"
        if drifting := sum(finding.drift is not None for finding in self.findings):
            sentence += f"; {drifting} drift{'s' if drifting == 1 else ''} slowly"
        if waiting := sum(finding.confirmation_runs_wanted > 0 for finding in self.findings):
            sentence += f"; {waiting} wait{'s' if waiting == 1 else ''} for confirmation runs"
        return sentence

    @property
    def remarks(self) -> list[str]:
        """A sentence for each common cause, then sentences on each cell that got slower or faster."""
        return [cause.sentence for cause in self.causes] + [
            f"{name}: {remark}"
            for name, finding in zip(self.names, self.findings, strict=True)
            for remark in finding.remarks
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each finding, with the columns `COLUMNS`."""
        return [
            _row(name, finding) | {"cause": self._cause_name(finding.series)}
            for name, finding in zip(self.names, self.findings, strict=True)
        ]

    def _cause_name(self, series: Series) -> str:
        return next((cause.name for cause in self.causes if series in cause.cells), "")


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings worst first: slower, faster, silenced, unchanged ones, those of too few runs."""
    return tuple(sorted(findings, key=_worst_first))


def _worst_first(finding: Finding) -> tuple[int, bool, float]:
    rank = VERDICTS.index("faster" if finding.is_silenced else finding.verdict)
    return rank, finding.is_silenced, -(finding.change_percent or 0)


def _remarks(finding: Finding) -> list[str]:
    series_state = finding.series_state
    if series_state.state not in ("suspected", "confirmed"):
        return []
    words = [f"{series_state.direction} by {abs(finding.change_percent or 0):.1f} %"]
    if finding.onset is not None:
        words.append(finding.onset.words)
    if finding.judgement.earlier:
        first = finding.judgement.earlier[0]
        before = 100 * (series_state.against.mean / first.usual_s - 1)
        words.append(f"on top of {before:.1f} % since {date(first.since)}")
    sentence = f"{' '.join(words)}, {finding.evidence}"
    if (suspicion := series_state.suspicion) is not None:
        if suspicion is not series_state:
            sentence += f"; by {100 * (suspicion.change or 0):.1f} % more in the newest run"
        sentence += f"; {CONFIRMATION_RUNS} confirmation runs decide" + (
            f": {finding.confirmation_runs}" if finding.confirmation_runs else ""
        )
    return [sentence]


def _drift_remarks(finding: Finding) -> list[str]:
    drift = finding.drift
    if drift is None:
        return []
    levels = " → ".join(f"{level.seconds:.4g} s" for level in drift.levels)
    by = f"by {100 * drift.change:.1f} % since {date(drift.began_at)}"
    return [f"drifts slowly, {by} ({levels}); advice, no verdict"]


def _row(name: str, finding: Finding) -> dict[str, Any]:
    series_state, row = finding.series_state, finding.run.row
    known, placement = series_state.against.suffices, finding.judgement.placement
    return (
        {column.name: row.get(column.name) for column in COLUMNS}
        | finding.verdict_columns
        | {
            "cell": name,
            "silenced_until": finding.silenced_until if finding.is_silenced else None,
            "judged_s": sum(series_state.judged) / len(series_state.judged),
            "judged_runs": len(series_state.judged),
            "judged_on": finding.run.judged_on,
            "baseline_runs": len(series_state.against.runs),
            "p_value": series_state.p_value(series_state.direction or "slower") if known else None,
            "q_value": finding.q_value if series_state.direction else None,
            "step_time_over_published": (
                row["step_time_over_published"] if finding.run.metric == "step_time_s" else None
            ),
            "changes": finding.changes_in_words,
            "suspected_on": placement and placement.suspected,
            "confirmation_on": placement and placement.confirmation_nodes,
            "drift_percent": finding.drift and 100 * finding.drift.change,
            "since_earliest": finding.onset and finding.onset.earliest,
            "since_latest": finding.onset and finding.onset.latest,
        }
    )


def _run_columns(*names: str) -> tuple[Column, ...]:
    return tuple(columns.BY_NAME[name] for name in names)


COLUMNS = (
    Column("cell", "text", "The series, short.", priority=0),
    Column(
        "verdict",
        "text",
        "What is reported: `slower`, `faster`, `unchanged`, or `insufficient history`.",
        priority=0,
    ),
    Column(
        "series_state",
        "text",
        "Where the series stands: `insufficient history`, `unchanged`, `suspected` until two confirmation "
        "runs have come, then `confirmed` or `dismissed`.",
        heading="state",
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
        signed=True,
    ),
    Column(
        "minimum_detectable_change_percent",
        "number",
        "Slowdown that one run of the cell shows in 4 of 5 cases.",
        heading="detectable",
        unit="%",
        priority=3,
        decimals=1,
    ),
    Column("judged_s", "number", "Mean of the runs judged.", heading="now", unit="s", priority=1),
    Column(
        "judged_runs",
        "integer",
        "Runs judged: the newest, the one that raised an open suspicion, or the two that decided it.",
        priority=8,
    ),
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
    *_run_columns("step_time_over_published", "against_publication"),
    *_run_columns("checkpoint_blocked_s", "checkpoint_save_s", "checkpoint_load_s"),
    *_run_columns("scaling_efficiency_percent", "gpu_hours", "queue_wait_s"),
    # The name of the cell has the scale.
    *(
        replace(column, priority=column.priority or None)
        for column in _run_columns(*columns.series_columns())
    ),
    *_run_columns("job_name"),
    replace(columns.BY_NAME["submitted_at"], priority=6),
    Column("since", "time", "When the level began, or the drift.", heading="since", priority=0),
    Column("since_earliest", "time", "The level began then or later, at 95 % probability."),
    Column("since_latest", "time", "The level began then or earlier, at 95 % probability."),
    Column("silenced_until", "time", "Its incident is silenced until then, so the cell counts apart."),
    Column("changes", "text", "What changed at the run with which the level began."),
    Column("suspected_on", "text", "Nodes of the run that raised the suspicion, as in `node[1-4]`."),
    Column("confirmation_on", "text", "Nodes of the confirmation runs that decide it."),
    Column(
        "drift_percent",
        "number",
        "How much slower its level is than its fastest was, although no run stood out: advice alone.",
        heading="drift",
        unit="%",
        priority=3,
        decimals=1,
    ),
    Column(
        "cause",
        "text",
        "What several cells that moved have in common: a change, a node, or `whole cluster`.",
        priority=0,
    ),
)
"""Columns of a comparison, in the order of CSV and JSON; those of results are of the newest run."""

BY_NAME = {column.name: column for column in COLUMNS}

VERDICT_COLUMNS = tuple(
    BY_NAME[name]
    for name in (
        *("verdict", "series_state", "change_percent", "baseline_s"),
        "minimum_detectable_change_percent",
    )
)
"""The verdict with the numbers that it rests on: the same columns in every table, file and export."""
