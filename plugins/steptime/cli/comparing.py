"""`steptime results compare`: what got slower, how certain that is, and what changed; or two sets of runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, cast

import typer

from steptime.ages import since_when
from steptime.cli.output import (
    FORMAT_OPTION,
    RUN_ARGUMENT,
    WIDE_OPTION,
    Format,
    show_columns,
    show_table,
    terminal_width,
)
from steptime.cli.selecting import RunFilters, require_results, takes_cells, takes_selection
from steptime.errors import UserError, unknown_value
from steptime.judging import judgements
from steptime.judging.comparison import compare_runs, compare_since, compare_sweep
from steptime.judging.findings import COLUMNS as CELL_COLUMNS
from steptime.judging.findings import Comparison
from steptime.judging.incident_updates import update_incidents
from steptime.judging.judgements import judge_all
from steptime.judging.missing_cells import find_missing
from steptime.judging.run_sets import COLUMNS as SET_COLUMNS
from steptime.judging.run_sets import MEASURES, Measure, SetComparison, compare_sets
from steptime.judging.series import Series
from steptime.judging.trend import COLUMNS as TREND_COLUMNS
from steptime.judging.trend import sentence, trend
from steptime.judging.verdicts import describe_verdict
from steptime.measure.report import choose_columns
from steptime.process_identity import user_name
from steptime.store.run_queries import Store
from steptime.wording import date

SLOWER_EXIT_CODE = 3
_SINCE = "7d"

_TABLE_COLUMNS = [
    replace(column, kind="text") if column.name == "since" else column
    for column in CELL_COLUMNS
    if column.name != "series_state"
]
"""The columns of the table of cells, whose verdict has the state."""

COMPARE_EXAMPLES = """
[bold]Examples[/bold]

steptime results compare

steptime results compare --since 2026-11-16 --format csv > week.csv

steptime results compare --cluster mycluster --size 70b

steptime results compare --sweep weekly || echo "slower, or it failed"

steptime results compare pretrain_llama3.1_tiny_fp32_2-1a2b pretrain_llama3.1_tiny_fp32_2-5e6f

steptime results compare --a 'image=*nemo:25.11.01' --b 'image=*nemo:26.02.01'

steptime results compare --a gpu_type=h100 --b gpu_type=gb200 --by price

steptime results compare --a since=60d --a until=30d --b since=30d --cluster mycluster
"""


ACCEPT_EXAMPLES = """
[bold]Examples[/bold]

steptime results accept pretrain_llama3.1_tiny_fp32_2-1a2b --note "NeMo 2.8 checks gradients"
"""
EXAMPLES = """
[bold]Examples[/bold]

steptime results trend

steptime results trend --size 70b --dtype fp8 --gpus 64

