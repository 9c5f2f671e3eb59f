"""The findings of a comparison: their order, and the sentence that leads *This week*."""

from dataclasses import replace

import pytest

from steptime.judging.common_causes import CommonCause
from steptime.judging.detection import Baseline, SeriesState, series_states
from steptime.judging.findings import Comparison, Finding, rank_findings
from steptime.judging.incident_updates import group_findings
from steptime.judging.onset import Onset
from steptime.judging.placement import Placement
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.store.columns import series_columns
from steptime.wording import date

USUAL = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.995]


def cell(gpus, series_state):
    series = Series.from_row(
        dict.fromkeys(series_columns(), "x")
        | {"proxy": False, "tuning": "", "gpus": gpus, "mode": "performance"}
    )
    return Finding(series, Judgement(SeriesRun({"stragglers": None}, 1.0, ""), series_state))


def test_what_got_slower_most_comes_first_and_is_the_worst():
    levels = (1.03, 0.92, 1.05, 0.96, 1.0, 1.04)
    cells = [cell(level, series_states([*USUAL, *[levels[level]] * 3])[-1]) for level in range(len(levels))]

    found = Comparison(rank_findings([cell(9, SeriesState()), *cells]))

    order = ["x·x·2", "x·x·5", "x·x·0", "x·x·3", "x·x·1", "x·x·4", "x·x·9"]
    assert found.names == order, "slower, faster, as usual, unknown"
    assert found.sentence == (
        "7 cells: 3 slower, 2 faster, 1 unchanged, 1 with insufficient history; worst x·x·2 +5.0 %, confirmed"
    )
    until = {"x·x·5": 1.79e9 + 10 * 86_400, "x·x·0": 1.79e9}
    known = zip(found.names, found.findings, strict=True)
    silenced = Comparison(tuple(replace(one, silenced_until=until.get(name)) for name, one in known))
    assert (
        f"1 slower, 2 faster, 1 unchanged, 1 with insufficient history, 2 silenced until {date(1.79e9)};"
        in (silenced.sentence)
    ), "of the first that counts again"


@pytest.mark.parametrize(
    ("baseline", "mean"),
    [(Baseline(tuple(USUAL)), 1.0), (Baseline((), level=(1.5, 1.7)), 1.6), (Baseline(()), None)],
    ids=["runs", "an earlier run", "neither"],
)
def test_what_a_run_is_compared_with_is_told_whether_runs_or_one_run(baseline, mean):
    columns = cell(1, SeriesState("unchanged", judged=(1.0,), against=baseline)).verdict_columns
    assert columns["baseline_s"] == (mean and pytest.approx(mean))


def test_where_a_confirmation_run_ran_is_told_once_it_has_decided_something():
    [suspected, confirmed] = series_states([*USUAL, 1.06, 1.06, 1.06])[-2:]

    for series_state, said in ((suspected, "suspected; "), (confirmed, "confirmed on another node (b1); ")):
        found = cell(1, series_state)
        judgement = replace(found.judgement, placement=Placement("a1", ("b1",)))
        assert f"slower by 6.0 %, {said}" in Comparison((replace(found, judgement=judgement),)).remarks[0]


def test_the_whole_remark_on_a_level():
    """Dates are local, and 06:00 UTC is the same day in all time zones of the tests."""
    day = 1_789_971_200.0
    jumped = Onset("job", day, day - 86_400, day + 86_400, nearby=("NCCL_ALGO: none → Ring",))
    [slower] = series_states([*USUAL, *[1.05] * 8, 1.12])[-1:]
    [faster] = series_states([*USUAL, 0.94])[-1:]

    def remark(series_state, onset, **fields):
        found = cell(1, series_state)
        judgement = replace(found.judgement, onset=onset, changes=("image a → b",))
        return Comparison((replace(found, judgement=judgement, **fields),)).remarks[0]  # type: ignore[arg-type]

    changed = "changed then: image a → b; or, at another run of that range: NCCL_ALGO: none → Ring"
    since = "since 2026-09-21 (between 2026-09-20 and 2026-09-22)"
    assert remark(faster, jumped) == (
        f"x·x·1: faster by 6.0 % {since}, suspected; {changed}; 2 confirmation runs decide"
    )
    assert remark(faster, jumped, confirmation_runs="steptime run x", harmless=("image a → b",)) == (
        f"x·x·1: faster by 6.0 % {since}, suspected; {changed}; most cells that are as usual have "
        "image a → b, "
        "too; 2 confirmation runs decide: steptime run x"
    )
    assert remark(slower, jumped) == (
        f"x·x·1: slower by 8.5 % {since}, confirmed; {changed}; by 6.7 % more in the newest run; "
        "2 confirmation runs decide"
    )
    unclear = replace(jumped, perhaps_weekly=0.012)
    assert remark(slower, unclear).startswith(
        f"x·x·1: slower by 8.5 % {since}, confirmed; {changed}; it may be a drift of 1.2 % a week instead; "
    )
    drifting = replace(jumped, weekly=0.012)
    assert remark(slower, drifting).startswith(
        f"x·x·1: slower by 8.5 % {since}, confirmed; it {drifting.drift_words}, so it is no single change; "
    )


@pytest.mark.parametrize(("at", "began"), [(50.0, 100.0), (150.0, 150.0), (999.0, 200.0)])
def test_a_cell_that_drifts_jumps_with_the_others_of_its_cause(at, began):
    found = cell(1, series_states([*USUAL, 1.06])[-1])
    drifting = Onset("job", 120.0, 100.0, 200.0, weekly=0.01)
    found = replace(found, judgement=replace(found.judgement, onset=drifting, changes=("old",)))
    for kind, changes in (("change", ("image a → b",)), ("node", ())):
        cause = CommonCause(kind, "h100", "image a → b", "", frozenset(), "slower", 0.05, at)  # type: ignore[arg-type]
        moved = found.moved_by(cause).judgement
        assert moved.onset is not None
        assert (moved.onset.at, moved.onset.weekly, moved.changes) == (began, None, changes)
    stepped = replace(found, judgement=replace(found.judgement, onset=replace(drifting, weekly=None)))
    assert stepped.moved_by(cause) is stepped
    unclear = replace(
        stepped,
        judgement=replace(stepped.judgement, onset=replace(drifting, weekly=None, perhaps_weekly=0.01)),
    )
    assert unclear.moved_by(cause) == stepped


def test_the_title_of_a_step_that_may_be_a_drift_says_both():
    [slower] = series_states([*USUAL, *[1.05] * 3])[-1:]
    found = cell(1, slower)
    onset = Onset("job", 120.0, 100.0, 200.0, perhaps_weekly=0.012)
    for changes, subject in (((), "a step"), (("image a → b",), "image a → b")):
        judgement = replace(found.judgement, onset=onset, changes=changes)
        [group] = group_findings(Comparison((replace(found, judgement=judgement),)))
        assert group.subject == f"{subject} or a drift of 1.2 % a week"
