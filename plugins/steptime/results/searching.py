"""What a search looks through: the texts that people know a run by, kept together beside each run.

The rows of runs are wide: to look through ten of their columns reads the whole table, and ten times.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

_COLUMNS = (
    *("label", "job_name", "workload", "gpu_type", "cluster"),
    *("dag_id", "dag_run_id", "state", "reason", "warnings"),
)


def searched_row(run: Mapping[str, Any]) -> dict[str, str]:
    """What `searched` keeps of a row of `runs`, in small letters."""
    return {"text": " ".join(run[name] for name in _COLUMNS if run[name]).lower()}


def has_words(search: str) -> "ColumnElement[bool]":
    """The condition that each word is somewhere in the texts of a run; capitals do not count."""
    from sqlalchemy import select

    from steptime.results.schema import runs, searched

    found = select(searched.c.run_id)
    for word in search.lower().split():
        found = found.where(searched.c.text.contains(word, autoescape=True))
    return runs.c.id.in_(found)
