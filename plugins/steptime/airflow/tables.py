"""Tables in task logs."""

import io
from collections.abc import Mapping, Sequence
from typing import Any


def as_text(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> str:
    """Format rows as a table for people, with the first row's columns, and floats with four digits."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if any(_is_number(row[name]) for row in rows) else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    text = io.StringIO()
    Console(file=text, width=160).print(table)
    return "\n" + "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
