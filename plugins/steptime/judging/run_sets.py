"""Compare two sets of runs over all cells: releases of a container, drivers, types of GPU, months.

A set is chosen by recorded values. Its runs are grouped by cell, which is what a series is without the
columns that the sets choose differently. For each cell of both sets there is the difference of the medians,
and over all cells the median of these differences: the cells are its sample, however many runs each has.
"""

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, Self, get_args

from steptime.ages import since_when
from steptime.errors import UserError, one_line, unknown_value
from steptime.judging.record_changes import shown_value
from steptime.judging.series import Series, SeriesRun, cell_names, series_runs
from steptime.recipes.models import Mode
from steptime.store.columns import BY_NAME, ELEMENTS, Column, Row, series_columns
from steptime.store.run_queries import Store
from steptime.store.run_records import NODES, split_nodes
from steptime.wording import counted, date, first_names

Measure = Literal["time", "tokens", "price"]
"""What is compared: the time that a cell is judged by (s), the GPU time of a million tokens (s), or their
price."""

CONFIDENCE = 0.95
_FEWEST_RUNS = 2
"""Fewest runs of a cell in each set from which its difference has an interval."""
_FEWEST_CELLS = 6
"""Fewest cells whose smallest and largest difference enclose their median at 95 % probability."""
_SHOWN_VALUES = 3
"""Most values of a set that are named of what differs."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_TIMES = ("since", "until")
_TOGETHER = {"cluster", "gpu_type"}
"""Columns that are left out of a cell's identity together: each type of GPU is in clusters of its own."""
_DESCRIBED = (
    *series_columns(),
    *("global_batch_size", "micro_batch_size", "window", "image", "image_digest", "versions", "variables"),
    *("network", "steptime_version", "git_commit", "trainer_sha256"),
)
"""Columns that may explain a difference, nodes aside."""


@dataclass(frozen=True)
class Condition:
    """A condition on runs: a column, or one element of a column that lists several, has a wanted value."""

    name: str
    values: tuple[str, ...]
    """`*` stands for any characters; an empty value for runs without one."""

    def fits(self, row: Row) -> bool:
        """Return whether a row of the store fulfils the condition."""
        if self.name in ELEMENTS:
            stored = (row[ELEMENTS[self.name]] or "").split(", ")
        else:
            value = row[self.name]
            stored = [str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)]
        return any(_has(stored, value) for value in self.values)


@dataclass(frozen=True)
class RunSet:
    """What chooses a set of runs."""

    conditions: tuple[Condition, ...]
    since: float | None = None
    """Unix time of the oldest submission."""
    until: float | None = None
    """Unix time before which the runs were submitted."""

    @classmethod
    def parse(cls, texts: Iterable[str], now: float) -> Self:
        """Parse conditions such as `image=nemo:25.11.01`, `NCCL_ALGO=Ring`, `node=h008` or `since=30d`.

        Repeating a name allows one more value. Raises UserError for a text of another form, an unknown name
        or time, and if there is no condition.
        """
        values: defaultdict[str, list[str]] = defaultdict(list)
        times: dict[str, float] = {}
        for text in texts:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals:
                raise UserError(f"'{one_line(text)}' is no condition: write NAME=VALUE, as image=nemo:26.02.")
            if name in _TIMES:
                times[name] = since_when(value, now, name)
            elif name in ELEMENTS or name in _choosable():
                values[name].append(value)
            elif _VARIABLE.fullmatch(name):
                values["variable"].append(f"{name}={value}")
            else:
                known = [*_TIMES, *ELEMENTS, *_choosable()]
                raise unknown_value("column", name, known, of="conditions")
        if not values and not times:
            raise UserError("a set of runs needs a condition: write NAME=VALUE, as image=nemo:26.02.")
        conditions = tuple(Condition(name, tuple(listed)) for name, listed in values.items())
        return cls(conditions, times.get("since"), times.get("until"))

    def read(self, store: Store) -> list[SeriesRun]:
        """Return the set's valid runs that have a time to compare, newest first."""
        exact: dict[str, Any] = {
            condition.name: condition.values[0]
            for condition in self.conditions
            if len(condition.values) == 1 and _is_exact(condition)
        }
        rows = store.results(since=self.since, until=self.until, **exact)
        rows = [row for row in rows if all(condition.fits(row) for condition in self.conditions)]
        return series_runs(row for row in rows if Series.from_row(row).is_judged)

    def require_known(self, store: Store) -> None:
        """Raise UserError, with the known values, for a column's value that no run of the store has."""
        choices = store.choices()
        for condition in self.conditions:
            known = [str(value) for value in choices.get(condition.name, ())]
            for value in condition.values:
                if known and not _has(known, value):
                    raise unknown_value(
                        BY_NAME[condition.name].heading, value, known, of="the stored results"
                    )

    def values(self, column: str) -> set[str]:
        """Return the values that the set demands of a column; none if it demands nothing."""
        of_column = (condition.values for condition in self.conditions if condition.name == column)
        return {value for values in of_column for value in values}


