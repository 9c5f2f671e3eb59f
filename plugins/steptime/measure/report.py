"""Results for readers: tables, CSV, notes and totals."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from steptime.errors import one_line
from steptime.store.columns import BY_NAME, COLUMNS, Column, Row
from steptime.waiting import duration
from steptime.wording import counted, date_and_time


def choose_columns(
    rows: Sequence[Row], *, full_names: bool = False, of: Sequence[Column] = COLUMNS
) -> tuple[list[Column], str]:
    """Return the columns to show for these rows of the store, and a title with what the rows share.

    A column declared as `shared` moves to the title if it has the same value in all rows; columns without
    any value are left out, and the MFU's formula if no row has an MFU. `of` names other columns to choose
    from; `full_names` shows the job's name in place of the run's label.
    """
    other_name = "label" if full_names else "job_name"
    columns, title = [], []
    for column in of:
        values = {row[column.name] for row in rows if not _empty(row[column.name])}
        if column.priority is None or column.name == other_name or not values:
            continue
        if column.name == "flops_formula" and all(_empty(row["mfu_percent"]) for row in rows):
            continue
        if column.shared and len(values) == 1 and not any(row[column.name] is False for row in rows):
            (value,) = format_column(column, [{column.name: value} for value in values])
            title.append(" ".join(filter(None, (column.heading, value, column.unit))))
        else:
            columns.append(column)
    return columns, ", ".join(title)


def _empty(value: Any) -> bool:
    return value is None or value is False or value == ""


def format_column(column: Column, rows: Sequence[Row]) -> list[str]:
    """Format a column's values for people, with the same number of decimals so that digits align."""
    values = [row.get(column.name) for row in rows]
    if column.as_change:
        return ["" if value is None else change_in_words(value) for value in values]
    if column.kind == "number":
        of = BY_NAME[column.decimals_of] if column.decimals_of else column
        digits = _decimals(of, [row.get(of.name) for row in rows])
        return ["" if value is None else _number_text(column, value, digits) for value in values]
    return ["" if value is None else _words(column, value) for value in values]


def change_in_words(ratio: float) -> str:
    """Say how a time compares with another, by their ratio, as in `3.3 % faster`.

    >>> change_in_words(0.967)
    '3.3 % faster'
    """
    return f"{100 * abs(ratio - 1):.1f} % {'slower' if ratio > 1 else 'faster'}"


def _number_text(column: Column, value: float, digits: int) -> str:
    """Format a number; in a `signed` column positive numbers get a plus sign. Zero has no sign."""
    text = f"{value:,.{digits}f}"
    if not any(digit in text for digit in "123456789"):
        return text.removeprefix("-")
    return f"+{text}" if column.signed and value > 0 else text


def _words(column: Column, value: Any) -> str:
    if column.kind == "time":
        return date_and_time(value)
    if column.kind == "boolean":
        return column.name if value else ""
    return f"{value:,}" if column.kind == "integer" else str(value)


def _decimals(column: Column, values: Sequence[float | None]) -> int:
    """Return the number of decimals that shows the smallest value with the column's significant digits."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 0
    return min(column.decimals, max(0, column.significant - 1 - math.floor(math.log10(min(sizes)))))


def list_notes(rows: Iterable[Row]) -> list[str]:
    """Return a sentence for each run that was rejected, and one for each run with warnings."""
    return [
        f"{row['label']} ({row['job_name']}) {what}: {text}"
        for row in rows
        for what, text in (
            ("is rejected", row["reason"]),
            ("has a warning" if row["reason"] else "counts, but note", row["warnings"]),
        )
        if text
    ]


def export_row(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """Return the values of a row for programs, by column name; times are ISO 8601 in UTC."""
    return {
        column.name: _iso_8601(row.get(column.name)) if column.kind == "time" else row.get(column.name)
        for column in columns
    }


def _iso_8601(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def csv_text(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return rows as CSV with a line of column names; a missing value is empty.

    Control characters other than line breaks are escaped, because people also view CSV in terminals.
    """
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(names)
    for row in rows:
        lines.writerow([_printable(row.get(name)) for name in names])
    return text.getvalue()


def _printable(value: object) -> object:
    if not isinstance(value, str) or value.isprintable():
        return value
    return "\n".join(one_line(line, at_most=None) for line in value.split("\n"))


@dataclass(frozen=True)
class Totals:
    """Number and cost of the runs in a selection."""

    runs: int
    rejected: int
    """Number of rejected runs among them."""
    gpu_hours: float
    mean_queue_wait_s: float | None
    """None if no run has started."""
    longest_queue_wait_s: float | None

    @property
    def sentence(self) -> str:
        """A text: `9 runs, 1 rejected · 0.5 GPU-hours · in the queue for 2 min on average, 9 min at most`."""
        runs = counted(self.runs, "run")
        parts = [runs + (f", {self.rejected:,} rejected" if self.rejected else ""), _hours(self.gpu_hours)]
        if self.mean_queue_wait_s is not None and self.longest_queue_wait_s is not None:
            waits = duration(self.mean_queue_wait_s), duration(self.longest_queue_wait_s)
            parts.append(f"in the queue for {waits[0]} on average, {waits[1]} at most")
        return " · ".join(parts)


def sum_up(rows: Sequence[Mapping[str, Any]]) -> Totals:
    """Return the number of runs in these rows of the store, their GPU-hours, and how long they queued."""
    waits = [row["queue_wait_s"] for row in rows if row["queue_wait_s"] is not None]
    rejected = sum(row["state"] == "rejected" for row in rows)
    hours = sum(row["gpu_hours"] or 0.0 for row in rows)
    return Totals(len(rows), rejected, hours, fmean(waits) if waits else None, max(waits, default=None))


def describe_cost(rows: Iterable[Row], earlier: Iterable[Row]) -> str:
    """Describe the GPU-hours of runs by cluster, compared with `earlier` runs, and those of rejected runs.

    For example `west 5,120 GPU-hours (4,980 before); 134 GPU-hours on failed runs`; empty without runs.
    """
    spent, before = _hours_by_cluster(rows := list(rows)), _hours_by_cluster(earlier)
    failed = sum(row["gpu_hours"] or 0.0 for row in rows if row["state"] == "rejected")
    clusters = sorted({**before, **spent}, key=lambda cluster: -spent.get(cluster, 0.0))
    parts = [
        f"{cluster} {_hours(spent.get(cluster, 0.0))} ({_number(before.get(cluster, 0.0))} before)"
        for cluster in clusters
    ]
    return "; ".join([", ".join(parts), f"{_hours(failed)} on failed runs"]) if parts else ""


def _hours_by_cluster(rows: Iterable[Row]) -> dict[str, float]:
    hours: dict[str, float] = {}
    for row in rows:
        hours[row["cluster"]] = hours.get(row["cluster"], 0.0) + (row["gpu_hours"] or 0.0)
    return hours


def _hours(hours: float) -> str:
    """Return a text such as `1,234 GPU-hours`: three significant digits, or all before the point."""
    return f"{_number(hours)} GPU-hours"


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
