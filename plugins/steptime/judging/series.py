"""Series: runs of the store that are comparable with each other over time.

A series is identified by cluster, GPU type, workload and release, model size, number of GPUs, data type,
parallelism, scaling and mode. Image, versions, drivers, options and commits may change within a series,
because upgrades are the commonest cause of a slowdown; a trend shows these changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

from steptime.recipes.models import Mode, Run
from steptime.store.columns import planned_values, series_columns
from steptime.store.judgement_queries import latest_numbers, newest_of_each
from steptime.store.run_queries import Store

_METRICS = {
    Mode.PERFORMANCE: ("step_time_s", ("steady_step_time_s", "step_time_mean_s")),
    Mode.CHECKPOINT_SAVE: ("checkpoint_blocked_s", ("checkpoint_blocked_s", "checkpoint_save_s")),
    Mode.CHECKPOINT_LOAD: ("checkpoint_load_s", ("checkpoint_load_s",)),
}
"""What each mode is judged by, and the columns for it; the first with a value counts. Profiles and traces are
not judged."""

RECENT_RUNS = 20
"""Newest runs of a series that a small chart shows."""

COLUMNS = series_columns()
"""The columns of the store that identify a series."""

_values = itemgetter(*COLUMNS)


@dataclass(frozen=True)
class Series:
    """What identifies a series of comparable runs: the values of `COLUMNS`, such as cluster and size."""

    values: tuple[Any, ...]

    def __getitem__(self, column: str) -> Any:
        return self.values[COLUMNS.index(column)]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the series that a run belongs to, from its row of the store."""
        return cls(_values(row))

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Return the series that a planned run belongs to."""
        return cls.from_row(planned_values(run))

    @property
    def key(self) -> dict[str, Any]:
        """The values of the series by column, for selecting its runs in the store."""
        return dict(zip(COLUMNS, self.values, strict=True))

    def has(self, values: Mapping[str, Any]) -> bool:
        """Return whether the series has all of these values, given by column."""
        return all(self[name] == value for name, value in values.items())

    @property
    def is_judged(self) -> bool:
        """Whether its runs are judged: not profiles and traces, nor runs imported with `--not-judged`."""
        return self["mode"] in _METRICS and self["for_judging"]

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns that may hold the time that a run is judged by; the first one with a value is used."""
        return _METRICS[self["mode"]][1]

    @property
    def label(self) -> str:
        """A short name like `70b·fp8·64`: size, data type, GPUs, mode unless performance, and any tuning."""
        return _label(self.key)

    @property
    def full_name(self) -> str:
        """The label with values that tell apart series of the same label, such as workload and cluster."""
        # tp for tensor_parallel; a dense model has no experts to spread.
        ways = {f"{way[0]}p": self[way] for way in series_columns("spread")}
        if ways["ep"] == 1:
            del ways["ep"]
        proxy = ["proxy"] if self["proxy"] else []
        spread = f"{'/'.join(ways)} {'/'.join(map(str, ways.values()))}"
        apart = [self["workload"], *proxy, self["scaling"], spread]
        return f"{self.label} ({', '.join(apart)}, {self['gpu_type']} of {self['cluster']})"

    def differences(self, other: Self) -> list[str]:
        """Describe each column in which two series differ, as in `gpus 8 and 16`."""
        return [
            f"{name.replace('_', ' ')} {self[name]} and {other[name]}"
            for name in COLUMNS
            if self[name] != other[name]
        ]


def cell_names(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each of several cells, given by values of `COLUMNS`: `70b·fp8·64`.

    Cells of one label have the values in which they differ behind it: `70b·fp8·64 (gb200, grace)`.
    """
    labels = [_label(cell) for cell in cells]
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for label, cell in zip(labels, cells, strict=True):
        alike.setdefault(label, []).append(cell)
    return [_apart(label, cell, alike[label]) for label, cell in zip(labels, cells, strict=True)]


def _label(cell: Mapping[str, Any]) -> str:
    parts = [str(cell[name]) for name in ("size", "dtype", "gpus") if name in cell]
    if cell.get("mode") not in (None, Mode.PERFORMANCE):
        parts.append(cell["mode"].replace("_", " "))
    if cell.get("tuning"):
        parts.append(f"tuned {cell['tuning']}")
    return "·".join(parts)


def _apart(label: str, cell: Mapping[str, Any], alike: Iterable[Mapping[str, Any]]) -> str:
    words = [
        f"{name.replace('_', ' ')} {cell[name]}" if name.endswith("_parallel") else _word(name, cell[name])
        for name in cell
        if any(other[name] != cell[name] for other in alike)
    ]
    return f"{label} ({', '.join(words)})" if words else label


def _word(name: str, value: Any) -> str:
    return ("" if value else "no ") + name if isinstance(value, bool) else str(value or f"no {name}")


@dataclass(frozen=True)
class SeriesRun:
    """A run of a series, with the time that it is judged by."""

    row: Mapping[str, Any]
    """The row of the store."""
    seconds: float
    judged_on: str
    """Which time that is: `median of steps 30 to 49`, or a column of the results."""
    metric: str = "step_time_s"
    """What the time measures: a step, or a checkpoint operation."""

    @property
    def job_name(self) -> str:
        """Name of the run's job, its key in the store."""
        return str(self.row["job_name"])


def by_series(rows: Iterable[Mapping[str, Any]]) -> dict[Series, list[Mapping[str, Any]]]:
    """Return the rows of each judged series in their order; others, such as profiles, are left out."""
    found: dict[Series, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(Series.from_row(row), []).append(row)
    return {series: of_series for series, of_series in found.items() if series.is_judged}


def series_runs(rows: Iterable[Mapping[str, Any]]) -> list[SeriesRun]:
    """Return the runs in these rows that have a time to judge. The modes of all must be judged ones."""
    return [run for run in map(_judged, rows) if run is not None]


def all_series(store: Store) -> list[tuple[Series, str]]:
    """Return every judged series of a store with the job name of its newest run, newest first."""
    rows = newest_of_each(store)
    known = ((Series.from_row(row), row["job_name"]) for row in rows)
    return [(series, job_name) for series, job_name in known if series.is_judged]


def recent_seconds(store: Store, runs: int = RECENT_RUNS) -> dict[Series, list[float]]:
    """Return, by series, the times that its newest `runs` are judged by, in seconds, oldest first."""
    seconds_of: dict[Series, list[float]] = {}
    for values, rows in latest_numbers(store, runs).items():
        if (series := Series(values)).is_judged:
            times = (row[name] for row in rows if (name := _judged_column(series.time_columns, row)))
            seconds_of[series] = [seconds for seconds in times if seconds]
    return seconds_of


def _judged(row: Mapping[str, Any]) -> SeriesRun | None:
    metric, numbers = _METRICS[Mode(row["mode"])]
    name = _judged_column(numbers, row)
    if name is None:
        return None
    if name == "steady_step_time_s":
        first, last = row["steady_steps"].split(":")
        return SeriesRun(row, row[name], f"median of steps {first} to {last}", metric)
    return SeriesRun(row, row[name], name, metric)


def _judged_column(numbers: Iterable[str], row: Mapping[str, Any]) -> str | None:
    """Return the first of these columns with a value."""
    return next((name for name in numbers if row[name]), None)
