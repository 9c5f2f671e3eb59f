"""`steptime results trend`: a series over time, as the Trend of the page."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.output import (
    FORMAT_OPTION,
    RUN_ARGUMENT,
    WIDE_OPTION,
    Format,
    show_columns,
    show_table,
    terminal_width,
)
from steptime.cli.selecting import RunFilters, require_results, takes_selection
from steptime.errors import UserError

if TYPE_CHECKING:
    from steptime.judging.series import Series
    from steptime.results.store import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime results trend

steptime results trend --size 70b --dtype fp8 --gpus 64

steptime results trend pretrain_llama3.1_tiny_fp32_2-1a2b --format csv > trend.csv
"""

_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_HEIGHTS = 100
"""Of a line that goes into a file."""


@takes_selection
def show_trend(
    run: Annotated[str | None, RUN_ARGUMENT] = None,
    *,
    selection: RunFilters,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    full_names: Annotated[bool, typer.Option("--full-names", help="Name runs by their job.")] = False,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show a series over time: each run with its verdict, the baseline, what was usual, and what changed.

    It is the series that JOB is a run of, or the one that ran last among those that the filters select.
    Beside each run stand the published value, and why a level that begins with it was accepted.
    """
    from steptime.judging.completeness import missing_of
    from steptime.judging.trend import COLUMNS, sentence, trend
    from steptime.results.store import Store

    store = Store()
    require_results(store, "show")
    series = _series(store, run, selection)
    rows = trend(store, series)
    said = sentence(series, rows, missing_of(store, series))
    if output_format is not Format.TABLE:
        beside = {"sentence": said, "label": series.label, "series": series.key}
        show_columns(rows, COLUMNS, output_format, called="runs", beside=beside)
    if output_format is Format.JSON:
        return
    typer.echo(said, err=output_format is not Format.TABLE)
    if output_format is Format.TABLE and rows:
        typer.echo(_line(rows))
        _print_table(rows, full_names=full_names, wide=wide)


def _series(store: "Store", run: str | None, selection: RunFilters) -> "Series":
    """The series that is asked for. Raises UserError if there is none."""
    from steptime.judging.series import Series

    if run is not None:
        if asked := selection.flags:
            raise UserError(f"{', '.join(asked)} and a run exclude each other: name one of them.")
        series = Series.of_row(store.run_named(run))
        if not series.is_judged:
            raise UserError(f"runs in mode {series['mode']} are not judged: they have no trend.")
        return series
    found = next((one for one in map(Series.of_row, selection.latest_first(store)) if one.is_judged), None)
    if found is None:
        raise UserError("no valid run that is judged fits these filters: 'steptime results' lists all runs.")
    return found


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The times of the runs as heights in one line, the latest at its end, with the least and the most."""
    seconds = [row["judged_s"] for row in rows]
    low, high = min(seconds), max(seconds)
    ends = f"{low:.4g} s", f"{high:.4g} s"
    room = (terminal_width() or _MOST_HEIGHTS) - sum(map(len, ends)) - 2
    steps = (len(_HEIGHTS) - 1) / ((high - low) or 1.0)
    heights = "".join(_HEIGHTS[round(steps * (one - low))] for one in seconds[-max(room, 1) :])
    return f"{ends[0]} {heights} {ends[1]}"


def _print_table(rows: Sequence[Mapping[str, Any]], *, full_names: bool, wide: bool) -> None:
    """Latest last, as beside the line; what all runs of a series share stands in the sentence above."""
    from steptime.judging.trend import COLUMNS
    from steptime.results.report import compared

    own = [column for column in COLUMNS if not column.series]
    columns, title = compared(rows, of=own, full_names=full_names)
    show_table(rows, columns, title=title, wide=wide)
