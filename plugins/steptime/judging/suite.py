"""Suites: whether each cell of a sweep reaches 95 % of its published throughput.

A cell's throughput is the mean over its valid runs, with a confidence interval. Its verdict is
`passes` if the whole interval is at or above the limit, and `below` if the whole interval is below it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from steptime.judging.detection import Baseline, SeriesState
from steptime.judging.missing_cells import MissingCell, completeness
from steptime.judging.series import Series
from steptime.recipes.models import Mode, Run
from steptime.recipes.node_lists import fold_nodes
from steptime.recipes.published import (
    PUBLISHED_THROUGHPUT,
    list_references,
    load_reference,
    published_performance,
)
from steptime.recipes.sweep_planning import expand_cell, plan_sweep
from steptime.recipes.sweeps import Sweep, load_sweep
from steptime.recipes.workloads import load_workload
from steptime.store import columns
from steptime.store.columns import Column, Row
from steptime.store.run_queries import Store
from steptime.wording import counted

CONFIDENCE = 0.95
FEWEST_RUNS = 2
"""Fewest runs of a cell for an interval."""
_USUAL_REPEATS = 3
_MOST_REPEATS = 30
"""Most runs of a cell that are proposed to decide it."""


@dataclass(frozen=True)
class SuiteCell:
    """One planned run of a sweep with its results, judged against the published step time."""

    run: Run
    """The run as planned today."""
    runs: tuple[Row, ...]
    """Its valid runs, newest first."""
    baseline_s: float | None
    """Published step time; None if there is none."""
    source: str
    """The publication of the step time, or why there is none."""
    missing: MissingCell | None = None
    """Why it has no valid run, or why its newest attempts failed; None if neither is so."""

    @cached_property
    def series(self) -> Series:
        """The series that the cell's runs belong to."""
        return Series.from_run(self.run)

    @property
    def name(self) -> str:
        """Workload and label, as in `llama3.1-26.08 70b·fp8_cs·512`."""
        return f"{self.run.recipe.workload} {self.series.label}"

    @cached_property
    def verdict(self) -> str:
        """Whether the cell reaches 95 % of its published throughput: one of `VERDICTS`."""
        if not self.runs:
            return "failed" if self.missing is not None and self.missing.attempts else "missing"
        if self.baseline_s is None:
            return "no baseline"
        return (None if self.percents is None else _decided(*self.percents)) or "undecided"

    @property
    def seconds(self) -> float | None:
        """Mean step time of the valid runs in seconds; None if there are none."""
        return fmean(row["step_time_mean_s"] for row in self.runs) if self.runs else None

    @property
    def percent(self) -> float | None:
        """Mean throughput of its runs in percent of the published one; None if either is unknown."""
        return fmean(self._percents.runs) if self._percents.runs else None

    @property
    def percents(self) -> tuple[float, float] | None:
        """Confidence interval of `percent`; None with fewer than `FEWEST_RUNS` runs or without a baseline."""
        if len(self._percents.runs) < FEWEST_RUNS:
            return None
        low, high = self._percents.interval(CONFIDENCE)
        return max(0.0, low), high

    @property
    def repeats_wanted(self) -> int | None:
        """How many more runs would likely decide the verdict; 0 if it is decided, None if over 30 in all."""
        if self.verdict != "undecided":
            return 0
        if len(self.runs) < FEWEST_RUNS:
            return _USUAL_REPEATS - len(self.runs)
        for number in range(len(self.runs) + 1, _MOST_REPEATS + 1):
            if _decided(*self._percents.interval(CONFIDENCE, runs=number)):
                return number - len(self.runs)
        return None

    @property
    def remark(self) -> str:
        """What to do or to know about the cell; empty if it passed and no later run failed."""
        if not self.runs:
            return self.missing.sentence if self.missing else ""
        match self.verdict:
            case "below":
                said = f"it reaches {self._in_words}"
            case "undecided":
                said = f"it reaches {self._in_words}; {self._wanted}"
            case "no baseline":
                said = f"no step time is published for it: {self.source}"
            case _:
                said = ""
        since = f"since then it {self.missing.sentence}" if self.missing else ""
        return "; ".join(filter(None, (said, since)))

    @property
    def _in_words(self) -> str:
        between = "" if self.percents is None else " ({:.1f} to {:.1f} %)".format(*self.percents)
        runs = counted(len(self.runs), "run")
        return f"{self.percent:.1f} % of the baseline{between} in {runs}"

    @property
    def _wanted(self) -> str:
        wanted = self.repeats_wanted
        if wanted is None:
            return f"this is so near to {_LIMIT_PERCENT:g} % that {_MOST_REPEATS} runs would not decide it"
        return f"{wanted} more repeat{' decides' if wanted == 1 else 's decide'} it"

    @cached_property
    def _percents(self) -> Baseline:
        """Throughput of each run in percent of the published one; none without a baseline."""
        if self.baseline_s is None:
            return Baseline()
        return Baseline(tuple(100 * self.baseline_s / row["step_time_mean_s"] for row in self.runs))


