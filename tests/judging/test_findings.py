"""The findings of a comparison: their order, and the sentence that leads *This week*."""

from dataclasses import replace

from steptime.judging.detection import SeriesState, series_states
from steptime.judging.findings import Comparison, Finding, rank_findings
from steptime.judging.placement import Placement
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.store.columns import series_columns

USUAL = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.995]


def cell(gpus: int, series_state: SeriesState) -> Finding:
    series = Series.from_row(
        dict.fromkeys(series_columns(), "x")
        | {"proxy": False, "tuning": "", "gpus": gpus, "mode": "performance"}
    )
    return Finding(series, Judgement(SeriesRun({"stragglers": None}, 1.0, ""), series_state))


def test_what_got_slower_most_comes_first_and_is_the_worst() -> None:
    levels = (1.03, 0.92, 1.05, 0.96, 1.0, 1.04)
    cells = [cell(level, series_states([*USUAL, *[levels[level]] * 3])[-1]) for level in range(len(levels))]

    found = Comparison(rank_findings([cell(9, SeriesState()), *cells]))

    order = ["x·x·2", "x·x·5", "x·x·0", "x·x·3", "x·x·1", "x·x·4", "x·x·9"]
    assert found.names == order, "slower, faster, as usual, unknown"
    assert found.sentence == (
        "7 cells: 3 slower, 2 faster, 1 unchanged, 1 with insufficient history; worst x·x·2 +5.0 %, confirmed"
    )


def test_where_a_confirmation_run_ran_is_told_once_it_has_decided_something() -> None:
    [suspected, confirmed] = series_states([*USUAL, 1.06, 1.06, 1.06])[-2:]

    for series_state, said in ((suspected, "suspected; "), (confirmed, "confirmed on another node (b1); ")):
        found = cell(1, series_state)
        judgement = replace(found.judgement, placement=Placement("a1", ("b1",)))
        assert f"slower by 6.0 %, {said}" in Comparison((replace(found, judgement=judgement),)).remarks[0]
