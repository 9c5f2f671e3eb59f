"""`steptime results goodput`: the share of GPU-hours in training steps, by month and by sweep."""

import time
from collections import defaultdict
from typing import Annotated, Any

import typer

from steptime.ages import since_when
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, show_columns, show_table
from steptime.cli.selecting import require_results
from steptime.measure.goodput import PARTS, TRAINING, compute_goodput
from steptime.store.budgets import format_month
from steptime.store.columns import Column
from steptime.store.run_queries import Store

_SINCE = "90d"

EXAMPLES = """
[bold]Examples[/bold]

steptime results goodput

steptime results goodput --since 2026-01-01 --format csv > goodput.csv
"""

_LOST = [part for part in PARTS if part != TRAINING]
COLUMNS = (
    Column("month", "text", "Calendar month (UTC).", priority=0),
    Column("sweep", "text", "Sweep that the jobs are cells of; empty for others.", priority=0),
    Column(
        "gpu_hours",
        "number",
        "GPU-hours of jobs that have ended.",
        heading="GPU-hours",
        priority=0,
        significant=3,
        decimals=1,
    ),
    Column(
        "goodput_percent",
        "number",
        "Of these in training steps.",
        heading="goodput",
        unit="%",
        priority=0,
        decimals=1,
    ),
    *(
        Column(
            f"{part.replace(' ', '_')}_percent",
            "number",
            f"Of these in {part}.",
            heading=part,
            unit="%",
            priority=1,
            decimals=1,
        )
        for part in _LOST
    ),
)


def show_goodput(
    *,
    since: Annotated[str, typer.Option(help="Jobs since then: 30m, 12h, 7d, 2w or 2026-11-21.")] = _SINCE,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show the goodput of each month and sweep: GPU-hours in training steps, and where the rest went.

    Time in the queue takes no GPU-hours. 'steptime results compare' has the goodput of a week.
    """
    store = Store()
    require_results(store, "sum up")
    rows = _monthly(store, since_when(since, time.time()))
    if output_format is not Format.TABLE:
        show_columns(rows, COLUMNS, output_format, called="goodput")
    elif rows:
        show_table(rows, COLUMNS, wide=wide)
    else:
        typer.echo(f"No job took GPU-hours since {since}: give an earlier time with --since.", err=True)


def _monthly(store: Any, since: float) -> list[dict[str, Any]]:
    rows, lost = defaultdict(list), defaultdict(list)
    for row in store.results(include_rejected=True, since=since):
        rows[format_month(row["submitted_at"]), row["sweep"] or ""].append(row)
    for job in store.lost_jobs(since=since):
        lost[format_month(job["created_at"]), job["provenance"]["sweep"] or ""].append(job)
    months = []
    for month, sweep in sorted({*rows, *lost}, reverse=True):
        goodput = compute_goodput(rows[month, sweep], lost[month, sweep])
        if goodput is not None:
            percent = goodput.percent
            lost_in = {f"{part.replace(' ', '_')}_percent": percent[part] for part in _LOST}
            took = {"gpu_hours": goodput.allocated, "goodput_percent": percent[TRAINING]}
            months.append({"month": month, "sweep": sweep, **took, **lost_in})
    return months
