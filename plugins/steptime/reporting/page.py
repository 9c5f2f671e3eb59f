"""The report: its content is collected from the store, and written as one HTML file.

Every text is escaped, and its control characters are shown as text: names and values come from jobs. The file
has no script, and its policy lets it load nothing.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from steptime.judging.trend import passes_until_s, shown_range, trend
from steptime.results import columns
from steptime.results.columns import Column, Row, of_series
from steptime.results.report import compared, notes, written
from steptime.results.store import Store

Point = tuple[float, float]

WIDTH, HEIGHT = 620, 230
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 26
_COLOURS = 8
_MOST_RUNS = 1000
"""Rows of its table: thousands make a file that browsers are slow with."""
_MOST_TRENDS = 100


@dataclass(frozen=True)
class Line:
    """A line through points, or the border of an area."""

    kind: str
    """Its class in the style sheet."""
    path: str
    """As SVG has it."""


@dataclass(frozen=True)
class Mark:
    """A point with the text that those see who stay on it."""

    kind: str
    x: float
    y: float
    text: str
    shape: str = "dot"
    """`dot`, `diamond`, `triangle`, `cross`, or `repeat` for a small one."""


@dataclass(frozen=True)
class Upright:
    """A vertical line: an event, an accepted level, or an interval."""

    kind: str
    x: float
    top: float
    bottom: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart with its axes, in pixels of a picture of `WIDTH` and `HEIGHT`."""

    title: str
    remark: str
    described: str
    """For people who do not see it, and have it read out."""
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    lines: Sequence[Line] = ()
    marks: Sequence[Mark] = ()
    uprights: Sequence[Upright] = ()
    legend: Sequence[tuple[str, str]] = ()
    """The classes of lines with what they are."""


@dataclass(frozen=True)
class _Axes:
    """Where a value lies in the picture; `along` is how far along the x axis."""

    along: Callable[[float], float]
    low: float
    high: float

    def x(self, value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * self.along(value), 1)

    def y(self, value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low), 1)

    def line(self, kind: str, points: Iterable[Point], *, end: str = "") -> Line:
        return Line(kind, "M" + "L".join(f"{self.x(x)},{self.y(y)}" for x, y in points) + end)

    def y_ticks(self) -> list[tuple[float, str]]:
        return [(self.y(value), f"{value:.6g}") for value in _round_values(self.low, self.high)]


def trend_chart(title: str, rows: Sequence[Row]) -> Chart:
    """Draw a series over dates, from rows of `judging.trend`: what was usual, changed, and published."""
    first, last = rows[0]["submitted_at"], rows[-1]["submitted_at"]
    published = rows[-1]["published_step_time_s"]
    low, high, near = shown_range(rows)
    axes = _Axes(lambda at: (0.02 + 0.96 * (at - first) / (last - first)) if last > first else 0.5, low, high)
    levels = {"published": published if near else None, "passes-until": passes_until_s(rows[-1])}
    lines = [axes.line(kind, points) for kind, points in _lines(rows, levels, low, high)]
    is_far = published is not None and not near
    far = f"published, {published:.4g} s, is too far away for this picture" if is_far else ""
    return Chart(
        title,
        far,
        "Seconds of the runs, oldest first: " + ", ".join(f"{row['judged_s']:.4g}" for row in rows),
        [(axes.x(at), _day(at)[:-5]) for at in _dates(first, last)],
        axes.y_ticks(),
        [*_band(axes, rows), *lines],
        [_run_mark(axes, row) for row in rows],
        [_upright(axes, row, kind) for kind in ("changes", "accepted") for row in rows if row[kind]],
        [(line.kind, line.kind.replace("-", " ")) for line in lines if line.kind != "runs"],
    )


