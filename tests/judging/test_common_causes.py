"""Causes of several cells that move: a bad node and a common change are named, and otherwise no cause."""

import random
from dataclasses import replace

import pytest

from steptime.durations import WEEK_S
from steptime.judging import common_causes
from steptime.judging.common_properties import common_property
from steptime.judging.detection import BASELINE_RUNS, Baseline, SeriesState, judge
from steptime.judging.node_effects import as_evidence, node_runs
from steptime.judging.onset import SHORTEST_RAMP_S, Onset
from steptime.judging.placement import Placement
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.store.columns import series_columns
from steptime.wording import date

SERIES = Series.from_row(
    {"cluster": "h100", "gpu_type": "h100", "workload": "llama3.1-25.04", "size": "8b", "proxy": False}
    | {"gpus": 8, "dtype": "bf16", "scaling": "weak", "mode": "performance"}
    | {"tuning": "", "for_judging": True}
    | {**dict.fromkeys(series_columns("spread"), 1), "data_parallel": 8}
)
CELLS, NODES = 54, 64
USUAL = tuple(1 + 0.01 * (-1) ** number for number in range(BASELINE_RUNS))
"""Step times in seconds, 1 % around their mean."""


def judged(
    seconds,
    nodes=(),
    *,
    job="job",
    at=1e9,
    before=None,
    changes=(),
    since=None,
    nearby=(),
    confirmations=None,
    stragglers=None,
):
    """Return a judgement of a run after a usual history or after `before`, confirmed on these nodes."""
    row = {"job_name": job, "nodes": ", ".join(nodes) or None, "submitted_at": at, "stragglers": stragglers}
    series_state = judge(before or SeriesState("unchanged", baseline=Baseline(USUAL)), seconds)
    began = at if since is None else since
    onset = Onset(job, began, began, began, nearby) if series_state.since else None
    placement = None
    if confirmations is not None:
        series_state = judge(judge(series_state, seconds), seconds)
        placement = Placement(", ".join(nodes), tuple(confirmations))
    return Judgement(SeriesRun(row, seconds, ""), series_state, changes, None, placement, onset)


def cells(*runs):
    """Return a cell for each run or list of runs."""
    return {
        Series.from_row(SERIES.key | {"size": f"{number}b"}): run if isinstance(run, list) else [run]
        for number, run in enumerate(runs)
    }


def test_the_size_of_a_confirmed_change_is_that_of_the_runs_after_its_first():
    """The run that raised the suspicion is chosen for being slow, so it does not count."""
    state = judge(SeriesState("unchanged", baseline=Baseline(USUAL)), 1.5)
    for seconds in (1.1, 1.2):
        state = judge(state, seconds)
    judgement = Judgement(SeriesRun({"job_name": "job"}, 1.2, ""), state)
    assert (state.state, state.since) == ("confirmed", (1.5, 1.1, 1.2))
    assert judgement.level_change == pytest.approx(1.15 / state.against.mean - 1)


def test_a_property_of_which_half_of_the_cells_moved_is_a_common_one():
    alike = [Series.from_row(SERIES.key | {"size": "8b", "gpus": 8 << number}) for number in range(5)]
    others = [Series.from_row(SERIES.key | {"size": f"{number}b"}) for number in range(70, 90)]
    moved = [alike[0], alike[3]]  # so that no range of GPU counts has these two alone
    found = common_property(alike[0], moved, [*alike[:4], *others])
    assert found is not None
    assert found.words(moved, alike[:4]) == f"2 of 4 cells of 8b {SERIES.key['dtype']}"
    moved = [alike[0], alike[4]]
    assert common_property(alike[0], moved, [*alike, *others]) is None, "2 of 5"


def without(_job, _change):
    """Return False: no other cell has the change."""
    return False


def causes(judged, has_changed):
    """Return the common causes, with these runs as the evidence on nodes."""
    runs = [run for series, some in judged.items() for run in node_runs(series, as_evidence(some[::-1]))]
    return common_causes.causes(judged, has_changed, runs)


def names(found):
    return [(cause.name, len(cause.cells)) for cause in found]


