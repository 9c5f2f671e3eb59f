"""Stragglers: which nodes and ranks of a run are named as slow, and how often that happens by chance."""

import json
import random

import pytest
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.node import describe_node
from steptime.logs.training_log import TrainingLog
from steptime.measure.stragglers import rank_times
from steptime.store.run_queries import Store


def record(seconds, *, nodes=1, groups=1):
    """Return the trainer's record of ranks that are spread evenly over nodes and pipeline stages."""
    ranks = len(seconds)
    return {
        "clock": "cuda_events",
        "steps": [30, 31, 32],
        "nodes": [f"gb-{number:03}" for number in range(nodes)],
        "node": [rank * nodes // ranks for rank in range(ranks)],
        "group": [rank * groups // ranks for rank in range(ranks)],
        "seconds": list(seconds),
    }


def times(ranks, seed, *, spread=0.01, slow=(), by=0.0):
    """Return the seconds of each rank: a normal spread, and some ranks that take longer."""
    rng = random.Random(seed)  # noqa: S311
    return [0.2 * (1 + rng.gauss(0, spread)) * (1 + by * (rank in slow)) for rank in range(ranks)]


def named(told):
    times_of_ranks = rank_times(told)
    assert times_of_ranks is not None
    return [straggler.name for straggler in times_of_ranks.stragglers]


def test_how_far_ranks_are_apart():
    told = rank_times(record([0.2, 0.19, 0.2, 0.202, 0.2, 0.212, 0.2, 0.198], nodes=2))
    assert told is not None
    assert told.summary == ("-5.0 to +6.0 % from the median of 8 ranks in 3 steps, slowest rank 5 on gb-001")


@pytest.mark.parametrize("ranks", [4, 8])
def test_a_slow_rank_is_named_with_its_ratio_and_interval(ranks):
    inside = 0
    for seed in range(50):
        times_of_ranks = rank_times(record(times(ranks, seed, slow=(2,), by=0.2)))
        assert times_of_ranks is not None
        (slow,) = times_of_ranks.stragglers
        assert slow.name == "rank 2 on gb-000"
        assert slow.margin < 0.1
        inside += abs(slow.ratio - 1.2) < slow.margin
    assert inside >= 45, "a 95 % interval"


@pytest.mark.parametrize(("ranks", "nodes"), [(4, 1), (8, 1), (16, 2), (64, 8)])
@pytest.mark.parametrize("spread", [0.003, 0.01, 0.02])
def test_alike_ranks_are_hardly_ever_named(ranks, nodes, spread):
    runs = [named(record(times(ranks, seed, spread=spread), nodes=nodes)) for seed in range(100)]
    assert sum(map(bool, runs)) <= 2


@pytest.mark.parametrize("nodes", [2, 8])
def test_a_node_whose_ranks_are_all_slow_is_named_once(nodes):
    for seed in range(20):
        told = record(times(8 * nodes, seed, spread=0.005, slow=range(8, 16), by=0.06), nodes=nodes)
        assert named(told) == ["node gb-001: ranks"]


def test_one_slow_rank_makes_no_slow_node():
    assert named(record(times(16, 1, slow=(13,), by=0.8), nodes=2)) == ["rank 13 on gb-001"]
    assert named(record(times(4, 1, slow=(3,), by=0.8), nodes=2)) == ["rank 3 on gb-001"]
    two = record(times(16, 1, slow=(3, 9), by=0.3))
    assert set(named(two)) == {"rank 3 on gb-000", "rank 9 on gb-000"}, "neither hides the other"
    seconds = times(32, 1, slow=(3,), by=0.8)
    seconds[9] *= 1.2
    assert named(record(seconds)) == ["rank 3 on gb-000", "rank 9 on gb-000"], "the slowest is not all"


def test_stages_with_other_layers_are_not_compared():
    stages = [second * (1 if rank < 4 else 3) for rank, second in enumerate(times(8, 1))]
    assert named(record(stages, groups=2)) == []
    assert named(record(stages, groups=1)) == []  # half of all ranks are no stragglers
    without_peers = rank_times(record([1, 2, 3, 9], groups=4))
    assert without_peers is not None
    assert (without_peers.ratios, without_peers.stragglers, without_peers.summary) == ({}, (), "")


@pytest.mark.parametrize(
    "broken", [{"seconds": [1.0]}, {"seconds": [1, 1, 1, 0]}, {"node": [0, 0, 0, 7]}, {"nodes": 3}]
)
def test_a_broken_record_is_left_out(broken):
    assert rank_times(record([1, 1, 1, 2]) | broken) is None
    assert rank_times(None) is None


def test_a_straggler_stands_in_the_verdict_with_the_run_and_on_the_page_of_its_node(
    tmp_path, make_result, monkeypatch
):
    store = Store(f"sqlite:///{tmp_path / 'steptime.db'}")
    slow = record(times(16, 1, spread=0.003, slow=range(8), by=0.06), nodes=2)
    result = make_result("job-1")
    log = TrainingLog.model_validate(result.log.model_dump() | {"rank_times": slow})
    publish(store, make_result("job-1", log=log, record=_with_nodes(result.record, slow["nodes"])))

    said = store.run("job-1")["stragglers"]
    assert said.startswith("node gb-000: ranks 5.8 % slower than the others (4.3 to ")
    node = describe_node(store, "local", "gb-000", now=1.79e9 + 3600)
    assert [run["ranks_percent"] for run in node["runs"]] == [pytest.approx(5.8, abs=0.05)]
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    shown = CliRunner().invoke(app, ["results", "show", "job-1", "--format", "json"])
    assert said in json.loads(shown.stdout)["judged"]["sentence"]
    shown = CliRunner().invoke(app, ["results", "show", "job-1", "--format", "csv"])
    assert said in shown.stdout
    assert "from the median of 16 ranks in 3 steps, slowest rank " in shown.stdout


def _with_nodes(text, nodes):
    return json.dumps(json.loads(text) | {"nodes": nodes})