def _lines(
    rows: Sequence[Row], levels: Mapping[str, float | None], low: float, high: float
) -> Iterator[tuple[str, list[Point]]]:
    yield "runs", _points(rows, "judged_s")
    for kind, column in (("baseline", "baseline_s"), ("level", "level_s")):
        if points := _points(rows, column):
            yield kind, points
    for kind, seconds in levels.items():
        if seconds is not None and low < seconds < high:
            yield kind, [(row["submitted_at"], seconds) for row in (rows[0], rows[-1])]


def _points(rows: Iterable[Row], column: str) -> list[Point]:
    return [(row["submitted_at"], row[column]) for row in rows if row[column] is not None]


def _band(axes: _Axes, rows: Sequence[Row]) -> list[Line]:
    border = [*_points(rows, "high_s"), *reversed(_points(rows, "low_s"))]
    return [axes.line("band", border, end="Z")] if border else []


def _run_mark(axes: _Axes, row: Row) -> Mark:
    change = "" if row["change_percent"] is None else f", {row['change_percent']:+.1f} %"
    stands = ", ".join(filter(None, (row["verdict"], row["suspicion"])))
    return Mark(
        row["verdict"].replace(" ", "-"),
        axes.x(row["submitted_at"]),
        axes.y(row["judged_s"]),
        f"{_day(row['submitted_at'])}: {row['judged_s']:.4g} s{change}: {stands} ({row['job_name']})",
        "diamond" if row["suspicion"] == "confirmed" else "dot",
    )


def _upright(axes: _Axes, row: Row, kind: str) -> Upright:
    text = f"{_day(row['submitted_at'])}, {'changed' if kind == 'changes' else 'accepted'}: {row[kind]}"
    return Upright(kind, axes.x(row["submitted_at"]), TOP, HEIGHT - BOTTOM, text)


def scaling_chart(model: str, rows: Sequence[Row]) -> Chart:
    """Draw efficiency over GPUs of one model, from rows of the store that have one."""
    scales = sorted({row["gpus"] for row in rows})
    ends = [
        row[f"scaling_efficiency_{end}percent"]
        for row in rows
        for end in ("", "low_", "high_")
        if row[f"scaling_efficiency_{end}percent"] is not None
    ]
    wide = math.log2(scales[-1] / scales[0]) or 1
    axes = _Axes(
        lambda gpus: 0.04 + 0.92 * math.log2(gpus / scales[0]) / wide,
        min(90, 5 * math.floor(min(ends) / 5)),
        max(105, 5 * math.ceil(max(ends) / 5)),
    )
    lines = [axes.line("ideal", [(scales[0], 100), (scales[-1], 100)])]
    marks: list[Mark] = []
    uprights: list[Upright] = []
    legend = []
    for place, (name, some) in enumerate(_by_name(rows).items()):
        kind = f"series-{place % _COLOURS + 1}"
        means = _means(some)
        lines.append(axes.line(f"{kind} thick", means.items()))
        marks += _efficiency_marks(axes, kind, name, some, means)
        uprights += _intervals(axes, kind, some)
        legend.append((kind, name))
    unit = "ranks" if all(row["gpu_type"] == "cpu" for row in rows) else "GPUs"
    return Chart(
        model,
        f"over {unit}",
        "; ".join(
            f"{name}: "
            + ", ".join(f"{percent:.1f} % at {gpus} {unit}" for gpus, percent in _means(some).items())
            for name, some in _by_name(rows).items()
        ),
        [(axes.x(gpus), f"{gpus:,}") for gpus in scales],
        axes.y_ticks(),
        lines,
        marks,
        uprights,
        legend,
    )


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each line, by what they differ in."""
    apart = [name for name in of_series("variant") if any(row[name] != rows[0][name] for row in rows)] or [
        "dtype"
    ]
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["gpus"]):
        words = (("proxy" if row[name] else "") if name == "proxy" else str(row[name]) for name in apart)
        found.setdefault(" · ".join(filter(None, words)), []).append(row)
    return found


def _means(rows: Sequence[Row]) -> dict[int, float]:
    """The efficiency of each scale, over its repeats."""
    by_scale: dict[int, list[float]] = {}
    for row in rows:
        by_scale.setdefault(row["gpus"], []).append(row["scaling_efficiency_percent"])
    return {gpus: statistics.fmean(some) for gpus, some in by_scale.items()}


def _efficiency_marks(
    axes: _Axes, kind: str, name: str, rows: Sequence[Row], means: Mapping[int, float]
) -> Iterator[Mark]:
    for row in rows:
        percent = row["scaling_efficiency_percent"]
        text = f"{name}: {percent:.1f} % at {row['gpus']} ({row['job_name']})"
        yield Mark(kind, axes.x(row["gpus"]), axes.y(percent), text, "repeat")
    below = {row["gpus"] for row in rows if row["against_publication"] == "below"}
    for gpus, percent in means.items():
        text = f"{name}: {percent:.1f} % at {gpus}" + (", below the publication" if gpus in below else "")
        yield Mark(kind, axes.x(gpus), axes.y(percent), text, "cross" if gpus in below else "dot")
    for gpus, percent in _published(rows).items():
        if axes.low <= percent <= axes.high:
            text = f"{name}, published: {percent:.1f} % at {gpus}"
            yield Mark(kind, axes.x(gpus), axes.y(percent), text, "triangle")


def _published(rows: Sequence[Row]) -> dict[int, float]:
    """What the publication has at the same scales, relative to its own smallest of them."""
    rates = {
        row["gpus"]: row["tokens_per_s_per_gpu"] * row["step_time_over_published"]
        for row in rows
        if row["step_time_over_published"] is not None
    }
    return {gpus: 100 * rate / rates[min(rates)] for gpus, rate in rates.items()} if len(rates) > 1 else {}


def _intervals(axes: _Axes, kind: str, rows: Sequence[Row]) -> Iterator[Upright]:
    for row in {row["gpus"]: row for row in rows}.values():
        low, high = (row[f"scaling_efficiency_{end}_percent"] for end in ("low", "high"))
        if low is not None:
            text = f"between {low:.1f} and {high:.1f} %"
            yield Upright(f"interval {kind}", axes.x(row["gpus"]), axes.y(high), axes.y(low), text)


def _round_values(low: float, high: float) -> list[float]:
    """Some five values between two: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _dates(first: float, last: float) -> list[float]:
    return [first + (last - first) * part / 4 for part in range(5)] if last > first else [first]


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%d %b %Y}"


