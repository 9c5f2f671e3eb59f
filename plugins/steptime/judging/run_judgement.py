"""The judgement of a run, and its rows in the table `judgements`."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

from steptime.judging.detection import (
    LEAST_CHANGE,
    Baseline,
    Direction,
    RunSeconds,
    SeriesState,
    State,
)
from steptime.judging.drift import Drift, Level
from steptime.judging.onset import Onset
from steptime.judging.placement import Placement
from steptime.judging.series import SeriesRun
from steptime.store import judgement_queries


@dataclass(frozen=True)
class EarlierStep:
    """A confirmed slowdown of a series that became slower once more."""

    usual_s: float
    """Mean time of the baseline before it, in seconds."""
    since: float
    """Unix time of the run with which it began."""


@dataclass(frozen=True)
class Judgement:
    """The state of a series after one of its runs, and what had changed if it got slower or faster."""

    run: SeriesRun
    series_state: SeriesState
    changes: tuple[str, ...] = ()
    """What changed at the run with which the suspected or confirmed level began."""
    drift: Drift | None = None
    """How the series got slower without a suspicion; only for the newest run."""
    placement: Placement | None = None
    """Nodes of the suspected run and of the two after it; None if nothing is or was suspected."""
    onset: Onset | None = None
    """When the suspected or confirmed level began."""
    earlier: tuple[EarlierStep, ...] = ()
    """The slowdowns that the reported one is on top of, oldest first."""

    @classmethod
    def from_row(cls, run: SeriesRun) -> Self:
        """Read the judgement of a run from its row, which also has the columns of its stored judgement.

        What is needed only to judge the next run is not stored, so `series_state` lacks it: `is_open`, the
        next run's baseline, and `level` unless a further slowdown is suspected.
        """
        row = run.row
        rests_on, drift = row["rests_on"], row["drift"]
        further = rests_on.get("further")
        return cls(
            run,
            _read_state(
                row["series_state"],
                row["direction"],
                rests_on,
                level=further and _read_state("suspected", "slower", further),
            ),
            tuple(row["changes"]),
            drift and _read_drift(drift),
            Placement.stored(rests_on),
            Onset.stored(rests_on),
            tuple(EarlierStep(*step) for step in rests_on.get("earlier", ())),
        )

    @property
    def is_step(self) -> bool:
        """Whether it is a slowdown too small for a single run to show, which all runs since confirm."""
        return (
            self.drift is not None and self.drift.step is not None and self.series_state.state == "confirmed"
        )

    @property
    def level_change(self) -> float:
        """Relative change of the slower or faster level against the baseline; 0 if that has too few runs.

        Of a confirmed change it is the median of the runs after the one that raised the suspicion, so that it
        hardly moves when the first runs are usual again; otherwise that of the judged runs.
        """
        state = self.series_state
        if state.state == "confirmed" and len(state.since) > 1 and not self.is_step:
            return state.against.change([statistics.median(state.since[1:])])
        return state.change or 0.0

    @property
    def began_with(self) -> str:
        """Job name of the run with which the suspected or confirmed change began; else of the judged run."""
        return self.onset.job_name if self.onset else self.run.job_name


def rows_to_store(judgement: Judgement) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table `judgements` for a judgement.

    One of kind `history` always, and one of kind `drift` if there is a drift.
    """
    yield _against_history(judgement)
    if judgement.drift is not None:
        yield _drifted(judgement, judgement.drift)


def _against_history(judgement: Judgement) -> dict[str, Any]:
    series_state, against = judgement.series_state, judgement.series_state.against
    known, further = against.suffices, series_state.level and series_state.level.suspicion
    of_baseline: dict[str, Any] = (
        {
            "ratio": 1 + against.change(series_state.judged),
            "limit_ratio": 1 + against.bound(len(series_state.judged)),
            "baseline_mean_s": against.mean,
            "baseline_median_s": statistics.median(against.runs),
            "baseline_deviation": against.deviation,
            "minimum_detectable_change": against.minimum_detectable_change,
            "p_value": series_state.p_value(series_state.direction or "slower"),
        }
        if known
        else {}
    )
    return _row(
        judgement.run.metric,
        "history",
        series_state=series_state.state,
        direction=series_state.direction,
        judged_on=judgement.run.judged_on,
        judged_s=statistics.fmean(series_state.judged),
        baseline_runs=len(against.runs),
        rests_on={
            **_state_to_store(series_state),
            **({"further": _state_to_store(further)} if further else {}),
            **({"earlier": [astuple(step) for step in judgement.earlier]} if judgement.earlier else {}),
            **({"nodes": judgement.placement.as_stored} if judgement.placement else {}),
            **({"onset": judgement.onset.as_stored} if judgement.onset else {}),
        },
        changes=list(judgement.changes),
        **of_baseline,
    )


def _state_to_store(series_state: SeriesState) -> dict[str, Any]:
    """Return the runs that a state rests on as JSON."""
    return {
        "judged": with_job_names(series_state.judged),
        "baseline": with_job_names(series_state.against.runs),
        "since": with_job_names(series_state.since),
    }


def _read_state(
    state: State,
    direction: Direction | None,
    rests_on: Mapping[str, Any],
    level: SeriesState | None = None,
) -> SeriesState:
    """Read a state from the runs that it rests on, as `_state_to_store` returned them."""
    judged, baseline, since = (
        tuple(RunSeconds.of(*named) for named in rests_on[name]) for name in ("judged", "baseline", "since")
    )
    return SeriesState(state, direction, judged, Baseline(baseline), since=since, level=level)


def _drifted(judgement: Judgement, drift: Drift) -> dict[str, Any]:
    return _row(
        judgement.run.metric,
        "drift",
        series_state=judgement.series_state.state,
        direction="slower",
        judged_on=judgement.run.judged_on,
        judged_s=drift.levels[-1].seconds,
        ratio=1 + drift.change,
        limit_ratio=1 + LEAST_CHANGE,
        baseline_median_s=drift.fastest.seconds,
        baseline_runs=drift.fastest.runs,
        rests_on={
            "levels": [astuple(level) for level in drift.levels],
            "step": drift.step,
            "began_at": drift.began_at,
        },
        changes=[],
    )


def _read_drift(rests_on: Mapping[str, Any]) -> Drift:
    """Read a drift from the column `rests_on` of a stored judgement of the kind `drift`."""
    levels, step = rests_on["levels"], rests_on["step"]
    return Drift(tuple(Level(*level) for level in levels), step and tuple(step), rests_on["began_at"])


def _row(metric: str, kind: str, **values: Any) -> dict[str, Any]:
    """Return a row of the table `judgements`; columns without a value are None."""
    return dict.fromkeys(judgement_queries.columns()) | {"metric": metric, "kind": kind} | values


def with_job_names(runs: Sequence[float]) -> list[tuple[str, float]]:
    """Return the job name and the seconds of each run that has its job's name (a `RunSeconds`)."""
    return [(run.job_name, float(run)) for run in runs if isinstance(run, RunSeconds)]
