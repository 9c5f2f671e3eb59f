"""A judged run, and its rows in the table of judgements."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from steptime.judging.detection import FRESH_RUNS, LEAST_CHANGE, Baseline, Seconds, Standing
from steptime.judging.drift import Drift, Level
from steptime.judging.placement import Placement
from steptime.judging.series import JudgedRun
from steptime.results import judgement_rows
from steptime.results.metrics import PUBLISHED_THROUGHPUT


@dataclass(frozen=True)
class Judged:
    """A run, how it stands in its series, and what changed before it stood out."""

    run: JudgedRun
    standing: Standing
    changes: tuple[str, ...] = ()
    """From the last usual run to the first that was not, if that is suspected or confirmed."""
    drift: Drift | None = None
    """How its series drifted slower to it, none of which is reported as slower; of the newest run alone."""
    placement: Placement | None = None
    """On which nodes it was suspected, and decided by fresh runs; None if nothing is or was suspected."""

    @property
    def is_news(self) -> bool:
        """Whether it is suspected or confirmed, or was dismissed, with this run and not with one before."""
        standing = self.standing
        first = {"suspected": 1, "confirmed": 1 + FRESH_RUNS}.get(standing.state)
        return standing.state == "dismissed" or len(standing.since) == first

    @property
    def began_with(self) -> str:
        """The job at which what is suspected or confirmed began; its own if nothing is."""
        since = [job_name for job_name, _ in named(self.standing.since)]
        return since[0] if since else self.run.job_name


def kept_rows(one: Judged) -> Iterator[dict[str, Any]]:
    """Yield the rows that are kept of a judged run."""
    yield _against_history(one)
    if one.run.row["against_publication"]:
        yield _against_publication(one.run.row)
    if one.drift is not None:
        yield _drifted(one.run, one.drift)


def _against_history(one: Judged) -> dict[str, Any]:
    standing, against = one.standing, one.standing.against
    known = against.suffices
    of_baseline: dict[str, Any] = (
        {
            "ratio": 1 + against.change(standing.judged),
            "limit_ratio": 1 + against.bound(len(standing.judged)),
            "baseline_mean_s": against.mean,
            "baseline_median_s": statistics.median(against.runs),
            "baseline_deviation": against.deviation,
            "minimum_detectable_change": against.minimum_detectable_change,
            "p_value": standing.p_value(standing.direction or "slower"),
        }
        if known
        else {}
    )
    return _row(
        one.run.figure,
        "history",
        verdict=standing.state,
        direction=standing.direction,
        judged_on=one.run.judged_on,
        judged_s=statistics.fmean(standing.judged),
        baseline_runs=len(against.runs),
        rests_on={
            "judged": named(standing.judged),
            "baseline": named(against.runs),
            "since": named(standing.since),
            **({"nodes": one.placement.as_stored} if one.placement else {}),
        },
        changes=list(one.changes),
        **of_baseline,
    )


def _against_publication(row: Mapping[str, Any]) -> dict[str, Any]:
    return _row(
        "step_time_s",
        "publication",
        verdict=row["against_publication"],
        judged_on="step_time_mean_s",
        judged_s=row["step_time_mean_s"],
        ratio=row["step_time_over_published"],
        limit_ratio=1 / PUBLISHED_THROUGHPUT,
        baseline_mean_s=row["published_step_time_s"],
        rests_on={},
        changes=[],
    )


def _drifted(run: JudgedRun, drift: Drift) -> dict[str, Any]:
    return _row(
        run.figure,
        "drift",
        verdict="slower",
        direction="slower",
        judged_on=run.judged_on,
        judged_s=drift.levels[-1].seconds,
        ratio=1 + drift.change,
        limit_ratio=1 + LEAST_CHANGE,
        baseline_median_s=drift.fastest.seconds,
        baseline_runs=drift.fastest.runs,
        rests_on={"levels": [astuple(level) for level in drift.levels]},
        changes=[],
    )


def kept_drift(rests_on: Mapping[str, Any] | None) -> Drift | None:
    """Return the content of a stored judgement of that kind."""
    return None if rests_on is None else Drift(tuple(Level(*level) for level in rests_on["levels"]))


def _row(figure: str, kind: str, **values: Any) -> dict[str, Any]:
    """A row of the table; what is not known of it is None."""
    return dict.fromkeys(judgement_rows.columns()) | {"figure": figure, "kind": kind} | values


def named(runs: Sequence[float]) -> list[tuple[str, float]]:
    """Return each run by its job, with its seconds."""
    return [(run.job_name, float(run)) for run in runs if isinstance(run, Seconds)]


def kept_standing(row: Mapping[str, Any]) -> Standing:
    """Return the content of a stored judgement, without the baseline of the next run."""
    judged, baseline, since = (
        tuple(Seconds.of(*run) for run in row["rests_on"][name]) for name in ("judged", "baseline", "since")
    )
    return Standing(row["verdict"], row["direction"], judged, Baseline(baseline), since=since)
