"""What people are told about a judged series: one function, from its state and the cells compared with it.

The *state* says where a series stands after a run: unchanged, suspected, confirmed, … It rests on the series
alone. The *verdict* is what people are told: a suspicion counts as a slowdown only if it is a discovery at a
false discovery rate of 5 % among the cells compared with the run. These are all judged series with a run
within a week of it, each by its run nearest in time. They do not depend on the period, sweep or filter that
somebody asks for, so tables, pages, reports, notifications and exports give a run the same verdict.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Self, get_args

from steptime.durations import WEEK_S
from steptime.judging.detection import FALSE_DISCOVERY_RATE, Direction, SeriesState, adjust_p_values
from steptime.judging.judgements import hidden_series, judge_now
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, by_series
from steptime.store import judgement_queries
from steptime.store.run_queries import Store

NEAR_S = WEEK_S
"""A run is compared with runs of other series that were submitted within this many seconds of it."""

SeriesVerdict = Literal["slower", "faster", "unchanged", "insufficient history"]
VERDICTS: tuple[SeriesVerdict, ...] = get_args(SeriesVerdict)
"""All verdicts, in the order in which comparisons list them."""


class PValues(NamedTuple):
    """The one-sided p-values of a judged run against the history of its series."""

    submitted_at: float
    """Unix time at which the run was submitted."""
    slower: float
    faster: float

    @classmethod
    def of(cls, submitted_at: float, direction: Direction, p_value: float) -> Self:
        """Return both p-values of a run from the one for this direction."""
        slower = p_value if direction == "slower" else 1 - p_value
        return cls(submitted_at, slower, 1 - slower if direction == "slower" else p_value)

    def towards(self, direction: Direction) -> float:
        """Return the p-value for this direction."""
        return self.slower if direction == "slower" else self.faster


ComparedCells = Mapping[Series, Sequence[PValues]]
"""The p-values of the runs of each series, oldest run first."""


def decide_verdict(series_state: SeriesState, q_value: float) -> SeriesVerdict:
    """Return what people are told about a series in this state.

    A confirmed change is always reported. A suspected one is reported if `q_value`, its p-value adjusted for
    the cells compared with it, is at most `FALSE_DISCOVERY_RATE`; otherwise the series is `unchanged`, and
    its state stays `suspected` until further runs decide it. `insufficient history` if the state is so.
    """
    state, direction = series_state.state, series_state.direction
    if state == "insufficient history":
        return state
    reported = state == "confirmed" or (state == "suspected" and q_value <= FALSE_DISCOVERY_RATE)
    return direction if reported and direction is not None else "unchanged"


def describe_verdict(verdict: str, state: str) -> str:
    """Return a verdict and the state of the series in words: `slower, confirmed`; not the same word twice."""
    return verdict if verdict == state else f"{verdict}, {state}"


def read_q_values(store: Store, judged: Iterable[tuple[Series, Judgement]]) -> dict[str, float]:
    """Return, by job name, the p-value of each judged run, adjusted for the cells compared with it.

    Runs whose series has neither a suspected nor a decided change are left out. If the store's user may not
    read all runs of a series, only those that the user may read count.
    """
    changed = [(series, judgement) for series, judgement in judged if _has_p_value(judgement)]
    if not changed:
        return {}
    times = [judgement.run.row["submitted_at"] for _, judgement in changed]
    return adjust_q_values(changed, _read_compared(store, min(times) - NEAR_S, max(times) + NEAR_S))


def adjust_q_values(
    judged: Iterable[tuple[Series, Judgement]], compared: ComparedCells | None = None
) -> dict[str, float]:
    """Return, by job name, the p-value of each judged run, adjusted by Benjamini and Hochberg.

    Args:
        judged: series, each with the judgement of one of its runs. Those that have neither a suspected nor a
            decided change are left out of the answer.
        compared: the cells to compare with; by default the judged runs are compared with each other.
    """
    judged = list(judged)
    if compared is None:
        compared = {
            series: [_p_values(judgement)]
            for series, judgement in judged
            if judgement.series_state.against.suffices
        }
    times = {series: [judgement.submitted_at for judgement in runs] for series, runs in compared.items()}
    q_values = {}
    for series, judgement in judged:
        direction = judgement.series_state.direction
        if direction is None or not _has_p_value(judgement):
            continue
        at = judgement.run.row["submitted_at"]
        nearest = (_nearest(runs, times[other], at) for other, runs in compared.items() if other != series)
        others = [run.towards(direction) for run in nearest if run is not None]
        q_values[judgement.run.job_name] = adjust_p_values(
            [judgement.series_state.p_value(direction), *others]
        )[0]
    return q_values


def _has_p_value(judgement: Judgement) -> bool:
    series_state = judgement.series_state
    return series_state.direction is not None and series_state.against.suffices


def _p_values(judgement: Judgement) -> PValues:
    p_value = judgement.series_state.p_value
    return PValues(judgement.run.row["submitted_at"], p_value("slower"), p_value("faster"))


def _nearest(runs: Sequence[PValues], times: Sequence[float], at: float) -> PValues | None:
    """Return the run that was submitted nearest to `at` (Unix time); None if none is within `NEAR_S`.

    `runs` are oldest first, and `times` are their times.
    """
    after = bisect_left(times, at)
    near = (run for run in runs[max(0, after - 1) : after + 1] if abs(run.submitted_at - at) <= NEAR_S)
    return min(near, key=lambda run: (abs(run.submitted_at - at), -run.submitted_at), default=None)


def _read_compared(store: Store, since: float, until: float) -> ComparedCells:
    """Return the p-values of the judged runs of all series, submitted from `since` to `until` (Unix times).

    A series is judged now if it has a run without a stored judgement, or runs that the store's user may not
    read.
    """
    rows = by_series(judgement_queries.p_values(store, since, until))
    p_values: dict[Series, list[PValues]] = {}
    hidden = hidden_series(store)
    for series, runs in rows.items():
        if series in hidden or any(row["series_state"] is None for row in runs):
            p_values[series] = [
                _p_values(judgement)
                for judgement in judge_now(store, series)
                if judgement.series_state.against.suffices
                and since <= judgement.run.row["submitted_at"] <= until
            ]
        else:
            p_values[series] = [
                PValues.of(row["submitted_at"], row["direction"] or "slower", row["p_value"])
                for row in runs
                if row["p_value"] is not None
            ]
    return p_values