steptime results trend pretrain_llama3.1_tiny_fp32_2-1a2b --format csv > trend.csv
"""

_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_HEIGHTS = 100
"""Width of the line in characters if the output is not a terminal."""


@takes_cells
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN RUN",
            help="Two jobs, the earlier first: their names as results --full-names lists them, unique "
            "beginnings, or last.",
            show_default=False,
        ),
    ] = None,
    *,
    selection: RunFilters,
    since: Annotated[
        str | None,
        typer.Option(help=f"Cells that ran since then: 30m, 12h, {_SINCE} (the default), or 2026-11-21."),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="The cells of this sweep, a file of config/sweeps.")
    ] = None,
    a: Annotated[
        list[str] | None,
        typer.Option(
            "--a",
            metavar="NAME=VALUE",
            help="Compare two sets of runs: what runs of the first have, by a column, version=, node=, the "
            "name of a variable, since= or until=. Repeat it for further conditions.",
            show_default=False,
        ),
    ] = None,
    b: Annotated[
        list[str] | None,
        typer.Option(
            "--b", metavar="NAME=VALUE", help="What the runs of the second set have.", show_default=False
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Compare sets by time, tokens (GPU time of a million) or price (of a million tokens). By "
            "default by time, or by tokens if GPUs or batch sizes differ.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show what got slower: a summary, then each cell compared with its own history, worst first.

    A cell is one configuration: cluster, model, number of GPUs and settings. A run outside of its cell's
    usual range is suspected; the mean of the cell's next two runs confirms or dismisses that.
    The exit code is 3 if a slowdown is confirmed, 0 if none is, 1 for bad input, 2 if the store
    cannot be read.

    With --a and --b two sets of runs are compared, over all cells that both have: two images, drivers, types
    of GPU or months. `*` in a value stands for any characters, NAME= for runs without the variable.
    """
    store = Store()
    if a or b or by:
        if rivals := [
            name for name, given in (("RUN RUN", runs), ("--since", since), ("--sweep", sweep)) if given
        ]:
            raise UserError(f"{rivals[0]} and --a, --b or --by exclude each other: give one of them.")
        require_results(store, "compare")
        if by is not None and by not in MEASURES:
            raise unknown_value("--by", by, MEASURES)
        only = selection.cell_filters(store)
        compared = compare_sets(store, a or [], b or [], measure=cast(Measure | None, by), only=only)
        _print_sets(compared, output_format, wide=wide)
        return
    comparison = _compare(store, runs or [], since, sweep, selection)
    missing = comparison.completeness
    if not comparison.findings and (missing is None or not missing.planned):
        told = "No cell has run since then: give an earlier time with --since."
        typer.echo(told if sweep is None else f"No cell of the sweep '{sweep}' fits these filters.", err=True)
    is_table = output_format is Format.TABLE
    if output_format is not Format.JSON:
        lines = (
            f"{comparison.sentence}.",
            missing and f"{missing.line}.",
            comparison.took,
            comparison.cost,
            comparison.goodput,
        )
        for line in filter(None, lines):
            typer.echo(line, err=not is_table)
    if not is_table:
        beside = {
            "sentence": comparison.sentence,
            "completeness": missing and missing.as_json,
            "took": comparison.took,
            "cost": comparison.cost,
            "goodput": comparison.goodput,
            "remarks": comparison.remarks,
        }
        show_columns(comparison.rows, CELL_COLUMNS, output_format, called="cells", beside=beside)
    else:
        if comparison.findings:
            rows = [_in_words(row) for row in comparison.rows]
            columns, title = choose_columns(rows, of=_TABLE_COLUMNS)
            show_table(rows, columns, title=title, wide=wide)
        for remark in (*(missing.remarks if missing else ()), *comparison.remarks):
            typer.echo(remark)
    if comparison.confirmed_slower:
        raise typer.Exit(SLOWER_EXIT_CODE)


def _print_sets(compared: SetComparison, output_format: Format, *, wide: bool) -> None:
    """Print the comparison of two sets of runs."""
    rows = [cell.row for cell in compared.cells]
    if output_format is not Format.TABLE:
        show_columns(rows, SET_COLUMNS, output_format, called="cells", beside=compared.as_json)
        return
    typer.echo(f"{compared.sentence}.")
    for remark in compared.remarks:
        typer.echo(f"{remark}.")
    if rows:
        columns, title = choose_columns(rows, of=SET_COLUMNS)
        show_table(rows, columns, title=title, wide=wide)
    for name, names in (("A", compared.only_a), ("B", compared.only_b)):
        if names:
            typer.echo(f"only in {name}: {', '.join(names)}")
    for name, in_a, in_b, cells in compared.differing:
        where = f" ({cells} of {len(rows)} cells)" if cells else ""
        typer.echo(f"{name}: {in_a} → {in_b}{where}")


def judge() -> None:
    """Compare all stored runs with their history again: whether each is slower or faster than usual.

    Each run is judged like this when it is published, so the command is needed only after a version of
    steptime has changed how runs are judged.
    """
    store = Store()
    require_results(store, "judge")
    judged = judge_all(store)
    update_incidents(store)
    typer.echo(f"{judged} series judged")


def accept(
    run: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="A run with the new step time: its job's name, a unique prefix, or last."
        ),
    ],
    *,
    note: Annotated[str, typer.Option(help="The reason, for people who look at it later.")],
) -> None:
    """Accept a changed step time: from this run on, its cell (series of like runs) has a new baseline.

    If the run belongs to a suspected or confirmed change, the baseline begins with the first run of that
    change. Until the new baseline has 6 runs, the cell has insufficient history to be judged. The store keeps
    who accepted it, when, and the note.
    """
    if not note.strip():
        raise UserError("--note is empty: write why the new step time is accepted.")
    store = Store()
    require_results(store, "accept")
    first = judgements.accept(store, run, note=note.strip(), accepted_by=user_name())
    update_incidents(store)
    typer.echo(f"accepted: the new baseline begins with {first}")