def _without_control_characters(value: object) -> object:
    """Return what a template prints for a value. What a macro returns is HTML, and has been here before."""
    return shown(value, at_most=None) if isinstance(value, str) and not hasattr(value, "__html__") else value


templates = jinja2.Environment(
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
        of=f"runs since {when(since)}",
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
    return templates.get_template("report.html.j2").render(
        of=report.of,
        made=f"{when(now)} by steptime {__version__}",
        sentence=found.sentence[:1].upper() + found.sentence[1:],
        completeness=found.completeness,
        took=found.took,
        cells=table_of(found.rows, findings.COLUMNS),
        verdicts=[one.verdict.replace(" ", "-") for one in found.findings],
        remarks=found.remarks,
        scaling=[scaling_chart(model, rows) for model, rows in by_model.items()],
        trends=[trend_chart(name, rows) for name, rows in report.trends],
        trends_left_out=len(found.findings) - len(report.trends),
        runs=table_of(report.runs, columns.COLUMNS),
        runs_left_out=(found.totals.runs if found.totals else 0) - len(report.runs),
        notes=notes(report.runs),
        frame={"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT},
    )


def table_of(rows: Sequence[Any], of: Sequence[Column]) -> Table | None:
    """Return rows as the command line prints them; None without rows."""
    if not rows:
        return None
    used, title = compared(rows, of=of)
    cells = [written(column, rows) for column in used]
    numeric = [column.kind in ("number", "integer") for column in used]
    return Table(title, [column.title for column in used], numeric, list(zip(*cells, strict=True)))


def when(seconds: float) -> str:
    """Return a Unix time as people here read it, to the minute."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"