def test_a_suspicion_that_other_nodes_dismissed_is_still_that_nodes():
    usual = [judged(1.0, [f"n{number}"], job=f"usual-{number}") for number in range(20)]
    moved = []
    for number in range(3):
        first = judged(1.08, ["bad", f"n{number}"], job=f"first-{number}", at=1e9 - WEEK_S)
        second = judged(1.0, ["n1"], job=f"second-{number}", before=first.series_state)
        moved.append([judged(1.0, ["n2"], job=f"third-{number}", before=second.series_state), second, first])

    assert names(causes(cells(*usual, *moved), without)) == [("node bad", 3)], "for a week, of three cells"


def test_a_cell_that_large_runs_confirmed_though_one_without_the_node_was_fast_is_that_nodes():
    """The cell takes most of the cluster, so only one of its two confirmation runs missed the node."""
    usual = [judged(1.0, [f"n{number}"], job=f"usual-{number}") for number in range(20)]
    slow = [judged(1.08, ["bad", f"n{number}"], job=f"slow-{number}") for number in range(3)]
    first = judged(1.1, ["bad", "n2"], job="first", at=1e9 - 20)
    second = judged(1.1, ["bad", "n1"], job="second", at=1e9 - 10, before=first.series_state, since=1e9 - 20)
    third = judged(1.0, ["n1", "n2"], job="third", before=second.series_state, since=1e9 - 20)
    assert third.series_state.state == "confirmed"
    third = replace(third, placement=Placement("bad,n2", ("bad,n1", "n[1-2]")))

    assert names(causes(cells(*usual, *slow, [third, second, first]), without)) == [("node bad", 4)]


def test_the_sentence_of_a_node_has_what_its_ranks_and_gpus_did():
    usual = [judged(1.0, [f"n{number}"], job=f"usual-{number}") for number in range(20)]
    own = "ranks 6.1 % slower than the others (4.6 to 7.6 %), clocks down to 1,410 MHz since 06:12 UTC"
    told = f"rank 3 on n1 9.0 % slower than the others (8.0 to 10.0 %); node bad: {own}"
    slow = [
        judged(1.08, ["bad", f"n{number}"], job=f"slow-{number}", stragglers=told if number == 2 else None)
        for number in range(6)
    ]
    [cause] = causes(cells(*usual, *slow), without)
    assert cause.sentence.endswith(f"; in one of its runs: {own}")


def test_one_cell_that_is_slow_again_and_again_is_not_its_node():
    usual = [judged(1.0, [f"n{number}"], job=f"usual-{number}") for number in range(30)]
    slow = [judged(1.08, ["same"], job=f"slow-{number}") for number in range(6)]

    assert causes(cells(*usual, slow), without) == ()


def test_nodes_that_always_run_together_are_named_together_and_a_second_one_apart():
    usual = [judged(1.0, [f"n{number}"], job=f"usual-{number}") for number in range(40)]
    pair = [judged(1.08, ["b", "a"], job=f"pair-{number}") for number in range(5)]
    other = [judged(1.08, ["c", f"n{number}"], job=f"other-{number}") for number in range(5)]

    assert sorted(names(causes(cells(*usual, *pair, *other), without))) == [("node c", 5), ("nodes a, b", 5)]


def test_a_cell_that_seems_to_drift_at_the_change_of_all_others_moved_with_them():
    change = "driver 570 → 580"
    moved = [
        judged(
            1.08,
            job=f"moved-{number}",
            changes=(change,),
            confirmations=["a", "b"],
            since=1e9 + number * WEEK_S / 7,
        )
        for number in range(6)
    ]

    def found(latest):
        drifting = judged(1.08, job="drifting", confirmations=["a", "b"])
        onset = Onset("drifting", latest - 2 * WEEK_S, latest - 3 * WEEK_S, latest, weekly=0.01)
        return names(causes(cells(*moved, replace(drifting, onset=onset)), lambda _job, _change: True))

    assert found(1e9 - 2 * WEEK_S) == [(change, 7)]
    assert found(1e9 - SHORTEST_RAMP_S) == [(change, 7)], "as the first of them did"
    assert found(1e9 - SHORTEST_RAMP_S - 1) == [(change, 6)]
    assert found(1e9 - 6 * WEEK_S) == [(change, 6)], "it drifted long before"


