"""Node sweeps: the slow node or link is named in spite of noise."""

import csv
import itertools
import json
import random
import re
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from sixty_cells import SEEDS
from stored import write_node_sweep
from typer.testing import CliRunner

from steptime.cli import app
from steptime.cli.node_pairs import _cell
from steptime.errors import UserError
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import incidents
from steptime.judging.node import describe_node
from steptime.judging.node_pairs import describe_node_pairs, find_slow_links, find_slow_nodes
from steptime.pages import answers
from steptime.store.run_queries import Store

NODES = tuple(f"node{number}" for number in range(1, 9))
PAIRS = tuple(itertools.combinations(NODES, 2))


def times_of(seed, *, slow=None, link=None):
    """Return seconds by pair with 1 % of noise; slow nodes have these factors, and a slow link has 1.4."""
    noise, factors = random.Random(seed), slow or {}  # noqa: S311 - times, not secrets
    return {
        pair: noise.gauss(0.1, 0.001)
        * max(factors.get(node, 1.0) for node in pair)
        * (1.4 if pair == link else 1)
        for pair in PAIRS
    }


def alone_of(seed, slow=None):
    noise = random.Random(seed)  # noqa: S311
    return {node: noise.gauss(0.02, 0.0002) * (slow or {}).get(node, 1.0) for node in NODES}


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_named_among_equal_nodes(seed):
    times = times_of(seed)
    assert (find_slow_nodes(times, alone_of(seed)), find_slow_links(times, ())) == ({}, {})


@pytest.mark.parametrize(
    ("percent", "text", "style"),
    [
        (None, "", ""),
        (-3.2, "-3", ""),
        (4.9, "+5", ""),
        (5.0, "+5", "black on yellow"),
        (19.9, "+20", "black on yellow"),
        (20.0, "+20", "white on red"),
    ],
)
def test_a_slow_pair_stands_out(percent, text, style):
    cell = _cell(percent)
    assert (cell.plain, str(cell.style)) == (text, style)


@pytest.mark.parametrize("seed", range(6))
def test_one_bad_link_among_eight_nodes_is_named(seed):
    times = times_of(seed, link=("node3", "node7"))
    assert find_slow_nodes(times, alone_of(seed)) == {}
    found = find_slow_links(times, ())
    assert list(found) == ["node3 - node7"]
    assert "other pairs of both nodes are not" in found["node3 - node7"]


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_node_is_named_and_none_of_its_links(seed):
    slow = {"node2": 1.3}
    times = times_of(seed, slow=slow, link=("node4", "node8"))
    of_network = find_slow_nodes(times, alone_of(seed))
    assert list(of_network) == ["node2"]
    assert of_network["node2"].endswith("; alone it is not: its network.")
    assert list(find_slow_links(times, of_network)) == ["node4 - node8"]
    (sentence,) = find_slow_nodes(times, alone_of(seed, slow)).values()
    assert re.fullmatch(
        r"Node node2 is slow: its 7 pairs take (2[89]|3[0-2]) % longer than .*; alone .* slower\.", sentence
    )


def test_with_two_pairs_of_each_node_only_a_pair_is_named():
    ring = {pair for pair in PAIRS if abs(NODES.index(pair[0]) - NODES.index(pair[1])) in (1, 7)}
    slow = {pair: seconds for pair, seconds in times_of(1, link=("node3", "node4")).items() if pair in ring}
    assert find_slow_nodes(slow, {}) == {}
    assert "too few pairs to tell which" in find_slow_links(slow, ())["node3 - node4"]
    every = times_of(1, link=("node3", "node4"))
    of_one = {pair: seconds for pair, seconds in every.items() if "node4" not in pair or pair in ring}
    assert "too few pairs to tell which" in find_slow_links(of_one, ())["node3 - node4"], "node4 has two"


def test_the_whole_sentences_of_nodes_and_links():
    """Of six nodes two are slow, which makes more than half of the pairs slow; one more link is, too."""
    pairs = [
        frozenset(pair) for pair in itertools.combinations((f"node{number}" for number in range(1, 7)), 2)
    ]
    slow = {"node5": "", "node6": ""}
    times = {pair: 2.0 if pair & slow.keys() else 1.0 for pair in pairs}
    times[frozenset(("node1", "node2"))] = 1.4
    assert find_slow_links(times, slow) == {
        "node1 - node2": "Link node1 - node2 is slow: 40 % longer than the median; "
        "other pairs of both nodes are not."
    }
    of_one = {pair: 1.3 if "node2" in pair else 1.0 for pair in pairs}
    told = "Node node2 is slow: its 5 pairs take 30 % longer than the median"
    alone = dict.fromkeys((f"node{number}" for number in range(1, 7)), 1.0)
    assert find_slow_nodes(of_one, {}) == {"node2": f"{told}."}
    assert find_slow_nodes(of_one, alone) == {"node2": f"{told}; alone it is not: its network."}
    assert find_slow_nodes(of_one, alone | {"node2": 1.2}) == {"node2": f"{told}; alone it is 20 % slower."}


