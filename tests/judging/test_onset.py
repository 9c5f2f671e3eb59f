"""The onset of a level: the likeliest run, its range, and the effect of a recorded change."""

import random
import re

import pytest
from kept import assert_kept
from planted_series import planted_series

from steptime.judging.onset import likely_indexes

RUNS = range(1, 14)


def series(step, at, seed, noise=0.01):
    """Return the step times of fifteen runs with a step."""
    rng = random.Random(seed)  # noqa: S311 - step times, not secrets
    return [rng.gauss(1 + step * (place >= at), noise) for place in range(15)]


@pytest.mark.parametrize("at", [3, 8, 12])
def test_a_clear_step_has_one_run(at):
    assert likely_indexes(series(0.1, at, seed=1), RUNS, "slower") == (at, at, at)
    assert likely_indexes(series(-0.1, at, seed=1), RUNS, "faster") == (at, at, at)


def test_the_range_has_the_step_as_often_as_it_says_and_a_change_makes_it_exact():
    within, exact, exact_by_change = 0, 0, 0
    for seed in range(300):
        seconds = series(0.02, 9, seed)
        best, earliest, latest = likely_indexes(seconds, RUNS, "slower")
        within += earliest <= 9 <= latest
        exact += best == 9
        exact_by_change += likely_indexes(seconds, RUNS, "slower", [4, 9])[0] == 9

    assert within / 300 >= 0.93
    assert exact / 300 == pytest.approx(0.55, abs=0.07)
    assert exact_by_change / 300 == pytest.approx(0.93, abs=0.04)


def test_without_a_step_in_that_direction_the_last_run_is_taken():
    assert likely_indexes([1.0] * 8 + [0.9] * 7, range(1, 3), "slower") == (2, 2, 2)


@pytest.mark.long
def test_when_a_level_began_by_each_of_its_runs():
    planted = {
        "a step and its cause": (lambda week: 1 + 0.04 * (week >= 12), {6: "Ring", 12: "Tree"}),
        "a ramp": (lambda week: 1 + 0.012 * max(0, week - 8), {}),
        "a speed-up": (lambda week: 1 - 0.06 * (week >= 10), {10: "Tree"}),
        "a step that ends": (lambda week: 1 + 0.05 * (9 <= week < 13), {}),
        "a step on top of another": (lambda week: 1 + 0.05 * (week >= 8) + 0.05 * (week >= 12), {12: "Ring"}),
    }
    told = []
    for what, (level, changed) in planted.items():
        told.append(f"== {what}\n")
        for judged in planted_series(5, 17, level, changed, fewest=9):
            state, onset, drift = judged.series_state, judged.onset, judged.drift
            told.append(f"{judged.run.job_name} {state.state} {state.direction} {judged.level_change:+.4f}\n")
            told += [f"    {one}\n" for one in (onset, drift, judged.changes, judged.earlier) if one]
    assert_kept("judging/onsets.txt", re.sub(r"(\.\d{4})\d+", r"\1", "".join(told)))
