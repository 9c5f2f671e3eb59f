"""Print rows as a table for people, or as CSV or JSON for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steptime.errors import one_line, unknown_value
from steptime.measure.report import csv_text, export_row, format_column
from steptime.settings import replaced_sentence
from steptime.store.columns import SCHEMA_VERSION, Column
from steptime.wording import counted


class Format(StrEnum):
    """The output formats of commands that print rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def _format(text: str) -> Format:
    if text.lower() not in list(Format):
        raise unknown_value("format", text, Format)
    return Format(text.lower())


FORMAT_OPTION = typer.Option(
    "--format",
    parser=_format,
    metavar="|".join(Format),
    help="table for people, csv or json for programs.",
)
"""Use as `output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE`."""


_GAP = "  "
"""What is between two columns of a table in a pipe."""
_PIPE_WIDTH = 120
"""Most characters of a line of a table that goes to a pipe or a file."""
_SHORT_CELL = 24
"""Most characters of a cell that is never wrapped: a date in two lines would double the height of its row."""

WIDE_OPTION = typer.Option("--wide", help="Show every column of the table, however wide it gets.")
"""Use as `wide: Annotated[bool, WIDE_OPTION] = False`."""


RUN_ARGUMENT = typer.Argument(
    metavar="JOB", help="Job name as 'results --full-names' lists it, a unique beginning of it, or last."
)
"""Use as `run: Annotated[str, RUN_ARGUMENT]`."""


def name_replaced_files() -> None:
    """Say on stderr which shipped files of the configuration are replaced by the team's own."""
    if sentence := replaced_sentence():
        typer.echo(sentence, err=True)


def terminal_width() -> int | None:
    """Return the width of the terminal on stdout in characters; None if stdout is redirected."""
    return Console().width if sys.stdout.isatty() else None


def show(
    rows: Sequence[Mapping[str, Any]],
    output_format: Format,
    *,
    called: str,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    headings: Mapping[str, str] | None = None,
    wide: bool | None = None,
    least: Sequence[str] = (),
) -> None:
    """Print rows as a table, CSV or JSON.

    Args:
        rows: values by column name. A missing value is empty in tables and CSV, null in JSON.
        output_format: table, CSV or JSON.
        called: key of the rows in the JSON.
        columns: the columns to print, in order; by default those of the first row.
        title: the table's title.
        headings: headings of columns in the table, by name; CSV and JSON keep the names with units.
        wide: False drops columns that do not fit the terminal (120 characters in a pipe), None wraps cells
            instead, True does neither.
        least: columns dropped first, in this order; then those on the right.
    """
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    if output_format is Format.JSON:
        show_json({called: [{name: row.get(name) for name in names} for row in rows]})
    elif output_format is Format.CSV:
        _print_csv(rows, names)
    else:
        order = names[:1] if wide is None else (*names, *reversed(least))
        priorities = {name: index for index, name in enumerate(order)}
        _print_fitting(
            [_plain(rows, name, (headings or {}).get(name, name), priorities.get(name, 0)) for name in names],
            title,
            wide=bool(wide),
        )


def show_json(content: Mapping[str, Any]) -> None:
    """Print a JSON document for programs; its first field is the schema version."""
    typer.echo(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2))


