"""Rows as CSV, as they come: all results of a store may be more than fits into memory."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

_ROWS_AT_ONCE = 500


def csv_parts(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Yield a line of names, then a line for each row, some hundred at once; a missing value is empty."""
    lines = chain([names], ([row.get(name) for name in names] for row in rows))
    while some := list(islice(lines, _ROWS_AT_ONCE)):
        part = io.StringIO(newline="")
        csv.writer(part, lineterminator="\n").writerows(some)
        yield part.getvalue()
