"""What a search looks through: the texts that people know a run by, kept together beside each run.

The rows of runs are wide: to look through ten of their columns reads the whole table, and ten times.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from steptime.results.columns import COLUMNS

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


def searched_row(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what `searched` keeps of a row of `runs`, in small letters."""
    return {
        "text": " ".join(filter(None, (run[column.name] for column in COLUMNS if column.searched))).lower()
    }


def has_words(search: str) -> "ColumnElement[bool]":
    """Return the condition that each word occurs in a run's texts, whatever its capitals."""
    from sqlalchemy import select

    from steptime.results.schema import runs, searched

    # Run by run: for `IN` SQLite would list all that match, even if only the newest few are wanted.
    found = select(searched.c.run_id).where(searched.c.run_id == runs.c.id)
    for word in search.lower().split():
        found = found.where(searched.c.text.contains(word, autoescape=True))
    return found.exists()