@dataclass(frozen=True)
class Difference:
    """How much larger the second of two values is, relative to the first, with its interval."""

    change: float
    low: float | None = None
    high: float | None = None

    @property
    def percent(self) -> str:
        """The difference as text: `+3.1 % (+2.5 to +3.8 %)`."""
        whole = f"{100 * self.change:+.1f} %"
        if self.low is None or self.high is None:
            return whole
        return f"{whole} ({100 * self.low:+.1f} to {100 * self.high:+.1f} %)"

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes that there is no difference."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class CellDifference:
    """A cell of both sets: its values in each, and their difference."""

    name: str
    a: tuple[SeriesRun, ...]
    b: tuple[SeriesRun, ...]
    a_values: tuple[float, ...]
    b_values: tuple[float, ...]
    difference: Difference

    @property
    def row(self) -> dict[str, Any]:
        """The cell as values by column (`COLUMNS`)."""
        low, high = self.difference.low, self.difference.high
        return {
            "cell": self.name,
            "difference_percent": 100 * self.difference.change,
            "from_percent": None if low is None else 100 * low,
            "to_percent": None if high is None else 100 * high,
            "a_median": median(self.a_values),
            "b_median": median(self.b_values),
            "a_runs": len(self.a_values),
            "b_runs": len(self.b_values),
            "a_job": self.a[0].job_name,
            "b_job": self.b[0].job_name,
        }


@dataclass(frozen=True)
class SetComparison:
    """Two sets of runs over all cells that both have."""

    measure: Measure
    a: tuple[SeriesRun, ...]
    b: tuple[SeriesRun, ...]
    cells: tuple[CellDifference, ...]
    """Those of both sets, the most slowed first."""
    only_a: tuple[str, ...]
    """Names of the cells that only the first set has."""
    only_b: tuple[str, ...]
    differing: tuple[tuple[str, str, str, int], ...]
    """What else differs within cells: name, values in the first and the second set, number of cells."""
    unmeasured: int = 0
    """Number of cells of both sets whose runs lack the measure."""

    @property
    def median(self) -> Difference | None:
        """The median of the cells' differences; None without a common cell."""
        return median_difference([cell.difference.change for cell in self.cells]) if self.cells else None

    @property
    def sentence(self) -> str:
        """What the comparison says, in a sentence."""
        if self.median is None and self.unmeasured:
            cells = counted(self.unmeasured, "cell")
            return f"{cells} in both sets, but {_LACKING[self.measure]}"
        if self.median is None:
            return f"no cell is in both sets: {len(self.only_a)} in A, {len(self.only_b)} in B"
        cells = counted(len(self.cells), "cell")
        over = f"median of {cells} in both sets {self.median.percent}"
        if self.median.low is None:
            return f"{over}; an interval needs {_FEWEST_CELLS} cells"
        if not self.median.is_certain:
            return f"A and B do not differ by more than chance explains: {over}"
        less, more = _WORDS[self.measure]
        return f"B {more if self.median.change > 0 else less} than A: {over}"

    @property
    def remarks(self) -> list[str]:
        """Sentences on the sets, on what is compared, and on runs in both."""
        remarks = [f"A: {_described(self.a)}; B: {_described(self.b)}"]
        if self.measure == "tokens":
            remarks.append("compared is the GPU time of a million tokens, in seconds")
        elif self.measure == "price":
            remarks.append("compared is the price of a million tokens")
        if both := len({run.job_name for run in self.a} & {run.job_name for run in self.b}):
            remarks.append(f"{counted(both, 'run')} {'is' if both == 1 else 'are'} in both sets")
        return remarks

    @property
    def as_json(self) -> dict[str, Any]:
        """All but the rows of cells, by the names that commands and pages share."""
        overall = self.median
        return {
            "sentence": self.sentence,
            "remarks": self.remarks,
            "measure": self.measure,
            "median_percent": overall and 100 * overall.change,
            "median_from_percent": None if overall is None or overall.low is None else 100 * overall.low,
            "median_to_percent": None if overall is None or overall.high is None else 100 * overall.high,
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "differing": [
                {"name": name, "a": a, "b": b, "cells": cells} for name, a, b, cells in self.differing
            ],
        }


