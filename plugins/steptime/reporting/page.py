"""The report: its content is collected from the store, and written as one HTML file.

Every text is escaped, and its control characters are shown as text: names and values come from jobs. The file
has no script, and its policy lets it load nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from operator import itemgetter
from typing import Any

import jinja2

from steptime import __version__
from steptime.errors import shown
from steptime.judging import findings
from steptime.judging.comparison import compare_planned, compare_since, compare_sweep_run
from steptime.judging.findings import Comparison
from steptime.judging.trend import trend
from steptime.reporting import charts
from steptime.reporting.charts import scaling_chart, trend_chart
from steptime.results import columns
from steptime.results.columns import Column, Row
from steptime.results.report import compared, notes, written
from steptime.results.store import Store

_MOST_RUNS = 1000
"""Rows of its table: thousands make a file that browsers are slow with."""
_MOST_TRENDS = 100


def _without_control_characters(value: object) -> object:
    """Return what a template prints for a value. What a macro returns is HTML, and has been here before."""
    return shown(value, at_most=None) if isinstance(value, str) and not hasattr(value, "__html__") else value


_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("steptime.reporting", package_path="."),
    autoescape=True,
    finalize=_without_control_characters,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


@dataclass(frozen=True)
class Report:
    """The content of a report."""

    of: str
    """What it is about: `sweep weekly`."""
    comparison: Comparison
    runs: Sequence[Row]
    """As people read them, rejected ones included; only the latest if there are very many."""
    scaling: Sequence[Row]
    """Runs that were measured together, and have an efficiency."""
    trends: Sequence[tuple[str, Sequence[Row]]]
    """Of each cell its name, and its runs over time."""


@dataclass(frozen=True)
class Table:
    """Cells as people read them."""

    title: str
    headings: Sequence[str]
    numeric: Sequence[bool]
    rows: Sequence[Sequence[str]]


def report_since(store: Store, since: float) -> Report:
    """Report on everything that ran since then (Unix time)."""
    runs = store.in_reading_order(since=since, include_rejected=True, limit=_MOST_RUNS)
    together = next(iter(store.measured_together(limit=1)), None)
    scaling: list[dict[str, Any]] = []
    if together is not None and together["submitted_at"] >= since:
        scaling = store.performance_of(together["together"])
    return _report(
        store,
        compare_since(store, since),
        of=f"runs since {_when(since)}",
        runs=runs,
        scaling=scaling,
    )


def report_sweep(store: Store, sweep: str) -> Report:
    """Report on the newest run of a sweep. Raises UserError if neither store nor `config/` has the sweep."""
    runs = store.newest_sweep_run(sweep)
    found = compare_sweep_run(store, runs) if runs else compare_planned(store, sweep)
    return _report(store, found, of=f"sweep {sweep}", runs=runs, scaling=runs)


def _report(
    store: Store, found: Comparison, *, of: str, runs: Sequence[Row], scaling: Sequence[Row]
) -> Report:
    listed = {row["job_name"] for row in nlargest(_MOST_RUNS, runs, key=itemgetter("submitted_at"))}
    named = list(zip(found.names, found.findings, strict=True))[:_MOST_TRENDS]
    return Report(
        of,
        found,
        [row for row in runs if row["job_name"] in listed],
        [row for row in scaling if row["scaling_efficiency_percent"] is not None],
        [(name, trend(store, one.series)) for name, one in named],
    )


def html(report: Report, now: float) -> str:
    """Render the report as one HTML file, made at `now` (Unix time)."""
    found = report.comparison
    by_model: dict[str, list[Row]] = {}
    for row in report.scaling:
        by_model.setdefault(f"{row['workload']} · {row['size']}", []).append(row)
    return _templates.get_template("report.html.j2").render(
        of=report.of,
        made=f"{_when(now)} by steptime {__version__}",
        sentence=found.sentence[:1].upper() + found.sentence[1:],
        completeness=found.completeness,
        took=found.took,
        cells=_table(found.rows, findings.COLUMNS),
        verdicts=[one.verdict.replace(" ", "-") for one in found.findings],
        remarks=found.remarks,
        scaling=[scaling_chart(model, rows) for model, rows in by_model.items()],
        trends=[trend_chart(name, rows) for name, rows in report.trends],
        trends_left_out=len(found.findings) - len(report.trends),
        runs=_table(report.runs, columns.COLUMNS),
        runs_left_out=(found.totals.runs if found.totals else 0) - len(report.runs),
        notes=notes(report.runs),
        frame=charts,
    )


def _table(rows: Sequence[Any], of: Sequence[Column]) -> Table | None:
    """As the command line prints it; None without rows."""
    if not rows:
        return None
    used, title = compared(rows, of=of)
    cells = [written(column, rows) for column in used]
    numeric = [column.kind in ("number", "integer") for column in used]
    return Table(title, [column.title for column in used], numeric, list(zip(*cells, strict=True)))


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"
