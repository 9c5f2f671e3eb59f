"""Series: the runs of the store that may be compared with each other, over time.

A series is cluster, GPU type, recipe and its release, size, scale, data type, parallelism, scaling and mode.
An image, a version, a driver, an option or a commit that changes is an event in it and not its end: upgrades
are the commonest cause of a slowdown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from steptime.recipes.models import Mode, Run
from steptime.results.columns import of_series, planned_values
from steptime.results.judgement_queries import latest_numbers, newest_of_each
from steptime.results.store import Store

_FIGURES = {
    Mode.PERFORMANCE: ("step_time_s", ("steady_step_time_s", "step_time_mean_s")),
    Mode.CHECKPOINT_SAVE: ("checkpoint_blocked_s", ("checkpoint_blocked_s", "checkpoint_save_s")),
    Mode.CHECKPOINT_LOAD: ("checkpoint_load_s", ("checkpoint_load_s",)),
}
"""What each mode is judged by, and the columns of it, of which the first that a run has counts; profiles and
traces are not for comparison."""

RECENT_RUNS = 20
"""Of a series that a small chart shows."""

COLUMNS = of_series()
"""The columns of the store that make a series."""


@dataclass(frozen=True)
class Series:
    """What makes a series: a value of each of `COLUMNS`."""

    values: tuple[Any, ...]

    def __getitem__(self, column: str) -> Any:
        return self.values[COLUMNS.index(column)]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the series of a run of the store."""
        return cls(tuple(row[name] for name in COLUMNS))

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Return the series of a planned run."""
        return cls.from_row(planned_values(run))

    @property
    def key(self) -> dict[str, Any]:
        """Its columns with their values."""
        return dict(zip(COLUMNS, self.values, strict=True))

    def has(self, values: Mapping[str, Any]) -> bool:
        """Return whether the series has these values, by their columns."""
        return all(self[name] == value for name, value in values.items())

    @property
    def is_judged(self) -> bool:
        """Whether the times of its mode, and its runs, are for comparison."""
        return self["mode"] in _FIGURES and self["for_judging"]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of the numbers that its runs are judged by; a run without any is not judged."""
        return _FIGURES[self["mode"]][1]

    @property
    def label(self) -> str:
        """What people call it: `70b·fp8·64`."""
        mode = [] if self["mode"] == Mode.PERFORMANCE else [self["mode"].replace("_", " ")]
        tuned = [f"tuned {self['tuning']}"] if self["tuning"] else []
        return "·".join([self["size"], self["dtype"], str(self["gpus"]), *mode, *tuned])

    @property
    def full_name(self) -> str:
        """With all that two series of one label may differ in."""
        # tp for tensor_parallel; a dense model has no experts to spread.
        ways = {f"{way[0]}p": self[way] for way in of_series("spread")}
        if ways["ep"] == 1:
            del ways["ep"]
        proxy = ["proxy"] if self["proxy"] else []
        spread = f"{'/'.join(ways)} {'/'.join(map(str, ways.values()))}"
        apart = [self["workload"], *proxy, self["scaling"], spread]
        return f"{self.label} ({', '.join(apart)}, {self['gpu_type']} of {self['cluster']})"

    def differences(self, other: Self) -> list[str]:
        """Return the columns in which two series differ, one by one."""
        return [
            f"{name.replace('_', ' ')} {self[name]} and {other[name]}"
            for name in COLUMNS
            if self[name] != other[name]
        ]


@dataclass(frozen=True)
class SeriesRun:
    """A run of a series, with the number that it is judged by."""

    row: Mapping[str, Any]
    """Of the store."""
    seconds: float
    judged_on: str
    """Which number that is: `median of steps 30 to 49`, or a column of the results."""
    figure: str = "step_time_s"
    """What it is a number of: step time, or seconds of a checkpoint."""

    @property
    def job_name(self) -> str:
        """Its key in the store."""
        return str(self.row["job_name"])


def series_runs(rows: Iterable[Mapping[str, Any]]) -> list[SeriesRun]:
    """Return those of the stored runs that have the number by which they are judged."""
    return [run for run in map(_judged, rows) if run is not None]


def all_series(store: Store) -> list[tuple[Series, str]]:
    """Return every judged series of a store, with the job name of its newest run; latest first."""
    rows = newest_of_each(store)
    known = ((Series.from_row(row), row["job_name"]) for row in rows)
    return [(series, job_name) for series, job_name in known if series.is_judged]


def recent_seconds(store: Store) -> dict[Series, list[float]]:
    """Return the judged times of each series' recent runs, oldest first, in seconds."""
    found: dict[Series, list[float]] = {}
    for row in latest_numbers(store, RECENT_RUNS):
        if (series := Series.from_row(row)).is_judged and (run := _judged(row)) is not None:
            found.setdefault(series, []).append(run.seconds)
    return found


def _judged(row: Mapping[str, Any]) -> SeriesRun | None:
    figure, numbers = _FIGURES[Mode(row["mode"])]
    name = next((name for name in numbers if row[name]), None)
    if name is None:
        return None
    if name == "steady_step_time_s":
        first, last = row["steady_steps"].split(":")
        return SeriesRun(row, row[name], f"median of steps {first} to {last}", figure)
    return SeriesRun(row, row[name], name, figure)
