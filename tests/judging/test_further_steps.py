"""A slowdown on top of one that is still there, and a drift beside a step."""

import pytest
from planted_series import planted_series

from steptime.durations import WEEK_S
from steptime.judging.detection import series_states
from steptime.judging.onset import likely_ramp

STEP, FURTHER = 12, 22
"""Weeks in which the planted series becomes slower by 5 % and by 4 % more."""
USUAL = [100.0, 100.8, 99.1, 100.4, 98.9, 100.9, 99.6, 100.2, 99.3, 101.0, 99.5, 100.3]


def two_steps(week):
    return (1.05 if week >= STEP else 1.0) * (1.04 if week >= FURTHER else 1.0)


def test_slower_runs_after_a_gap_are_no_drift_through_it():
    """Nothing was measured in between: a step fits as well, and names what changed."""
    weeks = [*range(12), 24, 25, 26]
    seconds = [number / 100 for number in USUAL] + [1.052, 1.049, 1.051]
    after = likely_ramp(seconds, [WEEK_S * week for week in weeks], "slower")
    assert after is None
    drifting = [1 + 0.01 * max(0, week - 6) for week in range(15)]
    ramp = likely_ramp(drifting, [WEEK_S * week for week in range(15)], "slower")
    assert ramp is not None
    assert ramp.weekly == pytest.approx(0.01, abs=0.002)


def test_four_weeks_of_a_drift_may_be_one_or_a_step():
    usual, weeks = [number / 100 for number in USUAL], [*range(12), 12, 13, 14, 14.1, 14.2, 15]
    for since, is_clear in (
        ([1.015, 1.025, 1.031, 1.029, 1.03, 1.034], False),
        ([1.012, 1.018, 1.031, 1.029, 1.03, 1.051], True),
        ([1.041, 1.038, 1.041, 1.039, 1.04, 1.042], None),
    ):
        ramp = likely_ramp(usual + since, [WEEK_S * week for week in weeks], "slower")
        assert (ramp and ramp.is_clear) is is_clear


def test_a_step_that_may_be_a_drift_says_so_unless_something_changed_then():
    def judged(seed, changed):
        [last] = planted_series(
            seed, 20, lambda week: 1 + 0.005 * max(0, week - STEP), {changed: "Ring"}, fewest=19
        )
        assert last.onset is not None
        return last.is_step, last.onset.weekly, last.onset.perhaps_words, last.changes

    for seed, is_small, weekly in ((2, False, "1.0"), (6, True, "0.8")):
        assert judged(seed, 14) == (is_small, None, f"a drift of {weekly} % a week", ())
        assert judged(seed, 16) == (is_small, None, "", ("NCCL_ALGO none → Ring",))


def test_two_steps_within_weeks_are_no_drift():
    weeks = [*range(12), 12, 12.1, 12.2, 13, 14, 15]
    seconds = [number / 100 for number in USUAL] + [1.062, 1.058, 1.061, 1.112, 1.109, 1.111]
    found = likely_ramp(seconds, [WEEK_S * week for week in weeks], "slower")
    assert found is None


