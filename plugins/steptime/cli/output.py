"""How commands print: the same rows as a table for people, or as CSV or JSON for programs."""

import csv
import json
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from steptime.errors import shown, unknown_value


class Format(StrEnum):
    """Output formats that every listing command offers."""

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


def console() -> Console:
    """Where people read: stdout, as wide as it is (160 columns where it is no terminal)."""
    return Console(width=None if sys.stdout.isatty() else 160)


def complain(sentence: str) -> None:
    """Say on stderr what went wrong: one sentence, and after it perhaps lines of a log."""
    lines = (shown(line, at_most=None) for line in sentence.splitlines())
    colour = None if os.environ.get("NO_COLOR") else typer.colors.RED
    typer.secho("steptime: " + "\n".join(lines), err=True, fg=colour)


def show(
    rows: Sequence[Mapping[str, Any]],
    output_format: Format,
    *,
    columns: Sequence[str] | None = None,
    title: str | None = None,
    headings: Mapping[str, str] | None = None,
) -> None:
    """Print rows; `columns` fixes their order (by default that of the first row).

    `headings` renames columns in the table only: CSV and JSON keep the full names with their units.
    A missing value is empty in a table and in CSV, null in JSON.
    """
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    if output_format is Format.JSON:
        typer.echo(json.dumps([{name: row.get(name) for name in names} for row in rows], indent=2))
    elif output_format is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if row.get(name) is None else row[name] for name in names] for row in rows])
    else:
        _print_table(rows, names, title, headings or {})


def _print_table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str | None, headings: Mapping[str, str]
) -> None:
    # As Text, since rich would take [brackets] in a name for its markup.
    table = Table(title=Text(title) if title else None, header_style="bold", title_justify="left")
    output = console()
    unlimited = output.options.update(width=10_000)
    for name in names:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        cells = [Text(headings.get(name, name)), *(_cell(row.get(name)) for row in rows)]
        # Lines that a narrow terminal wraps can be read, and be made wider; words broken into letters cannot.
        longest_word = max(Measurement.get(output, unlimited, cell).minimum for cell in cells)
        table.add_column(cells[0], justify="right" if numeric else "left", min_width=longest_word)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    output.width = max(output.width, Measurement.get(output, unlimited, table).minimum)
    output.print(table)


def _cell(value: Any) -> Text:
    if value is None:
        return Text()
    if isinstance(value, float):
        return Text(f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}")
    return Text(shown(value, at_most=None))
