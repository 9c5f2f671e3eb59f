"""The record of what upstream's launch scripts set: how it is kept small, and how a row's settings are read.

`config/upstream/settings.json` has, per document, `settings` that every row has, and `rules`.
A rule is for settings that the same columns of a row decide, and has a case for each value of these columns.
The settings of a row are the document's, then those of the rules' cases that fit it. `modes` has the same for
what differs when a run saves checkpoints, loads one, is profiled or traced.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[2] / "config/upstream/settings.json"

Row = tuple[tuple[str, str], ...]
"""The columns with their values by which a row differs from all other rows of its document."""

COLUMNS = ("size", "layers", "dtype", "gpu_type", "scaling", "gpus")

Flat = dict[str, Any]


def row_of(columns: Mapping[str, str]) -> Row:
    """Return the row with these columns of config/references/configurations.csv."""
    return tuple((name, columns[name]) for name in COLUMNS)


def settings_of(document: Mapping[str, Any], columns: Mapping[str, str]) -> Flat:
    """Return every setting that the record's `document` (or one of its `modes`) has for a row."""
    settings = dict(document["settings"])
    for rule in document["rules"]:
        for case in rule["cases"]:
            if all(columns[name] == value for name, value in case["when"].items()):
                settings |= case["settings"]
    return settings


def load(record: Path = RECORD) -> dict[str, Any]:
    """Return the record's documents by the name of their workload."""
    documents: dict[str, Any] = json.loads(record.read_text())["documents"]
    return documents


def condensed(rows: Mapping[Row, Flat]) -> dict[str, Any]:
    """Return `rows` in the record's form: what all share, and rules for the rest by the fewest columns."""
    keys = sorted({key for settings in rows.values() for key in settings})
    common: Flat = {}
    ruled: dict[tuple[str, ...], dict[Row, Flat]] = {}
    for key in keys:
        columns = _columns_that_decide(rows, key)
        if not columns:
            common[key] = next(iter(rows.values()))[key]
            continue
        cases = ruled.setdefault(columns, {})
        for row, settings in rows.items():
            if key in settings:
                cases.setdefault(_part(row, columns), {})[key] = settings[key]
    return {
        "settings": common,
        "rules": [
            {
                "cases": [
                    {"when": dict(case), "settings": cases[case]} for case in sorted(cases, key=_in_order)
                ]
            }
            for _, cases in sorted(ruled.items())
        ],
    }


def _columns_that_decide(rows: Mapping[Row, Flat], key: str) -> tuple[str, ...]:
    """Return the fewest columns whose values determine `key` in each row; none if all rows agree."""
    for count in range(len(COLUMNS) + 1):
        for columns in itertools.combinations(COLUMNS, count):
            seen: dict[Row, str] = {}
            if all(
                seen.setdefault(_part(row, columns), text) == text
                for row, text in ((row, _text(settings, key)) for row, settings in rows.items())
            ):
                return columns
    raise ValueError(f"two rows with equal {', '.join(COLUMNS)} have other values of {key}")


def _text(settings: Flat, key: str) -> str:
    """Return the value as text, in which 1, true and 1.0 differ; empty if it is not set."""
    return json.dumps(settings[key]) if key in settings else ""


def _part(row: Row, columns: Sequence[str]) -> Row:
    return tuple((name, value) for name, value in row if name in columns)


def _in_order(case: Row) -> Iterable[Any]:
    return [(int(value), "") if value.isdigit() else (0, value) for _, value in case]