_LACKING: Mapping[Measure, str] = {
    "time": "their runs have no time",
    "tokens": "their runs have no throughput",
    "price": "no price of their runs is known: set price_per_gpu_hour in the files of the clusters",
}
_WORDS: Mapping[Measure, tuple[str, str]] = {
    "time": ("is faster", "is slower"),
    "tokens": ("needs less GPU time for a token", "needs more GPU time for a token"),
    "price": ("costs less for a token", "costs more for a token"),
}


def compare_sets(
    store: Store,
    a: Sequence[str],
    b: Sequence[str],
    *,
    measure: Measure | None = None,
    only: Mapping[str, Any] | None = None,
) -> SetComparison:
    """Compare two sets of stored runs, each given by conditions as `RunSet.parse` reads them.

    Args:
        store: the store to read.
        a: conditions of the first set, to which differences are relative.
        b: conditions of the second set.
        measure: what is compared; by default the times, or the GPU time of a token if a cell has another
            number of GPUs or another global batch size in the second set.
        only: values by column of the series to compare.

    Raises UserError for conditions that cannot be read, and if a set has no run.
    """
    now = time.time()
    sets = [RunSet.parse(texts, now) for texts in (a, b)]
    runs = []
    for name, texts, run_set in zip("AB", (a, b), sets, strict=True):
        of_set = [run for run in run_set.read(store) if Series.from_row(run.row).has(only or {})]
        if not of_set:
            run_set.require_known(store)
            shown = one_line("; ".join(texts), at_most=300)
            raise UserError(
                f"set {name} ({shown}) has no valid run of a judged mode: 'steptime results' lists all runs."
            )
        runs.append(of_set)
    return compare_runs_of_sets(*runs, identity=identity(*sets), measure=measure)


def identity(a: RunSet, b: RunSet) -> tuple[str, ...]:
    """Return the columns that cells of both sets share: those of a series that the sets do not compare.

    The sets compare a column for which both demand values, and not the same. The parallelism is left out
    then, too: each recipe has its own.
    """
    compared = {name for name in series_columns() if _differ(a, b, [name])}
    if _differ(a, b, _TOGETHER):
        compared |= _TOGETHER
    if compared:
        compared |= set(series_columns("spread"))
    return tuple(name for name in series_columns() if name not in compared)


def _differ(a: RunSet, b: RunSet, columns: Iterable[str]) -> bool:
    """Return whether both sets demand values of these columns, and not the same ones."""
    demanded = [{name: run_set.values(name) for name in columns} for run_set in (a, b)]
    return all(any(values.values()) for values in demanded) and demanded[0] != demanded[1]