def _compare(
    store: Store, runs: list[str], since: str | None, sweep: str | None, selection: RunFilters
) -> Comparison:
    """Compare two runs, the cells of a sweep, or the cells that ran since a time (by default a week ago).

    Raises UserError for arguments that exclude each other, and if there are no results.
    """
    selectors = [
        name for name, value in (("two runs", runs), ("--since", since), ("--sweep", sweep)) if value
    ]
    if len(selectors) > 1:
        raise UserError(f"{' and '.join(selectors)} exclude each other: name one of them.")
    if len(runs) not in (0, 2):
        raise UserError(
            f"a comparison takes two runs, not {len(runs)} ({', '.join(runs)}): name two, or none to compare "
            "the cells of the last week."
        )
    if runs and selection.flags:
        raise UserError(
            f"{', '.join(selection.flags)} cannot be combined with two runs: give either filters or runs."
        )
    require_results(store, "compare")
    if runs:
        return compare_runs(store, *runs)
    only = selection.cell_filters(store)
    if sweep is not None:
        return compare_sweep(store, sweep, only)
    return compare_since(store, since_when(since or _SINCE, time.time()), only)


@takes_selection
def show_trend(
    run: Annotated[str | None, RUN_ARGUMENT] = None,
    *,
    selection: RunFilters,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    full_names: Annotated[bool, typer.Option("--full-names", help="Name runs by their job.")] = False,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show a series of like runs over time: verdicts, baseline, usual range, and what changed between runs.

    JOB or filters select the series; without either it is the one that ran last. If filters select several,
    the command lists them.
    Each row also has the published value, and the note of a person who accepted the run as a new baseline.
    """
    store = Store()
    require_results(store, "show")
    series = _series(store, run, selection)
    rows = trend(store, series)
    said = sentence(series, rows, find_missing(store, series))
    if output_format is not Format.TABLE:
        beside = {"sentence": said, "label": series.label, "series": series.key}
        show_columns(rows, TREND_COLUMNS, output_format, called="runs", beside=beside)
    if output_format is Format.JSON:
        return
    typer.echo(said, err=output_format is not Format.TABLE)
    if output_format is Format.TABLE and rows:
        typer.echo(_line(rows))
        _print_table(rows, full_names=full_names, wide=wide)


def _series(store: Store, run: str | None, selection: RunFilters) -> Series:
    """Return the series of a run, or else the one that the filters select; with neither, the newest one.

    Raises UserError if no judged series fits, if several do, or if both a run and filters are given.
    """
    if run is not None:
        if flags := selection.flags:
            raise UserError(f"{', '.join(flags)} and a run exclude each other: name one of them.")
        series = Series.from_row(store.run_named(run))
        if not series.is_judged:
            raise UserError(f"runs in mode {series['mode']} are not judged, so there is no trend to show.")
        return series
    newest: dict[Series, str] = {}
    for row in selection.latest_first(store):
        if (series := Series.from_row(row)).is_judged:
            newest.setdefault(series, row["job_name"])
    if not newest:
        fits = "fits these filters" if selection.flags else "is in the metrics store"
        raise UserError(f"no valid run in a judged mode {fits}: 'steptime results --all' lists all runs.")
    if len(newest) > 1 and selection.flags:
        for series, job_name in newest.items():
            typer.echo(f"{job_name}  {series.full_name}", err=True)
        raise UserError(
            f"{len(newest)} series fit {', '.join(selection.flags)}: add filters, or name a run of one "
            f"of them, as listed above."
        )
    return next(iter(newest))


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw step times as a line of bars, the latest at its end, with minimum and maximum."""
    seconds = [row["run_s"] for row in rows]
    low, high = min(seconds), max(seconds)
    ends = f"{low:.4g} s", f"{high:.4g} s"
    room = (terminal_width() or _MOST_HEIGHTS) - sum(map(len, ends)) - 2
    steps = (len(_HEIGHTS) - 1) / ((high - low) or 1.0)
    heights = "".join(_HEIGHTS[round(steps * (value - low))] for value in seconds[-max(room, 1) :])
    return f"{ends[0]} {heights} {ends[1]}"


def _print_table(rows: Sequence[Mapping[str, Any]], *, full_names: bool, wide: bool) -> None:
    """Print the table, latest run last; columns that all runs share are left out."""
    columns_of_runs = [column for column in TREND_COLUMNS if not column.series]
    columns, title = choose_columns(_without_repetition(rows), of=columns_of_runs, full_names=full_names)
    show_table(_without_repetition(rows), columns, title=title, wide=wide)


def _in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell for a table: the verdict with its state, and the day since when, which fit 80 columns."""
    told = describe_verdict(row["verdict"], row["series_state"])
    return {**row, "verdict": told, "since": row["since"] and date(row["since"])}


def _without_repetition(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for a table, with an empty state where the verdict is the same word."""
    return [
        {**row, "series_state": row["series_state"] if row["series_state"] != row["verdict"] else ""}
        for row in rows
    ]
