"""What is suspected, confirmed and dismissed in planted histories of one series."""

import random

import pytest

from steptime.judging.detection import (
    ALPHA,
    BASELINE_RUNS,
    FEWEST_RUNS,
    Baseline,
    SeriesState,
    series_states,
)

USUAL = [100.0, 100.8, 99.1, 100.4, 98.9, 100.9, 99.6, 100.2, 99.3, 101.0, 99.5, 100.3]
"""Step times of twelve runs in seconds, with a standard deviation of 0.7 %."""


def told(runs):
    """Return state and direction after each of the runs that follow a usual history."""
    stood = series_states([*USUAL, *runs])[len(USUAL) :]
    return [f"{one.state} {one.direction or ''}".strip() for one in stood]


def test_a_slowdown_is_suspected_then_confirmed_and_told_as_long_as_it_lasts():
    assert told([104.5, 104.0, 104.4, 104.2, 104.1]) == [
        *("suspected slower", "suspected slower"),
        *("confirmed slower", "confirmed slower", "confirmed slower"),
    ]


def test_a_slowdown_that_ends_leaves_the_usual_baseline():
    stood = series_states([*USUAL, 104.5, 104.0, 104.4, 100.1, 99.8])

    assert [one.state for one in stood[-2:]] == ["confirmed", "unchanged"]
    assert max(stood[-1].baseline.runs) < 102, "its runs are in no baseline"


def test_one_slow_run_is_dismissed_by_two_usual_ones():
    assert told([106, 100.2, 99.9, 100.1]) == [
        *("suspected slower", "suspected slower", "dismissed slower", "unchanged"),
    ]


def test_a_slowdown_after_a_lucky_run_is_confirmed_and_never_called_faster():
    assert told([96.0, 104.0, 104.5, 104.2, 104.1]) == [
        *("suspected faster", "suspected slower", "suspected slower"),
        *("confirmed slower", "confirmed slower"),
    ]


def test_a_slowdown_after_a_confirmed_gain_is_a_suspicion_of_its_own():
    assert told([95.0, 95.5, 95.2, 108.0, 108.2, 107.9])[2:] == [
        *("confirmed faster", "suspected slower", "suspected slower", "confirmed slower"),
    ]


@pytest.mark.parametrize("outlier", [130, 70])
def test_a_dismissed_outlier_counts_as_the_limit_that_it_exceeded(outlier):
    stood = series_states([*USUAL, outlier, 100.2, 99.9])[-1]

    assert stood.state == "dismissed"
    limit = stood.against.mean * (1 + (1 if outlier > 100 else -1) * stood.against.bound())
    assert stood.baseline.runs == (*USUAL[3:], limit, 100.2, 99.9)


def test_a_suspicion_is_judged_without_the_run_that_raised_it():
    assert told([130, 100.2, 102.0])[-1] == "dismissed slower", "with it the mean would be far off"
    assert told([103.5, 100.9, 106.9])[-1] == "confirmed slower", (
        "the mean of the two confirmation runs counts"
    )


def test_faster_is_told_and_begins_a_new_baseline():
    faster = [94.0, 94.5, 93.8, 94.2, 94.1, 93.9, 94.4]
    assert told(faster) == ["suspected faster"] * 2 + ["confirmed faster"] * 5
    assert told([*faster, 94.3, 98.5, 98.9, 98.2])[-4:] == [
        *("unchanged", "suspected slower", "suspected slower", "confirmed slower"),
    ], "what is slower than the new level is seen, although the old one was slower still"


def test_few_runs_are_never_a_pass():
    stood = series_states([100.0, 100.1, 99.9, 100.0, 100.1, 150.0, 100.0])

    assert [one.state for one in stood[:FEWEST_RUNS]] == ["insufficient history"] * FEWEST_RUNS
    assert stood[-2].change is None
    assert stood[-1].state == "unchanged"


def test_a_noisy_cell_needs_a_larger_change():
    noise = random.Random(3)  # noqa: S311 - step times, not secrets
    noisy = [100 * noise.gauss(1, 0.05) for _ in range(BASELINE_RUNS)]

    assert series_states([*noisy, 106.0])[-1].state == "unchanged"
    assert Baseline(tuple(noisy)).minimum_detectable_change > 0.1
    assert Baseline(tuple(USUAL)).minimum_detectable_change == pytest.approx(0.0278, abs=0.0001)


def test_the_baseline_is_the_last_twelve_usual_runs():
    slow_drift = [100 * 1.002**week for week in range(40)]

    stood = series_states(slow_drift)

    assert {one.state for one in stood[FEWEST_RUNS:]} == {"unchanged"}, "a drift is not seen: docs say so"
    assert stood[-1].baseline.runs == tuple(slow_drift[-BASELINE_RUNS:])


def test_p_values_are_those_of_a_t_prediction_interval():
    baseline = Baseline(tuple(USUAL))

    bound = baseline.mean * (1 + baseline.bound())
    assert baseline.p_value([bound], "slower") == pytest.approx(ALPHA)
    assert baseline.p_value([bound], "faster") == pytest.approx(1 - ALPHA)
    assert baseline.p_value([bound, bound], "slower") < 0.002, "two runs together say more"


def test_how_often_by_chance_and_from_which_change_on_is_asked_for():
    baseline = Baseline(tuple(USUAL))

    assert baseline.direction([101.45], least=0.0) is None
    assert baseline.direction([101.45], alpha=0.05, least=0.0) == "slower"
    assert baseline.direction([101.45], alpha=0.05) is None
    assert baseline.direction([98.55], alpha=0.05, least=0.0) == "faster"
    few = 2 * [baseline.mean * (1 + baseline.bound(2))]
    assert baseline.bound(2) < baseline.bound()
    assert baseline.direction([few[0] + 0.01, few[1]]) == "slower", "two runs need to differ less"


def test_of_two_runs_the_spread_is_that_of_the_series():
    pair = Baseline(tuple(USUAL), level=(110.0,))

    assert pair.change([115.5]) == pytest.approx(0.05)
    assert pair.bound() > Baseline(tuple(USUAL)).bound() * 1.3, "one run is a poor baseline"
    assert SeriesState("unchanged", judged=(115.5,), against=Baseline((), (110.0,))).change == pytest.approx(
        0.05
    )
