"""How often a weekly sweep errs, by seeded simulation: the figures of `docs/judging.md`.

A week is a run of each cell, their comparison, the fresh runs that it wants, and the comparison after them.
`tests/airflow/sweep/test_confirming.py` has the task that starts just these.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from steptime.judging.detection import BASELINE_RUNS, Baseline, Standing, judge
from steptime.judging.findings import Finding, among_all
from steptime.judging.series import JudgedRun, Series
from steptime.results.columns import of_series

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "judging.md"
NOISE = 0.01
"""Standard deviation from run to run, relative to the step time."""
WEEKS, CELLS = 52, 54
RUN = JudgedRun({}, 1.0, "")

Cells = Mapping[Series, Standing]


@cache
def series(number: int) -> Series:
    """A cell of its own for each number."""
    return Series.of_row(dict.fromkeys(of_series()) | {"gpus": number})


def usual(noise: np.random.Generator, cells: int) -> Cells:
    """Cells with a whole baseline."""
    runs = noise.normal(1, NOISE, (cells, BASELINE_RUNS)).tolist()
    return {
        series(number): Standing("unchanged", baseline=Baseline(tuple(some)))
        for number, some in enumerate(runs)
    }


def compared(cells: Cells) -> tuple[Finding, ...]:
    """As a comparison has them, worst first."""
    return among_all(Finding(one, RUN, standing) for one, standing in cells.items())


def a_week(
    before: Cells, noise: np.random.Generator, slower: float = 0
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What is found before and after fresh runs; one cell, `series(0)`, is slower by that."""
    levels = {one: 1 + slower * (one == series(0)) for one in before}
    runs = noise.normal(list(levels.values()), NOISE).tolist()
    cells = {one: judge(before[one], run) for one, run in zip(before, runs, strict=True)}
    before_fresh = compared(cells)
    wanting = [one for one in before_fresh if one.fresh_runs_wanted]
    for found in wanting:
        for run in noise.normal(levels[found.series], NOISE, found.fresh_runs_wanted).tolist():
            cells[found.series] = judge(cells[found.series], run)
    return before_fresh, compared(cells) if wanting else before_fresh


def unchanged_years(cells: int, years: int) -> Counter[str]:
    """What is found in years of a sweep whose cells never change."""
    noise, counts = np.random.default_rng(12), Counter[str]()
    for _ in range(years):
        before = usual(noise, cells)
        for _ in range(WEEKS):
            before_fresh, found = a_week(before, noise)
            counts["suspected"] += sum(one.fresh_runs_wanted > 0 for one in before_fresh)
            counts["fresh runs"] += sum(one.fresh_runs_wanted for one in before_fresh)
            slower = {one.series for one in found if one.verdict == "slower"}
            counts["confirmed"] += sum(before[one].state != "confirmed" for one in slower)
            counts["Mondays before"] += any(one.verdict == "slower" for one in before_fresh)
            counts["Mondays"] += bool(slower)
            before = {one.series: one.standing for one in found}
    return counts


def power(slower: float, cells: int, weeks: int) -> float:
    """How often the one cell that got slower is confirmed in its first week."""
    noise, confirmed = np.random.default_rng(12), 0
    for _ in range(weeks):
        _, found = a_week(usual(noise, cells), noise, slower)
        confirmed += any(
            (one.series, one.verdict, one.standing.state) == (series(0), "slower", "confirmed")
            for one in found
        )
    return confirmed / weeks


def seen_at_the_least(cells: int) -> float:
    """How often one run that is slower by its cell's minimum detectable change is suspected."""
    noise, seen = np.random.default_rng(12), 0
    for before in usual(noise, cells).values():
        slower = 1 + before.baseline.minimum_detectable_change
        seen += judge(before, float(noise.normal(slower, NOISE))).state == "suspected"
    return seen / cells


def documented(*figures: str) -> bool:
    """Whether docs/judging.md has a row of its table that begins with these."""
    return f"| {' | '.join(figures)} |" in PAGE.read_text()


def test_false_alarms_are_rare_after_confirmation() -> None:
    years = 60
    found = unchanged_years(CELLS, years)
    of_a_metric = {what: number / (CELLS * years) for what, number in found.items()}
    mondays = WEEKS * years

    assert of_a_metric["confirmed"] < 0.02
    assert of_a_metric["suspected"] > 10 * of_a_metric["confirmed"], "what confirmation is worth"
    for what, figure in {
        "slowdowns suspected of a series that never changes, a year": f"{of_a_metric['suspected']:.2f}",
        "… of them confirmed by two fresh runs": f"{of_a_metric['confirmed']:.4f}",
        "fresh runs for a hundred runs that never change": f"{100 * of_a_metric['fresh runs'] / WEEKS:.1f}",
        f"Mondays that report a slowdown among {CELLS} cells that never changed, before fresh runs": (
            f"{found['Mondays before'] / mondays:.1%}"
        ),
        "… and after them": f"{found['Mondays'] / mondays:.1%}",
    }.items():
        assert documented(what, figure), (what, figure)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cells", [1, 20, CELLS])
def test_false_alarms_are_as_rare_in_sweeps_of_any_size(cells: int) -> None:
    years = 20_000 // cells
    found = unchanged_years(cells, years)
    rate = f"{found['confirmed'] / (cells * years):.4f}"

    assert float(rate) < 0.02
    assert documented(f"… of them confirmed, in 20,000 years of a metric in sweeps of {cells}", rate), rate


@pytest.mark.parametrize(
    ("slower", "cells", "weeks"),
    [
        *((slower, 1, 4000) for slower in (0.02, 0.03, 0.04, 0.05)),
        (0.05, 20, 2000),
        (0.05, CELLS, 1000),
    ],
)
def test_a_slowdown_is_confirmed_in_its_first_week(slower: float, cells: int, weeks: int) -> None:
    share = power(slower, cells, weeks)

    assert share >= 0.95 or slower < 0.05
    of = f"in a sweep of {cells}" if cells > 1 else "of one cell"
    assert documented(f"a slowdown of {slower:.0%} {of} confirmed within its first week", f"{share:.1%}"), (
        share
    )


def test_a_slowdown_of_the_least_size_is_seen_by_four_runs_of_five() -> None:
    assert seen_at_the_least(4000) == pytest.approx(0.8, abs=0.02)