def show_columns(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[Column],
    output_format: Format,
    *,
    called: str,
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Print all values of these columns as CSV, or as JSON with the schema version.

    In JSON, `called` is the key of the rows, and `beside` has fields that precede them.
    """
    rows = (export_row(row, columns) for row in rows)
    if output_format is Format.CSV:
        _print_csv(rows, [column.name for column in columns])
        return
    around = json.dumps({"schema_version": SCHEMA_VERSION, **(beside or {}), called: []}, indent=2)
    sys.stdout.write(around.removesuffix("]\n}"))
    separator = "\n    "
    for row in rows:
        sys.stdout.write(separator + json.dumps(row))
        separator = ",\n    "
    sys.stdout.write("\n  ]\n}\n")


def show_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    *,
    title: str | None = None,
    wide: bool,
) -> None:
    """Print these columns as a table.

    If the terminal is too narrow, the least important columns are left out, unless the table may be `wide`.
    """
    shown_ones = [
        _Shown(
            column.title,
            column.heading,
            [one_line(cell, at_most=None) for cell in format_column(column, rows)],
            column.kind in ("number", "integer"),
            column.priority or 0,
        )
        for column in columns
    ]
    _print_fitting(shown_ones, title, wide=wide)


class _Shown(NamedTuple):
    """A column to print."""

    title: str
    name: str
    """The column's title without the unit."""
    cells: Sequence[str]
    numeric: bool
    priority: int
    """Columns with the highest priority are left out first if not all fit, those with 0 never."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """Widths of the longest word, of the longest cell up to `_SHORT_CELL`, and of the longest text."""
        texts = [self.title, *self.cells]
        word = max((cell_len(word) for text in texts for word in text.split()), default=0)
        short = (width for width in map(cell_len, self.cells) if width <= _SHORT_CELL)
        return word, max([word, *short]), max(map(cell_len, texts))


def _print_csv(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> None:
    sys.stdout.write(csv_text(rows, names))


def _plain(rows: Sequence[Mapping[str, Any]], name: str, heading: str, priority: int) -> _Shown:
    """Return a column that is not declared in `store.columns`."""
    values = [row.get(name) for row in rows]
    numbers = all(value is None or isinstance(value, int | float) for value in values)
    if numbers and any(isinstance(value, float) for value in values):
        cells = format_column(Column(name, "number", "", significant=3), rows)
    else:
        cells = ["" if value is None else one_line(value, at_most=None) for value in values]
    return _Shown(heading, heading, cells, any(isinstance(v, int | float) for v in values), priority)


def _frame(columns: Sequence[_Shown], *, lines: bool) -> int:
    """Return the width of what is between the columns: margins, and with `lines` the lines of a frame."""
    return 3 * len(columns) + 1 if lines else len(_GAP) * (len(columns) - 1)


def _least_widths(columns: Sequence[_Shown], *, cells: bool, lines: bool) -> list[int]:
    """Return the columns' smallest widths that break no word, and with `cells` no short cell either.

    Without the lines of a frame, rows are read by programs as well: their first cell is never broken.
    """
    return [column.widths[2 if not lines and not index else cells] for index, column in enumerate(columns)]


def _least_width(columns: Sequence[_Shown], *, cells: bool, lines: bool) -> int:
    return sum(_least_widths(columns, cells=cells, lines=lines)) + _frame(columns, lines=lines)


def _print_fitting(columns: Sequence[_Shown], title: str | None, *, wide: bool) -> None:
    """Print a table without cropping numbers; columns that do not fit the terminal are left out and named.

    With `wide` all columns are printed. If the output is redirected, there is no frame, the width is
    `_PIPE_WIDTH`, and hidden columns are named on stderr.
    """
    kept, terminal = list(columns), terminal_width()
    lines = terminal is not None
    width = None if wide else terminal or _PIPE_WIDTH
    while width is not None and _least_width(kept, cells=True, lines=lines) > width:
        least = max(reversed(kept), key=lambda column: column.priority)
        if not least.priority:
            break
        kept.remove(least)
    widths = _fit(kept, width, lines=lines)
    if lines:
        _print_table(kept, title, widths)
    else:
        _print_plain(kept, title, widths)
    if hidden := [column.name for column in columns if column not in kept]:
        what = counted(len(hidden), "column")
        shown_by = f"--wide shows {'it' if len(hidden) == 1 else 'them'}"
        typer.echo(f"{what} hidden: {', '.join(hidden)}; {shown_by}", err=not lines)


def _fit(columns: Sequence[_Shown], width: int | None, *, lines: bool) -> list[int]:
    """Return the columns' widths in a table of this width; None wraps no cell.

    The table gets wider if a word would not fit its column: a table that is too wide can still be read; words
    broken into letters cannot.
    """
    whole = [column.widths[2] for column in columns]
    if width is None:
        return whole
    cells = _least_width(columns, cells=True, lines=lines) <= width
    widths = _least_widths(columns, cells=cells, lines=lines)
    spare = max(0, width - _least_width(columns, cells=cells, lines=lines))
    wanted = [longest - least for longest, least in zip(whole, widths, strict=True)]
    for index in sorted(range(len(columns)), key=lambda index: wanted[index]):
        given = min(spare, wanted[index])
        widths[index] += given
        spare -= given
    return widths


def _print_plain(columns: Sequence[_Shown], title: str | None, widths: Sequence[int]) -> None:
    """Print aligned columns without lines between them; longer cells go on in the next line."""
    if title:
        sys.stdout.write(f"{title}\n")
    console = Console()
    for row in zip(*([column.title, *column.cells] for column in columns), strict=True):
        cells = [_wrapped(cell, width, console) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            aligned = map(_aligned, line, columns, widths)
            sys.stdout.write(_GAP.join(aligned).rstrip() + "\n")


def _wrapped(cell: str, width: int, console: Console) -> list[str]:
    if cell_len(cell) <= width:
        return [cell]
    return [line.plain.rstrip() for line in Text(cell).wrap(console, width)]


def _aligned(cell: str, column: _Shown, width: int) -> str:
    room = " " * (width - cell_len(cell))
    return room + cell if column.numeric else cell + room


def _print_table(columns: Sequence[_Shown], title: str | None, widths: Sequence[int]) -> None:
    """Print a table in a frame."""
    # As Text, since rich would take [brackets] in a name for its markup.
    table = Table(title=Text(title) if title else None, header_style="bold", title_justify="left")
    for column, column_width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        # By themselves rich's tables are cropped if the least widths of their columns do not fit.
        table.add_column(Text(column.title), justify=justify, width=column_width)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    Console(width=sum(widths) + _frame(columns, lines=True)).print(table)


def with_experts(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns, without those for experts if no row has experts."""
    of_experts = () if any(row["ep"] is not None for row in rows) else ("ep", "etp")
    return [column for column in columns if column not in of_experts]