def compare_runs_of_sets(
    a: Sequence[SeriesRun], b: Sequence[SeriesRun], *, identity: Sequence[str], measure: Measure | None
) -> SetComparison:
    """Compare two sets of runs, newest first, by cells with the same values in the columns `identity`."""
    cells_a, cells_b = _by_cell(a, identity), _by_cell(b, identity)
    common = [key for key in cells_a if key in cells_b]
    if measure is None:
        measure = "time" if all(_same_work(cells_a[key], cells_b[key]) for key in common) else "tokens"
    keys = list(dict.fromkeys([*cells_a, *cells_b]))
    names = dict(zip(keys, cell_names([dict(zip(identity, key, strict=True)) for key in keys]), strict=True))
    compared, differing = [], _Differing()
    for key in common:
        runs = [_measured(of_set[key], measure) for of_set in (cells_a, cells_b)]
        if not all(runs):
            continue
        values_a, values_b = (tuple(value for _, value in measured) for measured in runs)
        runs_a, runs_b = (tuple(run for run, _ in measured) for measured in runs)
        change = difference(values_a, values_b)
        compared.append(CellDifference(names[key], runs_a, runs_b, values_a, values_b, change))
        differing.add(runs_a, runs_b)
    return SetComparison(
        measure,
        tuple(a),
        tuple(b),
        tuple(sorted(compared, key=lambda cell: -cell.difference.change)),
        tuple(sorted(names[key] for key in cells_a if key not in cells_b)),
        tuple(sorted(names[key] for key in cells_b if key not in cells_a)),
        tuple(differing),
        unmeasured=len(common) - len(compared),
    )


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Return how much the median of `b` differs from that of `a`, relative to it, with a 95 % interval.

    The interval is that of Price and Bonett (2002) for a ratio of medians, which outliers hardly widen, with
    quantiles of Student's t for few runs. None below two runs on either side.
    """
    from scipy import special

    log_ratio = math.log(median(b) / median(a))
    change = math.expm1(log_ratio)
    if min(len(a), len(b)) < _FEWEST_RUNS:
        return Difference(change)
    error = math.sqrt(_variance_of_median(a) + _variance_of_median(b))
    width = special.stdtrit(len(a) + len(b) - 2, (1 + CONFIDENCE) / 2) * error
    return Difference(change, math.expm1(log_ratio - width), math.expm1(log_ratio + width))


def median_difference(changes: Sequence[float]) -> Difference:
    """Return the median of the differences of several cells, with an interval of at least 95 %.

    The interval is between two of the differences, by the binomial distribution (the sign test's interval),
    and assumes no distribution of them. None below six cells.
    """
    from scipy import special

    ordered, count = sorted(changes), len(changes)
    if count < _FEWEST_CELLS:
        return Difference(median(ordered))
    ranks = (rank for rank in range(count // 2) if 2 * special.bdtr(rank, count, 0.5) <= 1 - CONFIDENCE)
    left_out = max(ranks)
    return Difference(median(ordered), ordered[left_out], ordered[-1 - left_out])


def _variance_of_median(values: Sequence[float]) -> float:
    """Estimate the variance of the median of logarithms (Price and Bonett 2001), by two order statistics."""
    from scipy import special

    logs, count = sorted(map(math.log, values)), len(values)
    rank = max(1, round((count + 1) / 2 - math.sqrt(count)))
    outside = 2 * special.bdtr(rank - 1, count, 0.5)
    return float(((logs[count - rank] - logs[rank - 1]) / (2 * special.ndtri(1 - outside / 2))) ** 2)


def _measured(runs: Iterable[SeriesRun], measure: Measure) -> list[tuple[SeriesRun, float]]:
    """Return the runs that have a value of the measure, each with the value."""
    with_values = ((run, _value(run, measure)) for run in runs)
    return [(run, value) for run, value in with_values if value]


def _value(run: SeriesRun, measure: Measure) -> float | None:
    if measure == "time":
        return run.seconds
    if run.row["mode"] != Mode.PERFORMANCE:
        return None
    if measure == "price":
        price = run.row["price_per_million_tokens"]
        return None if price is None else float(price)
    rate = run.row["tokens_per_s_per_gpu"]
    return 1e6 / rate if rate else None


def _same_work(a: Iterable[SeriesRun], b: Iterable[SeriesRun]) -> bool:
    """Return whether a step of these runs is the same work on as many GPUs."""
    work = ({(run.row["gpus"], run.row["global_batch_size"]) for run in runs} for runs in (a, b))
    return len(set.union(*work)) == 1


def _by_cell(runs: Iterable[SeriesRun], identity: Sequence[str]) -> dict[tuple[Any, ...], list[SeriesRun]]:
    cells: dict[tuple[Any, ...], list[SeriesRun]] = {}
    for run in runs:
        cells.setdefault(tuple(run.row[name] for name in identity), []).append(run)
    return cells


class _Differing:
    """Collects what differs within cells, by name."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Counter[str], Counter[str]]] = {}
        self._cells: Counter[str] = Counter()
        self._nodes: tuple[set[str], set[str]] = (set(), set())

    def add(self, a: Iterable[SeriesRun], b: Iterable[SeriesRun]) -> None:
        """Add the runs of a cell in the first and in the second set."""
        described = [[dict(_recorded(run.row)) for run in runs] for runs in (a, b)]
        for name in dict.fromkeys(name for rows in described for row in rows for name in row):
            first, second = (Counter(row.get(name, "none") for row in rows) for rows in described)
            if set(first) != set(second):
                self._cells[name] += 1
                of_name = self._values.setdefault(name, (Counter(), Counter()))
                of_name[0].update(first)
                of_name[1].update(second)
        for nodes, runs in zip(self._nodes, (a, b), strict=True):
            for run in runs:
                nodes.update(split_nodes(run.row[NODES]))

    def __iter__(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield each name with the values in both sets and the number of cells, most cells first."""
        for name, cells in self._cells.most_common():
            first, second = self._values[name]
            yield name, _listed(first), _listed(second), cells
        first_nodes, second_nodes = self._nodes
        if first_nodes != second_nodes:
            both = len(first_nodes & second_nodes)
            counts = [f"{len(nodes)}, {both} of them in both" for nodes in self._nodes]
            yield NODES, counts[0], counts[1], 0


def _recorded(row: Row) -> Iterator[tuple[str, str]]:
    """Yield what a run ran with: names and values; each variable and each version is one of its own."""
    for name in _DESCRIBED:
        if name in ("versions", "variables"):
            for element in (row[name] or "").split(", "):
                key, _, value = element.partition(" " if name == "versions" else "=")
                if key:
                    yield key, shown_value(value)
        else:
            yield name, shown_value(row[name])


def _listed(values: Counter[str]) -> str:
    """List values, the commonest first."""
    return first_names([name for name, _ in values.most_common()], _SHOWN_VALUES)


def _described(runs: Sequence[SeriesRun]) -> str:
    submitted = [run.row["submitted_at"] for run in runs]
    count = counted(len(runs), "run")
    first, last = date(min(submitted)), date(max(submitted))
    return f"{count} of {first}" if first == last else f"{count} of {first} to {last}"


def _has(stored: Iterable[str], wanted: str) -> bool:
    if wanted.endswith("=") and wanted[:-1]:  # the variable is not set
        return not any(value.startswith(wanted) for value in stored)
    pattern = re.compile(".*".join(map(re.escape, wanted.split("*"))))
    return any(pattern.fullmatch(value) for value in stored)


def _is_exact(condition: Condition) -> bool:
    """Return whether the store can look for the condition's only value as it is."""
    value = condition.values[0]
    is_text = condition.name in ELEMENTS or BY_NAME[condition.name].kind == "text"
    return is_text and bool(value) and "*" not in value and not value.endswith("=")


def _choosable() -> list[str]:
    """Return the columns that a condition may name."""
    return [name for name, column in BY_NAME.items() if column.kind in ("text", "integer", "boolean")]


def _percent(name: str, heading: str, description: str, priority: int) -> Column:
    return Column(
        name, "number", description, heading=heading, unit="%", priority=priority, decimals=1, signed=True
    )


def _count(name: str, heading: str, description: str) -> Column:
    return Column(name, "integer", description, heading=heading, priority=2)


COLUMNS = (
    Column("cell", "text", "The cell, without the columns that the sets choose differently.", priority=0),
    _percent("difference_percent", "difference", "B relative to A: above 0 is slower or costs more.", 0),
    _percent("from_percent", "from", "Lower end of a 95 % interval; empty below two runs in a set.", 1),
    _percent("to_percent", "to", "Upper end of the interval.", 1),
    Column("a_median", "number", "Median of A's runs in the cell.", heading="A", priority=0),
    Column("b_median", "number", "Median of B's runs.", heading="B", priority=0),
    _count("a_runs", "runs of A", "Runs of the cell in A."),
    _count("b_runs", "runs of B", "Runs of the cell in B."),
    Column("a_job", "text", "Newest of these runs in A."),
    Column("b_job", "text", "Newest of these runs in B."),
)
"""Columns of a comparison of two sets, a row for each cell."""

MEASURES = get_args(Measure)
