"""Decisions exactly at their limit and just beside it, and both sides of each symmetric condition."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from steptime.clusters.checks import CheckFailedError, clock_difference
from steptime.durations import WEEK_S
from steptime.judging import comparison, incident_updates, missing_cells, paired_runs
from steptime.judging.detection import Baseline, SeriesState
from steptime.judging.missing_cells import MissingCell, two_levels
from steptime.judging.node_pairs import NodePairs, find_slow_links, find_slow_nodes
from steptime.judging.verdicts import decide_verdict

USUAL = Baseline((1.0, 1.01, 0.99, 1.0, 1.0))


def test_a_baseline_of_six_runs_suffices():
    found = {runs: Baseline((1.0,) * runs).suffices for runs in range(1, 8)}
    assert [runs for runs, suffices in found.items() if suffices] == [6, 7]


@pytest.mark.parametrize(
    ("differences", "middle"),
    [([3, 1, 2], 2), ([1, 3], 1), ([-3, -1], -1), ([-2, 1], 1), ([5, math.nan, -2, 9], 5)],
)
def test_of_two_in_the_middle_that_nearer_to_zero_counts(differences, middle):
    assert paired_runs._middle(np.array(differences, float)) == middle


@pytest.mark.parametrize(
    ("usual", "having", "is_harmless"),
    [(3, 3, False), (4, 4, True), (6, 4, True), (7, 4, True), (8, 4, False), (8, 5, True), (20, 10, False)],
)
def test_a_change_is_harmless_if_four_cells_and_more_than_half_took_it(usual, having, is_harmless):
    """Cells of another cluster and cells that changed do not count, and nodes are no such change."""

    def cell(job, changed, cluster="h100"):
        changes = ("image a → b", "nodes x → y")
        return SimpleNamespace(
            judgement=SimpleNamespace(changes=changes),
            changed=changed,
            series={"cluster": cluster},
            run=SimpleNamespace(job_name=job),
        )

    slower = cell("slower", True)
    every = [slower, *(cell(f"usual-{number}", False) for number in range(usual))]
    every += [cell(f"elsewhere-{number}", False, "b200") for number in range(9)]
    every += [cell(f"changed-{number}", True) for number in range(9)]
    took = {f"usual-{number}" for number in range(having)}
    found = comparison._harmless(slower, every, lambda job, _: job in took or "usual" not in job)
    assert found == (("image a → b",) if is_harmless else ())
    assert comparison._harmless(every[1], every, lambda *_: True) == (), "itself as usual"


def test_a_change_counts_from_the_bound_on_in_both_directions():
    bound = USUAL.bound()
    near = bound * 1e-9
    found = [USUAL.direction([1 + sign * (bound + beside)]) for sign in (1, -1) for beside in (-near, near)]
    assert found == [None, "slower", None, "faster"]
    assert Baseline((1.0,) * 30).bound() == pytest.approx(0.015, rel=0.5)


@pytest.mark.parametrize(
    ("run", "change", "nearer"),
    [
        (1.0499, 0.1, True),
        (1.0501, 0.1, False),
        (0.9501, -0.1, True),
        (0.9499, -0.1, False),
        (0.9, 0.1, True),
    ],
)
def test_a_run_is_nearer_to_one_of_two_levels(run, change, nearer):
    assert USUAL.is_nearer(run, change) is nearer
    assert USUAL.is_over(change, [9.0, run, run]) is nearer
    assert not USUAL.is_over(change, [run])
    assert not USUAL.is_over(change, [run, 1 + change])


@pytest.mark.parametrize("direction", ["slower", "faster"])
@pytest.mark.parametrize(
    ("state", "q_value", "told"),
    [
        *(("suspected", 0.05, True), ("suspected", 0.0501, False), ("suspected", 0.0, True)),
        *(("confirmed", 1.0, True), ("dismissed", 0.0, False), ("unchanged", 0.0, False)),
    ],
)
def test_a_suspicion_is_told_up_to_the_rate(state, q_value, told, direction):
    of_cell = SeriesState(state=state, direction=direction)
    assert decide_verdict(of_cell, q_value) == (direction if told else "unchanged")


@pytest.mark.parametrize(
    ("state", "direction", "is_reported"),
    [
        *(("confirmed", "slower", True), ("confirmed", "faster", False)),
        *(("suspected", "slower", False), ("dismissed", "slower", False)),
    ],
)
def test_a_further_step_is_reported_if_it_is_a_confirmed_slowdown(state, direction, is_reported):
    further = SeriesState(state=state, direction=direction)
    whole = SeriesState(state="confirmed", direction="slower", level=further)
    assert whole.newest_step is (further if is_reported else whole)


@pytest.mark.parametrize(
    ("state", "direction", "found"),
    [
        *(("suspected", "slower", True), ("suspected", "faster", False)),
        *(("confirmed", "slower", False), ("unchanged", None, False)),
    ],
)
def test_a_further_suspicion_is_one_of_a_slowdown(state, direction, found):
    further = SeriesState(state=state, direction=direction)
    whole = SeriesState(state="confirmed", direction="slower", level=further)
    assert whole.suspicion is (further if found else None)
    assert further.suspicion is (further if state == "suspected" else None), (
        "alone it counts in both directions"
    )


def finding(*changes, nearby=(), state="confirmed"):
    return SimpleNamespace(
        series_state=SimpleNamespace(state=state),
        judgement=SimpleNamespace(changes=changes),
        onset=SimpleNamespace(nearby=nearby) if nearby else None,
    )


IMAGE, NCCL = "image a → b", "nccl 2.26 → 2.27"


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        (finding(IMAGE), finding(IMAGE), True),
        (finding(IMAGE), finding(NCCL), False),
        (finding(IMAGE), finding(), False),
        (finding(), finding(), True),
        (finding(IMAGE), finding(NCCL, nearby=(IMAGE,)), True),
        (finding(IMAGE), finding(nearby=(IMAGE,)), True),
        (finding(nearby=(IMAGE,)), finding(NCCL, nearby=(IMAGE,)), False),
        (finding(IMAGE), finding(NCCL, state="suspected"), True),
    ],
)
def test_two_cells_may_share_a_cause_whichever_is_first(one, other, may):
    assert incident_updates._may_share_a_cause(one, other) is may
    assert incident_updates._may_share_a_cause(other, one) is may


@pytest.mark.parametrize(
    ("weeks", "tail"),
    [
        (1, ""),
        (2, "; it fails for the second week"),
        (3, "; it fails for the third week"),
        (4, "; it fails for the fourth week"),
        (5, "; it has failed for more than four weeks"),
    ],
)
@pytest.mark.parametrize(("attempts", "head"), [(1, "failed: "), (2, "failed 2 times, the newest: ")])
def test_for_how_many_weeks_a_cell_fails(weeks, tail, attempts, head):
    cell = MissingCell(SimpleNamespace(), "no disk", attempts, None, None, weeks)  # type: ignore[arg-type]
    assert cell.sentence == f"{head}no disk{tail}"


@pytest.mark.parametrize(
    ("starts", "after_s", "overdue"),
    [
        ((0,), 1.25 * WEEK_S, False),
        ((0,), 1.25 * WEEK_S + 1, True),
        ((0, 1000, 3000), 2500, False),
        ((0, 1000, 3000), 2501, True),
        ((3000, 0, 1000), 2501, True),
        ((0, 2000, 3000), 2500, False),
    ],
)
def test_a_sweep_is_overdue_a_quarter_after_its_longest_interval(starts, after_s, overdue):
    rows = [{"dag_id": "d", "dag_run_id": str(at), "submitted_at": float(at)} for at in starts]
    rows += [row | {"submitted_at": row["submitted_at"] + 500} for row in rows]
    assert missing_cells._is_overdue(rows, max(starts) + after_s) is overdue


def test_a_series_alternates_between_levels_from_twelve_runs_and_four_alternations_on():
    def alternating(runs, high, every=1):
        return [high if (run // every) % 2 else 1.0 for run in range(runs)]

    assert two_levels(alternating(12, 1.1)) == (1.0, 1.1)
    assert two_levels(alternating(11, 1.1)) is None
    assert two_levels(alternating(15, 1.1, every=3)) == (1.0, 1.1), "four alternations"
    assert two_levels(alternating(12, 1.1, every=3)) is None, "three"
    assert two_levels([*[1.0] * 3, *[1.1] * 3, *[1.0] * 3, *[1.1] * 3, *[1.0] * 3]) == (1.0, 1.1)


def test_a_node_is_not_taken_for_another_whose_name_begins_alike():
    sentence = {"node1": "Node node1 is slow.", "node12": "Node node12 is slow."}
    found = NodePairs(
        **{"sweep": "s", "cluster": "c", "submitted_at": 1.7e9, "pairs": (), "missing": ("node2",)},
        **{"nodes": ("node1", "node3", "node11", "node12"), "slow_nodes": sentence},
        slow_links={"node3 - node11": "Link node3 - node11 is slow."},
    )
    assert {node: found.about(node) for node in (*found.nodes, "node2")} == {
        "node1": ("Node node1 is slow.",),
        "node3": ("Link node3 - node11 is slow.",),
        "node11": ("Link node3 - node11 is slow.",),
        "node12": ("Node node12 is slow.",),
        "node2": (),
    }
    assert found.evidence(["node2"]) == ""
    assert found.evidence(["node3", "node11"]).endswith(": Link node3 - node11 is slow.")


def test_a_node_of_three_pairs_is_named_above_five_percent():
    def times(slower, nodes=4):
        pairs = [(one, other) for one in range(nodes) for other in range(one)]
        return {
            frozenset((f"n{one}", f"n{other}")): slower if one == nodes - 1 else 1.0 for one, other in pairs
        }

    wide = times(1.051, 8)
    assert [*find_slow_nodes(wide, {})] == ["n7"]
    assert [*find_slow_nodes(times(1.049, 8), {})] == []
    assert [*find_slow_nodes(times(1.2, 3), {})] == [], "with two pairs each it may be the other node"
    link = dict.fromkeys(wide, 1.0) | {frozenset(("n0", "n7")): 1.051}
    assert [*find_slow_links(link, ())] == ["n0 - n7"]
    assert [*find_slow_links(link, ("n7",))] == []
    assert [*find_slow_links(link | {frozenset(("n0", "n7")): 1.049}, ())] == []


@pytest.mark.parametrize(
    ("apart_s", "says"),
    [
        *(
            (0.0, "it agrees"),
            (1.0, "it agrees"),
            (-1.0, "it agrees"),
            (1.1, "1 s ahead"),
            (-1.1, "1 s behind"),
        ),
        *((60.0, "60 s ahead of"), (-60.0, "60 s behind"), (60.1, None), (-60.1, None)),
    ],
)
def test_clocks_may_differ_by_the_limit_both_ways(apart_s, says):
    if says is None:
        way = "ahead of" if apart_s > 0 else "behind"
        with pytest.raises(CheckFailedError, match=f"clock is 60 s {way} this machine's"):
            clock_difference(1e6 + apart_s, 1e6, at_most_s=60)
    else:
        assert clock_difference(1e6 + apart_s, 1e6, at_most_s=60).startswith(says)


def test_the_interval_of_a_mean_is_symmetric():
    low, high = USUAL.interval(0.9)
    assert (low + high) / 2 == pytest.approx(1.0)
    assert (high - low) / 2 == pytest.approx(2.1318 * USUAL.deviation / math.sqrt(5), rel=1e-4)
