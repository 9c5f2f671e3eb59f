"""How often a weekly sweep errs, by seeded simulation: docs/reference/judging.md rounds these figures.

A week is a run of each cell, a comparison, the confirmation runs that it asks for, and another comparison.
`tests/airflow/sweep/test_confirming.py` has the task that starts these confirmation runs.
"""

import random
from collections import Counter
from functools import cache

import numpy as np
import pytest

from steptime.judging.detection import (
    BASELINE_RUNS,
    CONFIRMATION_RUNS,
    Baseline,
    SeriesState,
    judge,
    series_states,
)
from steptime.judging.findings import Finding, rank_findings
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.judging.verdicts import adjust_q_values
from steptime.store.columns import series_columns

pytestmark = pytest.mark.slow

NOISE = 0.01
"""Standard deviation from run to run, relative to the step time."""
WEEKS, CELLS = 52, 54
NOISY_STEPS = [(0.1, 0.08), (0.2, 0.42), (0.3, 0.82)]
"""Steps of a cell with 8 % noise, and the share of each that is confirmed within ten weeks."""
ALTERNATING = 0.02
"""The share of cells alternating between two levels 4 % apart that are confirmed slower in half a year."""


@cache
def series(number):
    """Return a cell of its own for each number."""
    return Series.from_row(dict.fromkeys(series_columns()) | {"gpus": number})


@cache
def run_of(one):
    """Return a run of a cell; the time of a judgement is that of its state."""
    return SeriesRun({"job_name": f"job-{one['gpus']}", "submitted_at": 0.0, "stragglers": None}, 1.0, "")


def usual(noise, cells):
    """Return cells with a whole baseline."""
    runs = noise.normal(1, NOISE, (cells, BASELINE_RUNS)).tolist()
    return {
        series(number): SeriesState("unchanged", baseline=Baseline(tuple(some)))
        for number, some in enumerate(runs)
    }


def compared(cells):
    """Return the cells' findings as a comparison orders them, worst first."""
    judged = [(one, Judgement(run_of(one), series_state)) for one, series_state in cells.items()]
    q_values = adjust_q_values(judged)
    return rank_findings(
        Finding(one, judgement, q_values.get(judgement.run.job_name, 1.0)) for one, judgement in judged
    )


def a_week(before, noise, slower=0):
    """Return the findings before and after confirmation runs; the cell `series(0)` is slower by that part."""
    levels = {one: 1 + slower * (one == series(0)) for one in before}
    runs = noise.normal(list(levels.values()), NOISE).tolist()
    cells = {one: judge(before[one], run) for one, run in zip(before, runs, strict=True)}
    before_confirmation = compared(cells)
    wanting = [one for one in before_confirmation if one.confirmation_runs_wanted]
    for found in wanting:
        for run in noise.normal(levels[found.series], NOISE, found.confirmation_runs_wanted).tolist():
            cells[found.series] = judge(cells[found.series], run)
    return before_confirmation, compared(cells) if wanting else before_confirmation


def unchanged_years(cells, years):
    """Count the findings in years of a sweep whose cells never change."""
    noise, counts = np.random.default_rng(12), Counter[str]()
    for _ in range(years):
        before = usual(noise, cells)
        for _ in range(WEEKS):
            before_confirmation, found = a_week(before, noise)
            counts["suspected"] += sum(
                one.confirmation_runs_wanted > 0 and one.series_state.direction == "slower"
                for one in before_confirmation
            )
            counts["confirmation runs"] += sum(one.confirmation_runs_wanted for one in before_confirmation)
            slower = {one.series for one in found if one.verdict == "slower"}
            counts["confirmed"] += sum(before[one].state != "confirmed" for one in slower)
            counts["Mondays before"] += any(one.verdict == "slower" for one in before_confirmation)
            counts["Mondays"] += bool(slower)
            before = {one.series: one.series_state for one in found}
    return counts


def power(slower, cells, weeks):
    """Return how often the one cell that got slower is confirmed in its first week."""
    noise, confirmed = np.random.default_rng(12), 0
    for _ in range(weeks):
        _, found = a_week(usual(noise, cells), noise, slower)
        confirmed += any(
            (one.series, one.verdict, one.series_state.state) == (series(0), "slower", "confirmed")
            for one in found
        )
    return confirmed / weeks