def _decided(low: float, high: float) -> str | None:
    """Return the verdict for an interval in percent; None if the limit is inside of it."""
    if low >= _LIMIT_PERCENT:
        return "passes"
    return "below" if high < _LIMIT_PERCENT else None


_LIMIT_PERCENT = 100 * PUBLISHED_THROUGHPUT
VERDICTS = ("passes", "below", "undecided", "no baseline", "failed", "missing")


@dataclass(frozen=True)
class Suite:
    """A sweep whose cells (planned runs) are judged against published step times, with the runs so far."""

    sweep: Sweep
    since: float | None
    """Unix time from which on runs count; None if all do."""
    cells: tuple[SuiteCell, ...]
    rejected: tuple[Row, ...]
    """Rejected runs of its cells, which do not count."""

    @property
    def runs(self) -> list[Row]:
        """All runs of the suite's cells, rejected ones included, oldest first."""
        every = (*(row for cell in self.cells for row in cell.runs), *self.rejected)
        return sorted(every, key=lambda row: row["submitted_at"])

    def find_cell(self, row: Row) -> SuiteCell:
        """Return the cell that a run belongs to, from its row of the store."""
        return next(cell for cell in self.cells if cell.series == Series.from_row(row))

    @property
    def sentence(self) -> str:
        """Count of cells by verdict: `3 of 5 cells pass at 95 % of the baseline; 1 below, 1 missing`."""
        counts = Counter(cell.verdict for cell in self.cells)
        others = ", ".join(f"{counts[one]} {one}" for one in VERDICTS[1:] if counts[one])
        passing = (
            f"{counts['passes']} of {len(self.cells)} cells pass at {_LIMIT_PERCENT:g} % of the baseline"
        )
        return f"{passing}; {others}" if others else passing

    @property
    def lacking(self) -> list[str]:
        """A sentence for each cell that does not pass, or whose newest attempts failed."""
        return [
            f"{cell.name}: {f'{cell.verdict}, ' if cell.runs else ''}{cell.remark}"
            for cell in self.cells
            if cell.remark
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell, with the columns `COLUMNS`."""
        return [
            {
                **cell.run.recipe.identity,
                "cell": cell.name,
                "verdict": cell.verdict,
                "baseline_percent": cell.percent,
                "baseline_low_percent": cell.percents and cell.percents[0],
                "baseline_high_percent": cell.percents and cell.percents[1],
                "runs": len(cell.runs),
                "step_time_mean_s": cell.seconds,
                "baseline_s": cell.baseline_s,
                "source": cell.source,
            }
            for cell in self.cells
        ]


def judge_suite(store: Store, name: str, since: float | None = None) -> Suite:
    """Judge each cell of a sweep in mode `performance` by its valid runs, against its published step time.

    Runs count whichever DAG or command started them, from `since` (Unix time) on; by default from the first
    job of the sweep's newest DAG run, or all runs if there is none. Raises UserError if the sweep does not
    exist or has a mistake.
    """
    sweep = load_sweep(name)
    # Whether it can run today does not matter here.
    planned = [run for cell in plan_sweep(sweep, lambda _: None).cells for run in expand_cell(cell)]
    cells = {Series.from_run(run): run for run in reversed(planned) if run.mode is Mode.PERFORMANCE}
    if since is None:
        newest = store.newest_sweep_run(name)
        since = min((row["submitted_at"] for row in newest), default=None)
        if newest:
            lost = store.lost_jobs(dag_id=newest[0]["dag_id"], dag_run_id=newest[0]["dag_run_id"])
            since = min([since, *(job["created_at"] for job in lost)])
    ran = [row for row in store.results(include_rejected=True, since=since) if Series.from_row(row) in cells]
    valid: dict[Series, list[Row]] = {series: [] for series in cells}
    for row in ran:
        if row["state"] == "valid" and row["step_time_mean_s"]:
            valid[Series.from_row(row)].append(row)
    known = {series: SeriesState() for series, rows in valid.items() if rows}
    lacking = completeness(store, known, ran, planned=cells, lost=store.lost_jobs(since=since))
    missing = {cell.series: cell for cell in (*lacking.not_run, *lacking.failed, *lacking.failed_since)}
    return Suite(
        sweep,
        since,
        tuple(
            SuiteCell(run, tuple(valid[series]), *_baseline(run), missing.get(series))
            for series, run in reversed(cells.items())
        ),
        tuple(row for row in ran if row["state"] != "valid"),
    )


def _baseline(run: Run) -> tuple[float | None, str]:
    """Return the published step time of a run and its publication, or None and why there is none."""
    workload = run.recipe.workload
    file = f"config/references/{workload}.yaml"
    published = published_performance(run.recipe)
    if published is not None and published.step_time is not None:
        return published.step_time, load_reference(workload).title
    has = "has no row of it" if workload in list_references() else "is not there"
    return None, f"{load_workload(workload).document} prints none, and {file} {has}"


def made_with(store: Store, suite: Suite) -> list[dict[str, Any]]:
    """Return the images, commits, versions and nodes of the suite's runs, each with the number of runs.

    The rows have the columns `MADE_WITH`.
    """
    rows = {row["job_name"]: row for row in suite.runs}
    counts: Counter[tuple[str, str]] = Counter()
    for name, text in store.records([*rows]).items():
        row, file = rows[name], f"config/references/{rows[name]['workload']}.yaml"
        cell = suite.find_cell(row)
        known = {} if cell.baseline_s is None else {"baseline": f"{cell.source} ({file})"}
        counts.update((_made_with(row, json.loads(text)) | known).items())
    order = list(dict.fromkeys(what for what, _ in counts))
    return [
        {"what": what, "value": value, "runs": number}
        for (what, value), number in sorted(
            counts.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
    ]


def _made_with(row: Row, record: Mapping[str, Any]) -> dict[str, str]:
    provenance, recipe = record["provenance"], record["run"]["recipe"]
    staged, launch = provenance["staged"], recipe["model"].get("launch") or {}
    unclean = {False: " with uncommitted changes"}.get(provenance["git_clean"], "")
    nodes = len(record["nodes"])
    values = {
        "release": load_workload(row["workload"]).document,
        "Megatron-Bridge commit": launch.get("commits", {}).get(recipe["image"]),
        "image": staged["image"],
        "image digest": staged.get("image_digest"),
        "image file, SHA-256": staged.get("image_sha256"),
        "steptime": provenance["steptime_version"],
        "commit of steptime": provenance["git_commit"] and f"{provenance['git_commit']}{unclean}",
        **{f"version of {name}": str(version) for name, version in record["versions"].items()},
        "topology": f"{row['gpus']} × {row['gpu_type']} of {row['cluster']}"
        + (f": {counted(nodes, 'node')}, {row['gpus'] // nodes} on each" if nodes else ""),
        "nodes": fold_nodes(record["nodes"]),
        "imported from": row["origin"],
    }
    return {what: value for what, value in values.items() if value}


MADE_WITH = (
    Column("what", "text", "Release, image, commit, version or topology.", heading="", priority=0),
    Column("value", "text", "What it was.", heading="", priority=0),
    Column("runs", "integer", "Of how many runs.", priority=0),
)


def _percent(name: str, description: str, heading: str, priority: int) -> Column:
    return Column(name, "number", description, heading=heading, unit="%", priority=priority, decimals=1)


COLUMNS = (
    Column("cell", "text", "The workload, and the series, short.", priority=0),
    Column("verdict", "text", f"One of {', '.join(f'`{verdict}`' for verdict in VERDICTS)}.", priority=0),
    _percent("baseline_percent", "Throughput relative to the published one.", "of baseline", 0),
    _percent("baseline_low_percent", "Low end of its 95 % interval over the runs.", "low", 1),
    _percent("baseline_high_percent", "High end of it.", "high", 1),
    Column("runs", "integer", "Valid runs.", priority=1),
    columns.BY_NAME["step_time_mean_s"],
    Column("baseline_s", "number", "Published step time.", heading="baseline", unit="s", priority=1),
    columns.BY_NAME["gpu_type"],
    columns.BY_NAME["gpus"],
    Column("source", "text", "What publishes the baseline, or would.", priority=2, shared=True),
)
"""Columns of a suite's cells."""