@pytest.fixture(scope="module")
def swept(make_result, tmp_path_factory):
    """Return a store with a node sweep of eight nodes whose link from node3 to node7 is slow."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('swept') / 's.db'}")
    runs = {(node,): seconds for node, seconds in alone_of(1).items()} | times_of(1, link=("node3", "node7"))
    write_node_sweep(store, make_result, runs)
    return store


@pytest.mark.long
def test_the_heat_map_names_the_bad_link(swept, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", swept.url)
    found = describe_node_pairs(swept, "nodes")
    assert (found.nodes, len(found.pairs), list(found.slow_links)) == (NODES, 28, ["node3 - node7"])
    shown = CliRunner().invoke(app, ["results", "nodes", "nodes"])
    assert shown.exit_code == 0, shown.output
    heads, *lines = (line.split() for line in shown.stdout.splitlines())
    changes = dict(zip((node for node in NODES if node != "node3"), map(int, lines[2][1:]), strict=True))
    assert (heads[-8:], lines[2][0], max(changes, key=changes.__getitem__)) == ([*NODES], "node3", "node7")
    assert 35 < changes["node7"] < 45
    assert " ".join(lines[-1]) == found.findings[0]
    answer = json.loads(CliRunner().invoke(app, ["results", "nodes", "nodes", "--format", "json"]).stdout)
    assert answer["nodes"]["findings"] == list(found.findings)
    printed = CliRunner().invoke(app, ["results", "nodes", "nodes", "--format", "csv"]).stdout
    listed = {(row["node"], row["other"]): row for row in csv.DictReader(printed.splitlines())}
    assert listed.keys() == {pair.nodes for pair in found.pairs} == {*PAIRS}
    assert 35 < float(listed["node3", "node7"]["slower_percent"]) < 45


def test_the_page_of_a_node_has_its_sentences(swept):
    of_node = {node: describe_node(swept, "local", node, now=1.79e9 + 3600)["pairs"] for node in NODES}
    assert {node for node, sentences in of_node.items() if sentences} == {"node3", "node7"}


@pytest.mark.slow
def test_what_a_node_sweep_has_measured_is_evidence_of_an_incident(sixty_cells, make_result, tmp_path):
    """Pairs too short to be timed are no evidence, and the update of incidents still succeeds."""
    stores = sixty_cells(SEEDS[0])
    shutil.copy(stores.planted.removeprefix("sqlite:///"), tmp_path / "s.db")
    store, bad = Store(f"sqlite:///{tmp_path / 's.db'}"), stores.bad_node
    pairs = list(itertools.combinations([bad, *NODES], 2))
    of_east = make_result().run.model_copy(update={"cluster": "east"})

    def evidence():
        update_incidents(store)
        [found] = [one for one in incidents(store) if one.subject == f"node {bad}"]
        return found.evidence

    for factor, told in (
        (1.3, f"Node {bad} is slow: its 8 pairs take 30 % longer than the median."),
        (1.0, f"neither {bad} nor a link from there is slow."),
    ):
        runs = {pair: 0.1 * (factor if bad in pair else 1) for pair in pairs}
        write_node_sweep(store, make_result, runs, run=of_east, submitted_at=time.time())
        assert re.fullmatch(
            rf"node {bad}: \d+\.\d % slower \(.* %\) in .*\. Node sweep of [\d-]+: {told}", evidence()
        )
    with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
        database.execute("UPDATE runs SET steady_step_time_s = NULL WHERE bus_bandwidth_gb_s IS NOT NULL")
    assert "Node sweep" not in evidence()


@pytest.mark.long
def test_the_command_to_drain_a_slow_node_is_shown(make_result, tmp_path, monkeypatch):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    on_slurm = make_result().run.model_copy(update={"cluster": "mini-slurm"})
    write_node_sweep(
        store, make_result, times_of(1, slow={"node2": 1.3}), run=on_slurm, submitted_at=time.time()
    )
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    command = (
        "scontrol update nodename=node2 state=drain 'reason=steptime: Node node2 is slow: its 7 pairs take"
    )
    lines = CliRunner().invoke(app, ["results", "nodes", "nodes"]).stdout.splitlines()
    assert lines[-1].startswith(f"To drain it, as an administrator: {command}")
    assert answers.node(store, "mini-slurm", "node2")["drain"] == lines[-1].split(": ", 1)[1]
    assert answers.node(store, "local", "node2")["drain"] is None


def test_a_sweep_without_pairs_is_refused(swept):
    with pytest.raises(UserError, match="no valid run of the sweep 'weekly' had two nodes"):
        describe_node_pairs(swept, "weekly")
