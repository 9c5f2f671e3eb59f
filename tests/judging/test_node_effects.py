"""Nodes that slow the runs on them: named on the first Monday, beside other trouble, and only with reason."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from kept import assert_kept

from steptime.durations import WEEK_S
from steptime.judging.detection import SeriesState, judge
from steptime.judging.node_effects import (
    NodeRun,
    as_evidence,
    is_usual_again,
    node_effects,
    node_runs,
    slow_nodes,
)
from steptime.judging.onset import Onset
from steptime.judging.run_judgement import Judgement
from steptime.judging.series import Series, SeriesRun
from steptime.store.columns import series_columns

NODES = [f"n{number:03}" for number in range(128)]
SIZES = (1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 32, 64)
"""How many nodes each of the 19 training cells takes."""
FOUR, SIX = (0, 1, 5, 9), (0, 1, 2, 5, 6, 9)
"""The cells that run on the bad node in the last week."""
LARGE = (16, 17, 18)
NOISE = 0.01


def series(cell):
    values = {"cluster": "h100", "gpu_type": "h100", "workload": "w", "proxy": False, "scaling": "weak"}
    values |= {"tuning": "", "for_judging": True, "mode": "performance", "dtype": "bf16"}
    spread = dict.fromkeys(series_columns("spread"), 1)
    return Series.from_row(
        dict.fromkeys(series_columns()) | values | spread | {"size": f"{cell}b", "gpus": SIZES[cell] * 8}
    )


def weeks_of(
    seed,
    *,
    there=(),
    step=0.05,
    others=(),
    others_step=0.05,
    others_weeks=1,
    slow_first=(),
    weeks=20,
    bad_weeks=1,
):
    """Return the bad node and the runs of all cells; each suspected one ran twice more, on other nodes.

    In the last `bad_weeks`, the cells `there` run on the bad node, which slows its runs by `step`. In the
    last `others_weeks`, the cells `others` are slower by `others_step` for another reason, and `slow_first`
    by 5 % in their first run of the last week.
    """
    rng = random.Random(seed)  # noqa: S311 - step times, not secrets
    bad, runs = rng.choice(NODES), list[NodeRun]()
    for cell, size in enumerate(SIZES):
        series_state, judged, onset = SeriesState(), list[Judgement](), None
        for week in range(weeks):
            nodes, is_bad = rng.sample(NODES, size), week >= weeks - bad_weeks
            if is_bad:
                nodes = [node if node != bad else NODES[NODES.index(bad) - 1] for node in nodes]
                nodes = [bad, *nodes[1:]] if cell in there else nodes
            for number in range(3):
                level = 1 + step * (bad in nodes and is_bad)
                if cell in others and week >= weeks - others_weeks:
                    level *= 1 + others_step
                elif cell in slow_first and week == weeks - 1 and number == 0:
                    level *= 1.05
                seconds = level * rng.gauss(1, NOISE)
                series_state = judge(series_state, seconds)
                row = {"job_name": f"{cell}-{week}-{number}", "nodes": ", ".join(nodes)}
                row |= {"submitted_at": 1e9 + week * WEEK_S + 60 * cell + 7200 * number}
                reported = series_state.newest_step
                if len(reported.since) == 1:
                    onset = Onset(row["job_name"], *[row["submitted_at"]] * 3)
                judged.append(Judgement(SeriesRun(row, seconds, ""), reported, onset=onset))
                if series_state.suspicion is None:
                    break
                free = [node for node in NODES if node not in nodes]
                nodes = rng.sample(free if len(free) >= size else NODES, size)
        runs += node_runs(series(cell), as_evidence(judged))
    return bad, runs


def named(runs):
    return {node for slow in slow_nodes(runs) for node in slow.nodes}


@pytest.mark.parametrize(
    ("there", "step", "others", "share"),
    [
        (SIX, 0.05, (), 0.95),
        (SIX, 0.05, LARGE, 0.95),
        (FOUR, 0.05, (), 0.75),
        (FOUR, 0.07, LARGE, 0.75),
    ],
)
def test_a_node_is_named_on_the_first_monday_also_while_other_cells_are_slower(there, step, others, share):
    right = 0
    for seed in range(20):
        bad, runs = weeks_of(seed, there=there, step=step, others=others)
        found = named(runs)
        assert found <= {bad}
        right += bad in found
    assert right >= share * 20


def test_the_list_of_nodes_says_of_a_slow_one_what_its_incident_says():
    bad, runs = weeks_of(3, there=SIX)
    [slow] = slow_nodes(runs)
    first = node_effects(runs)[0]
    assert (first.node, first.change, first.low, first.high) == (
        *(bad, slow.effect.change),
        *(slow.effect.low, slow.effect.high),
    )
    assert first.change == pytest.approx(0.05, abs=0.015), "its usual weeks do not count"


def test_its_size_has_an_interval_and_the_cells_that_ran_elsewhere_are_counted():
    bad, runs = weeks_of(1, there=SIX, step=0.07)
    [slow] = slow_nodes(runs)
    assert slow.effect.low < 0.07 < slow.effect.high
    assert slow.effect.high - slow.effect.low < 0.03
    assert {series["size"] for series in slow.slow} <= {f"{cell}b" for cell in SIX}
    assert len(slow.elsewhere) >= 4
    assert slow.effect.since >= 1e9 + 19 * WEEK_S
    first = node_effects(runs)[0]
    assert first.node == bad
    assert first.low > 0.03


@pytest.mark.parametrize("others", [(), (11, 12, 13, 14, *LARGE)])
@pytest.mark.parametrize("slow_first", [(), range(9, 17)])
def test_no_node_is_named_for_cells_that_are_slower_for_another_reason(others, slow_first):
    for seed in range(20):
        assert named(weeks_of(seed, others=others, slow_first=slow_first, step=0.0)[1]) == set()


@pytest.mark.parametrize(
    ("there", "weeks", "share"), [(SIX, 1, 0.95), (FOUR, 1, 0.75), (SIX, 2, 0.2), (SIX, 8, 0.75)]
)
def test_a_node_is_named_while_its_whole_cluster_is_slower(there, weeks, share):
    """Since this week, or for some weeks; its cells keep the cause that all cells have."""
    right = 0
    for seed in range(50, 70):
        bad, runs = weeks_of(seed, there=there, others=range(19), others_step=0.04, others_weeks=weeks)
        for slow in slow_nodes(runs):
            assert slow.nodes == (bad,)
            assert 0.025 < slow.effect.change < 0.075
            assert slow.on_top
            right += 1
    assert right >= share * 20


def test_no_node_is_named_while_the_whole_cluster_is_slower():
    for seed in range(20):
        for weeks in (1, 3):
            slower = {"others": range(19), "others_step": 0.04, "others_weeks": weeks}
            assert named(weeks_of(seed, step=0.0, **slower)[1]) == set()  # type: ignore[arg-type]


def test_a_node_on_top_of_a_slower_cluster_is_usual_again_by_its_runs_alone():
    bad, runs = weeks_of(50, there=SIX, others=range(19), others_step=0.04)
    [slow] = slow_nodes(runs)
    at = 1e9 + 20 * WEEK_S
    for change, usual in ((0.04, True), (0.09, False)):
        later = [
            replace(run, at=at + place, nodes=frozenset([bad]), change=change)
            for place, run in enumerate(run for run in runs if run.level and run.series in slow.on_top)
        ]
        seen = is_usual_again([*runs, *later[-3:]], slow.nodes, slow.effect.change, slow.effect.since)
        assert seen == usual


def test_the_only_node_is_not_told_from_its_cluster():
    _, runs = weeks_of(1, step=0.0, others=range(19), others_step=0.05)
    everywhere = [replace(run, nodes=frozenset(["only"])) for run in runs]
    assert named(everywhere) == set()
    assert named([replace(run, nodes=frozenset([*run.nodes, "only"])) for run in runs]) == set()


@pytest.mark.parametrize("step", [0.02, 0.03, -0.03])
def test_nodes_are_as_usual_while_all_cells_of_the_cluster_are_slower_or_faster(step):
    """Also those cells that are not confirmed yet: a third of them at 3 %, most at 2 %."""
    effects = [
        effect
        for seed in range(3)
        for effect in node_effects(weeks_of(seed, others=range(19), others_step=step, others_weeks=3)[1])
    ]
    assert statistics.fmean(effect.change for effect in effects) == pytest.approx(0, abs=0.002)
    assert sum(effect.low <= 0 <= effect.high for effect in effects) >= 0.9 * len(effects)


def test_the_runs_since_each_change_began_are_a_level_of_their_own():
    """Also those that were not suspected by themselves, and those of the first of two steps."""
    told = [
        (0, 1.00, "unchanged", None, 1.00),
        (1, 1.05, "unchanged", None, 1.00),
        (2, 1.05, "confirmed", 1, 1.01),
        (3, 1.15, "confirmed", 1, 1.02),
        (4, 1.16, "confirmed", 3, 1.05),
        (5, 1.15, "suspected", 5, 1.15),
    ]
    names = ("submitted_at", "seconds", "series_state", "began_at", "baseline_mean_s")
    rest = {"nodes": "n1", "baseline_deviation": 0.01, "baseline_runs": 12}
    rows = [dict(zip(names, row, strict=True)) | rest | {"job_name": f"run{row[0]}"} for row in told]
    runs = node_runs(series(0), rows)
    assert [run.job_name for run in runs] == [row["job_name"] for row in rows]
    assert [(run.level, run.is_usual) for run in runs] == [
        (0, True),
        *[(2, False)] * 2,
        *[(1, False)] * 2,
        (0, True),
    ]
    assert [round(math.exp(run.change), 2) for run in runs] == [1.0, 1.04, 1.04, 1.10, 1.10, 1.0]


def test_a_node_of_two_weeks_is_named_once_and_is_usual_again_by_runs_on_it_alone():
    bad, runs = weeks_of(3, there=SIX, step=0.05, bad_weeks=2)
    [slow] = slow_nodes(runs)
    assert slow.nodes == (bad,)
    assert not is_usual_again(runs, slow.nodes, slow.effect.change, slow.effect.since)

    def later(change, nodes):
        at = 1e9 + 20 * WEEK_S
        return [
            NodeRun(
                series(cell), f"later-{cell}", at + cell, frozenset(nodes), change, NOISE, 12, level_runs=12
            )
            for cell in range(3)
        ]

    for change, nodes, usual in ((0.0, [bad], True), (0.0, ["n000"], False), (0.05, [bad], False)):
        seen = [*runs, *later(change, nodes)]
        assert is_usual_again(seen, slow.nodes, slow.effect.change, slow.effect.since) == usual
    assert named([*runs, *later(0.0, [bad])]) == set(), "it was, and is no more"


@pytest.mark.parametrize(
    ("changes", "deviation", "usual"),
    [
        # the mean is 0.02, and its upper end 0.02 + 1.65 × 0.04 / √3 is above half of 0.1
        ((0.02, 0.02, 0.02), 0.04, False),
        ((0.02, 0.02, 0.02), 0.01, True),
        ((0.0, 0.0, 0.05), 0.01, False),
        ((0.02, 0.02), 0.01, False),
    ],
)
def test_a_node_is_usual_again_beyond_doubt_only(changes, deviation, usual):
    series = Series.from_row(dict.fromkeys(series_columns(), 1))
    runs = [
        NodeRun(series, f"job-{at}", 100.0 + at, frozenset({"bad", "n1"}), change, deviation, 8, level_runs=8)
        for at, change in enumerate(changes)
    ]
    assert is_usual_again(runs, ("bad",), 0.1, 99.0) is usual
    assert not is_usual_again(runs, ("bad",), 0.1, 100.0)
    assert not is_usual_again(runs, ("other",), 0.1, 99.0)


def test_by_how_much_nodes_differ():
    _, runs = weeks_of(3, there=SIX, bad_weeks=2, others=(3, 4, 7), slow_first=(8,))
    told = [
        f"{effect.node} {effect.change:+.4f} {effect.low:+.4f} {effect.high:+.4f}, {effect.runs} runs of "
        f"{effect.cells} cells since {effect.since:.0f}\n"
        for effect in node_effects(runs)[:12]
    ]
    for slow in slow_nodes(runs):
        changes = [f"{change:+.4f}" for change in (*slow.slow.values(), *slow.on_top.values())]
        told.append(f"slow: {slow.nodes} {slow.effect.change:+.4f}, {slow.ran} cells, {changes}\n")
    assert_kept("judging/nodes.txt", "".join(told))
