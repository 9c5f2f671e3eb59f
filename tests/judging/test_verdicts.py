"""What is reported: a confirmed change always, a suspicion if it is a discovery among runs near in time."""

import pytest

from steptime.judging.detection import Baseline, SeriesState, judge
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.judging.verdicts import NEAR_S, PValues, adjust_q_values, decide_verdict
from steptime.store.columns import series_columns

USUAL = Baseline((1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.995))
DAY_S = 86_400.0
AT = 1.79e9


def cell(number):
    return Series.from_row(dict.fromkeys(series_columns()) | {"gpus": number})


def judged(seconds):
    run = SeriesRun({"job_name": "job", "submitted_at": AT, "stragglers": None}, seconds, "")
    return cell(0), Judgement(run, judge(SeriesState("unchanged", baseline=USUAL), seconds))


def others(*days, p_value=0.5):
    """Return 60 cells, each with a run at these days from the judged one."""
    runs = [PValues(AT + day * DAY_S, p_value, 1 - p_value) for day in days]
    return {cell(number): runs for number in range(1, 60)}


def test_a_suspicion_is_reported_only_if_it_is_a_discovery_among_the_cells():
    series, judgement = judged(USUAL.mean * (1 + 1.001 * USUAL.bound()))
    state = judgement.series_state
    alone = adjust_q_values([(series, judgement)])["job"]
    among = adjust_q_values([(series, judgement)], others(0))["job"]

    assert state.state == "suspected"
    assert alone == state.p_value("slower")
    assert (decide_verdict(state, alone), decide_verdict(state, among)) == ("slower", "unchanged")
    confirmed = SeriesState("confirmed", "faster")
    assert decide_verdict(confirmed, 1.0) == "faster", "whatever else ran"
    assert decide_verdict(SeriesState("dismissed", "slower"), 0.0) == "unchanged"
    assert decide_verdict(SeriesState(), 0.0) == "insufficient history"


@pytest.mark.parametrize(
    ("runs", "counted"),
    [
        (others(-1), True),
        (others(NEAR_S / DAY_S), True),
        (others(-8, 8), False),
        ({}, False),
    ],
)
def test_cells_that_ran_within_a_week_are_compared(runs, counted):
    series, judgement = judged(USUAL.mean * (1 + 1.001 * USUAL.bound()))
    own = judgement.series_state.p_value("slower")

    found = adjust_q_values([(series, judgement)], runs)["job"]

    assert found == pytest.approx(min(0.5, 60 * own) if counted else own)


def test_later_runs_do_not_change_the_verdict_of_a_run_once_its_week_is_over():
    series, judgement = judged(USUAL.mean * (1 + 1.001 * USUAL.bound()))
    then = {series: [PValues(AT, 0.5, 0.5)]} | others(0.1)
    later = {
        one: [*runs, PValues(AT + 6 * DAY_S, 1e-9, 1.0)] for one, runs in then.items()
    }  # a week later every cell is slower

    assert adjust_q_values([(series, judgement)], later) == adjust_q_values([(series, judgement)], then)


def test_a_series_without_a_change_has_no_adjusted_p_value():
    assert adjust_q_values([judged(1.0)], others(0)) == {}


@pytest.mark.parametrize(
    ("before", "after", "counts"), [(-0.5, 1, "before"), (-1, 0.5, "after"), (-1, 1, "after")]
)
def test_of_each_other_cell_the_nearest_run_counts(before, after, counts):
    """Of two that are as near, the later one."""
    p_values = {"before": (0.5, 1e-9), "after": (1e-9, 0.5)}[counts]
    first, second = others(before, p_value=p_values[0]), others(after, p_value=p_values[1])
    series, judgement = judged(USUAL.mean * (1 + 1.001 * USUAL.bound()))
    found = adjust_q_values([(series, judgement)], {one: [*first[one], *second[one]] for one in first})
    assert found == adjust_q_values([(series, judgement)], first if counts == "before" else second)
