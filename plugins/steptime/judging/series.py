"""Series: the runs of the store that may be compared with each other, over time.

A series is cluster, GPU type, recipe and its release, size, scale, data type, parallelism, scaling and mode.
An image, a version, a driver, an option or a commit that changes is an event in it and not its end: upgrades
are the commonest cause of a slowdown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from steptime.recipes.models import Mode, Run
from steptime.results.store import Store

_FIGURES = {
    Mode.PERFORMANCE: ("step_time_s", "step_time_mean_s"),
    Mode.CHECKPOINT_SAVE: ("checkpoint_save_s", "checkpoint_save_s"),
    Mode.CHECKPOINT_LOAD: ("checkpoint_load_s", "checkpoint_load_s"),
}
"""What each mode is judged by, and the column of it; profiles and traces are not for comparison."""

_WAYS = ("tensor", "pipeline", "context", "data", "expert")


@dataclass(frozen=True)
class Series:
    """What makes a series, by the columns of the store."""

    cluster: str
    gpu_type: str
    workload: str
    size: str
    proxy: bool
    gpus: int
    dtype: str
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    data_parallel: int
    scaling: str
    mode: str
    expert_parallel: int = 1

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """That of a run of the store."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    @classmethod
    def of_run(cls, run: Run) -> Self:
        """That of a planned run."""
        ways: dict[str, Any] = {f"{way}_parallel": getattr(run.recipe.parallelism, way) or 1 for way in _WAYS}
        return cls(
            **run.recipe.identity,  # type: ignore[arg-type]
            **ways,
            proxy=run.recipe.proxy,
            cluster=run.cluster,
            mode=run.mode.value,
        )

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The columns of the store that make a series."""
        return tuple(field.name for field in fields(cls))

    @property
    def key(self) -> dict[str, Any]:
        """Its columns with their values."""
        return asdict(self)

    @property
    def is_judged(self) -> bool:
        """Whether the times of its mode are for comparison."""
        return self.mode in _FIGURES

    @property
    def label(self) -> str:
        """What people call it: `70b·fp8·64`."""
        mode = [] if self.mode == Mode.PERFORMANCE else [self.mode.replace("_", " ")]
        return "·".join([self.size, self.dtype, str(self.gpus), *mode])

    @property
    def full_name(self) -> str:
        """With all that two series of one label may differ in."""
        ways = {
            "tp": self.tensor_parallel,
            "pp": self.pipeline_parallel,
            "cp": self.context_parallel,
            "dp": self.data_parallel,
        }
        if self.expert_parallel != 1:
            ways["ep"] = self.expert_parallel
        proxy = ["proxy"] if self.proxy else []
        apart = [self.workload, *proxy, self.scaling, f"{'/'.join(ways)} {'/'.join(map(str, ways.values()))}"]
        return f"{self.label} ({', '.join(apart)}, {self.gpu_type} of {self.cluster})"

    def differences(self, other: Self) -> list[str]:
        """The fields in which two series differ, one by one."""
        mine, others = asdict(self), asdict(other)
        return [
            f"{name.replace('_', ' ')} {mine[name]} and {others[name]}"
            for name in mine
            if mine[name] != others[name]
        ]


@dataclass(frozen=True)
class JudgedRun:
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


def judged_runs(rows: Iterable[Mapping[str, Any]]) -> list[JudgedRun]:
    """Those of stored runs that have the number they are judged by."""
    return [run for run in map(_judged, rows) if run is not None]


def all_series(store: Store) -> list[tuple[Series, str]]:
    """Every judged series of a store, with the job name of its newest run; latest first."""
    rows = store.newest_of_each(Series.columns())
    known = ((Series.of_row(row), row["job_name"]) for row in rows)
    return [(series, job_name) for series, job_name in known if series.is_judged]


def _judged(row: Mapping[str, Any]) -> JudgedRun | None:
    mode = Mode(row["mode"])
    figure, name = _FIGURES[mode]
    if mode is Mode.PERFORMANCE and row["steady_step_time_s"]:
        first, last = row["steady_steps"].split(":")
        return JudgedRun(row, row["steady_step_time_s"], f"median of steps {first} to {last}", figure)
    return JudgedRun(row, row[name], name, figure) if row[name] else None