def test_a_faster_week_that_is_over_was_a_step_of_that_week():
    seen = 0
    for seed in range(4):
        lucky = planted_series(seed, STEP + 3, lambda week: 1 - 0.04 * (week == STEP), {}, fewest=STEP)
        for judged in lucky:
            if judged.series_state.state == "confirmed":
                seen += 1
                assert judged.onset is not None
                assert (judged.onset.at // WEEK_S, judged.onset.weekly) == (STEP, None)
    assert seen >= 4


def told(runs):
    """Return what is told after runs (times relative to the usual 100) that follow a usual history."""
    return series_states([*USUAL, *runs])[-1].newest_step


def test_a_further_slowdown_is_judged_by_the_level_before_it():
    first = [105.0, 105.4, 104.7, 105.2, 104.8, 105.5, 104.9, 105.1]
    assert told(first).change == pytest.approx(0.05, abs=0.005)

    waiting = told([*first, 109.8])
    assert (waiting.state, waiting.change) == ("confirmed", pytest.approx(0.073, abs=0.002))
    assert waiting.suspicion is not None, "two runs decide it"

    further = told([*first, 109.8, 109.6, 109.5])
    assert (further.state, further.direction) == ("confirmed", "slower")
    assert further.change == pytest.approx(0.0435, abs=0.002)
    assert further.suspicion is None

    back = told([*first, 109.8, 109.6, 109.5, 105.2, 105.0])
    assert back.change == pytest.approx(0.05, abs=0.005)
    assert told([*first, 109.8, 109.6, 109.5, 100.2, 100.0]).state == "unchanged"


def test_a_third_slowdown_is_found_too_and_a_single_outlier_of_the_level_is_none():
    level = [105.0, 105.4, 104.7, 105.2, 104.8, 105.5, 104.9, 105.1]
    second = [one * 1.05 for one in level]
    third = [one * 1.05 for one in second]
    assert told([*level, *second, *third]).change == pytest.approx(0.05, abs=0.005)
    assert told([*level, 110.0, 105.1, 104.9]).change == pytest.approx(0.05, abs=0.005)


def test_a_second_step_is_dated_and_has_its_own_size_and_cause():
    seen = 0
    for seed in range(6):
        last = planted_series(seed, FURTHER + 2, two_steps, {STEP: "Ring", FURTHER: "Tree"}, fewest=FURTHER)[
            -1
        ]
        if last.earlier:
            seen += 1
            assert last.onset is not None
            assert round(last.onset.at // WEEK_S) == FURTHER
            assert last.changes == ("NCCL_ALGO Ring → Tree",)
            assert last.level_change == pytest.approx(0.04, abs=0.02)
            assert last.earlier[0].since // WEEK_S == STEP
    assert seen >= 5


@pytest.mark.parametrize(("weekly", "weeks", "from_week"), [(0.01, 6, 6), (0.005, 12, 10)])
def test_a_drift_has_no_cause_that_happens_to_lie_in_it(weekly, weeks, from_week):
    begins, seeds = 13, range(4)
    named, gradual = 0, 0
    for seed in seeds:
        judged = planted_series(
            seed,
            begins + weeks + 3,
            lambda week: 1 + weekly * min(weeks, max(0, week - begins)),
            {begins + 3: "Ring"},
            fewest=begins + from_week,
        )
        told = [one for one in judged if one.series_state.direction == "slower" or one.drift]
        named += sum(bool(one.changes) for one in told)
        gradual += sum(
            one.drift is not None or one.onset.weekly is not None for one in told if one.onset or one.drift
        )
    assert gradual >= 2 * len(seeds)
    assert named <= 3


def test_a_second_step_two_weeks_after_the_first_is_rarely_called_a_drift():
    drifting, seeds = 0, range(20)
    for seed in seeds:
        judged = planted_series(
            seed,
            STEP + 5,
            lambda week: (1.06 if week >= STEP else 1.0) * (1.05 if week >= STEP + 2 else 1.0),
            {},
            fewest=STEP + 2,
        )
        drifting += sum(one.onset is not None and one.onset.weekly is not None for one in judged)
    assert drifting <= 0.3 * 3 * len(seeds)


def test_a_step_without_a_recorded_change_is_no_drift_because_others_were_recorded_before():
    drifting = 0
    for seed in range(5000, 5010):
        judged = planted_series(seed, STEP + 4, two_steps, {STEP - 6: "Ring", STEP - 2: "Tree"}, fewest=STEP)
        drifting += sum(one.onset is not None and one.onset.weekly is not None for one in judged)
    assert drifting <= 2


def test_a_step_of_one_week_with_a_change_is_no_drift():
    for seed in range(4):
        for judged in planted_series(seed, STEP + 5, two_steps, {STEP: "Ring"}, fewest=STEP):
            if judged.onset is not None:
                assert judged.onset.weekly is None
                assert judged.changes == ("NCCL_ALGO none → Ring",)