def test_cells_that_began_to_move_at_different_times_did_not_move_together():
    usual = [judged(1.0, job=f"usual-{number}") for number in range(4)]

    def found(apart_s):
        moved = [
            judged(1.08, job=f"moved-{number}", since=1e9 - number * apart_s, confirmations=["a", "b"])
            for number in range(6)
        ]
        return causes(cells(*usual, *moved), without)

    (together,) = found(WEEK_S / 5)
    assert names([together]) == [("whole cluster", 6)], "within one week"
    assert together.change == pytest.approx(0.08, abs=1e-3)
    assert together.since == 1e9 - WEEK_S, "when the first of them did"
    assert found(2 * WEEK_S) == ()


def test_clusters_are_looked_at_apart():
    moved = cells(*(judged(1.08, job=f"moved-{number}") for number in range(6)))
    apart = {
        Series.from_row(cell.key | {"cluster": f"c{number % 2}"}): some
        for number, (cell, some) in enumerate(moved.items())
    }

    assert names(causes(moved, without)) == [("whole cluster", 6)]
    assert causes(apart, without) == ()


def test_faster_together_is_named_too_and_what_only_some_have_changed_is_not():
    changed = [
        ("image a → b", "commit 1 → 2"),
        ("image a → b",),
        ("nodes x → y", "image a → b"),
        ("image a → b",),
    ]
    moved = [judged(0.9, job=f"moved-{place}", changes=some) for place, some in enumerate(changed)]

    (cause,) = causes(cells(*moved), without)

    assert cause.sentence == (
        f"image a → b: 4 of 4 cells with that change on h100 became faster with it, since {date(1e9)}, "
        "by 10.0 % at the median"
    )
    assert cause.change == pytest.approx(-0.1, abs=1e-3)


IMAGE, NCCL = "image nemo:26.04 → nemo:26.06.01", "nccl 2.28 → 2.29"


def upgraded(number, **options):
    return judged(1.08, job=f"image-{number}", confirmations=["a", "b"], changes=(IMAGE, NCCL), **options)


def test_what_most_cells_share_is_named_with_the_count_though_one_moved_for_another_reason():
    usual = [judged(1.0, job=f"usual-{number}") for number in range(10)]
    odd = [
        judged(
            1.05, job="odd-1", since=1e9 - 6 * WEEK_S, confirmations=["a", "b"], changes=("NCCL_ALGO a → b",)
        ),
        judged(1.05, job="odd-2", since=1e9, confirmations=["a", "b"], changes=("commit 1 → 2",)),
    ]
    late = judged(1.08, job="late", since=1e9 + 9, confirmations=["a", "b"], nearby=(IMAGE,))
    moved = cells(*odd, late, *map(upgraded, range(12)), *usual)

    (cause,) = causes(moved, without)

    assert (cause.name, cause.direction, cause.since) == (IMAGE, "slower", 1e9)
    assert cause.cells == frozenset(list(moved)[2:15]), "of each cell that may have begun with it"
    assert cause.sentence == (
        f"{IMAGE}: 13 of 13 cells with that change on h100 became slower with it, since {date(1e9)}, "
        f"by 8.0 % at the median; also changed: {NCCL} (12 of 13)"
    )


def test_a_change_of_few_cells_is_their_cause_unless_the_others_have_it_too():
    usual = [judged(1.0, job=f"usual-{number}") for number in range(30)]
    moved = cells(*(upgraded(number) for number in range(3)), *usual)

    assert names(causes(moved, without)) == [(IMAGE, 3)]
    assert causes(moved, lambda _job, _change: True) == ()


def test_cells_that_moved_in_other_weeks_do_not_hide_a_change_of_few_cells():
    usual = [judged(1.0, job=f"usual-{number}") for number in range(30)]
    earlier = [
        judged(1.08, job=f"earlier-{week}", since=1e9 - week * WEEK_S, confirmations=["a", "b"])
        for week in range(2, 12)
    ]
    moved = cells(*(upgraded(number) for number in range(3)), *earlier, *usual)

    assert names(causes(moved, without)) == [(IMAGE, 3)]
    had_it = {f"earlier-{week}" for week in range(2, 12)}
    assert causes(moved, lambda job, _change: job in had_it) == ()