def seen_at_the_least(cells):
    """Return how often a run slower by its cell's minimum detectable change is suspected."""
    noise, seen = np.random.default_rng(12), 0
    for before in usual(noise, cells).values():
        slower = 1 + before.baseline.minimum_detectable_change
        seen += judge(before, float(noise.normal(slower, NOISE))).state == "suspected"
    return seen / cells


def confirmed_within(
    step,
    weeks,
    *,
    noise=NOISE,
    lucky=False,
    series=300,
    level=lambda _: 1.0,
):
    """Return how often a lasting step after 14 usual runs is confirmed as slower, with confirmation runs.

    Args:
        step: the part by which each run is slower from then on.
        weeks: how long it may take.
        noise: standard deviation from run to run.
        lucky: whether a run suspected as faster comes right before the step.
        series: how many are simulated.
        level: of each run, before the step and after it.
    """
    confirmed = 0
    for seed in range(series):
        rng = random.Random(seed)  # noqa: S311 - step times, not secrets
        series_state = series_states(rng.gauss(level(rng), noise) for _ in range(14))[-1]
        if lucky:
            against = series_state.baseline
            series_state = judge(series_state, against.mean * (1 - against.bound() - 0.001))
        for _ in range(weeks):
            for _ in range(1 + CONFIRMATION_RUNS):
                series_state = judge(series_state, rng.gauss(level(rng) * (1 + step), noise))
                if series_state.state != "suspected":
                    break
            if (series_state.state, series_state.direction) == ("confirmed", "slower"):
                confirmed += 1
                break
    return confirmed / series


@pytest.mark.exhaustive
@pytest.mark.parametrize(("step", "confirmed"), [(0.04, 0.94), (0.06, 1.0), (0.09, 1.0)])
def test_a_lucky_run_hides_no_slowdown(step, confirmed):
    assert confirmed_within(step, 10, lucky=True) >= confirmed - 0.02


@pytest.mark.exhaustive
@pytest.mark.parametrize(("step", "confirmed"), NOISY_STEPS)
def test_steps_of_a_noisy_cell(step, confirmed):
    assert confirmed_within(step, 10, noise=0.08) == pytest.approx(confirmed, abs=0.05)


@pytest.mark.exhaustive
def test_a_cell_that_alternates_between_two_levels_is_rarely_called_slower():
    alternating = confirmed_within(0, 26, level=lambda rng: rng.choice([1.0, 1.04]))
    assert alternating == pytest.approx(ALTERNATING, abs=0.02)


def test_false_alarms_are_rare_after_confirmation():
    years = 20
    found = unchanged_years(CELLS, years)
    of_a_metric = {what: number / (CELLS * years) for what, number in found.items()}
    mondays = WEEKS * years

    assert of_a_metric["confirmed"] < 0.02
    assert of_a_metric["suspected"] > 10 * of_a_metric["confirmed"], "what confirmation is worth"
    assert of_a_metric["confirmation runs"] / WEEKS < 0.05
    assert found["Mondays"] / mondays < 0.06 < found["Mondays before"] / mondays


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("cells", "a_year"), [(1, 0.029), (20, 0.021), (CELLS, 0.016)])
def test_false_alarms_are_rare_in_sweeps_of_any_size(cells, a_year):
    years = 20_000 // cells
    found = unchanged_years(cells, years)
    assert found["confirmed"] / (cells * years) == pytest.approx(a_year, abs=0.003)


@pytest.mark.parametrize(
    ("slower", "cells", "weeks", "confirmed"),
    [
        (0.03, 1, 1000, 0.49),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                *((0.02, 1, 1000, 0.14), (0.04, 1, 1000, 0.80), (0.05, 1, 1000, 0.97)),
                (0.05, CELLS, 1000, 0.95),
            )
        ),
    ],
)
def test_a_slowdown_is_confirmed_in_its_first_week(slower, cells, weeks, confirmed):
    assert power(slower, cells, weeks) == pytest.approx(confirmed, abs=0.03)


@pytest.mark.exhaustive
def test_a_slowdown_of_the_least_size_is_seen_by_four_runs_of_five():
    assert seen_at_the_least(4000) == pytest.approx(0.8, abs=0.02)