def test_a_change_that_most_cells_took_unharmed_is_no_cause_and_the_unharmed_are_counted():
    moved = [upgraded(number) for number in range(8)]
    usual = [judged(1.0, job=f"usual-{number}") for number in range(12)]

    def has_it(unharmed):
        names = {f"usual-{number}" for number in range(unharmed)}
        return lambda job, change: change == IMAGE and job in names

    for number, counted in ((0, "8 of 8"), (2, "8 of 10")):
        (cause,) = causes(cells(*moved, *usual), has_it(number))
        assert cause.sentence.startswith(f"{IMAGE}: {counted} cells with that change on h100 became slower")
    assert IMAGE not in {cause.name for cause in causes(cells(*moved, *usual), has_it(12))}


def test_a_node_is_no_cause_of_cells_that_are_slower_without_it_or_by_another_amount():
    usual = [judged(1.0, [f"n{number}"], job=f"usual-{number}") for number in range(40)]
    day_s = 86_400
    slow = [
        judged(1.06, ["bad", f"n{number}"], job=f"slow-{number}", at=1e9 - number * day_s)
        for number in range(5)
    ]
    elsewhere = three_runs("elsewhere", ["bad"], ["n1", "n2"], ["n3"])
    there = three_runs("there", ["bad"], ["bad"], ["bad", "n3"])
    save = judged(1.3, ["bad"], job="save")
    moved = cells(*slow, there, elsewhere, save, *usual)

    (cause,) = causes(moved, without)

    assert cause.cells == frozenset(list(moved)[:6])
    assert cause.sentence == (
        f"node bad: 5.9 % slower (4.9 to 7.0 %) in 6 of the 8 cells that ran there, "
        f"since {date(1e9 - 4 * day_s)}; "
        "0 of the 6 also ran on other nodes since then, where they were faster"
    )
    assert cause.change == pytest.approx(0.059, abs=1e-3)
    assert not cause.is_confirmed


def three_runs(job, *nodes):
    """Return three runs that are 6 % slower, the newest first, on these nodes."""
    runs = []
    for number, names in enumerate(nodes):
        before = runs[0].series_state if runs else None
        at = 1e9 - 9 + number
        runs.insert(0, judged(1.06, names, job=f"{job}-{number}", at=at, before=before, since=1e9 - 9))
    return runs


def mondays(number, level):
    """Return the causes named on each Monday, for 54 cells on 1 to 16 of 64 nodes with 1 % of noise."""
    dice = random.Random(12)  # noqa: S311 - step times, not secrets
    every = [f"n{node:02}" for node in range(NODES)]
    found = []
    for _ in range(number):
        runs = []
        for cell in range(CELLS):
            nodes = dice.sample(every, 2 ** (cell % 5))
            usual = SeriesState(
                "unchanged", baseline=Baseline(tuple(dice.gauss(1, 0.01) for _ in range(BASELINE_RUNS)))
            )
            runs.append(judged(dice.gauss(level(nodes), 0.01), nodes, job=f"job-{cell}", before=usual))
        found.append({cause.name for cause in causes(cells(*runs), without)})
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "level", "named", "number"),
    [
        (f"Mondays that name a cause among {CELLS} cells that never changed", lambda _: 1.0, None, 1000),
        (
            "a node that slows its runs by 5% named on the first Monday",
            lambda nodes: 1 + 0.05 * ("n07" in nodes),
            "node n07",
            300,
        ),
        (
            "a slowdown of all cells by 2% named the whole cluster on the first Monday",
            lambda _: 1.02,
            "whole cluster",
            300,
        ),
        (
            "a slowdown of all cells by 3% named the whole cluster on the first Monday",
            lambda _: 1.03,
            "whole cluster",
            300,
        ),
    ],
)
def test_how_often_a_cause_is_named(what, level, named, number):
    found = mondays(number, level)

    share = sum(bool(some) if named is None else named in some for some in found) / number
    assert share < 0.02 if named is None else share > 0.6
