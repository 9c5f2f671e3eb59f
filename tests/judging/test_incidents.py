"""Incidents: cells that moved together are one incident, which lives until their level returns."""

import json
import re
import time

import pytest
import stored
from sixty_cells import SEEDS, WEST_CHANGE
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import UserError
from steptime.judging.comparison import compare_since
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import (
    accept,
    comment,
    find_incident,
    incidents,
    mark_notified,
    silence,
)
from steptime.store.run_queries import Store

pytestmark = pytest.mark.long

DAY_S = 86_400.0
START = 1e9 + 4 * 3600
"""05:46 UTC, which is the same day in every time zone that tests are run in."""
USUAL = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 1.001)
FIVE_UNSEEN = (False,) * 5 + (True,) * 3
"""Whether each of eight weeks is judged and made an incident at once, or with the next one."""
RING = {"environment": {"NCCL_ALGO": "Ring"}}


@pytest.fixture
def week(store, make_result):
    """Return a function that publishes a run of each cell, a day after the last, and returns the news."""
    days = iter(range(1000))

    def run(levels, *, update=True, **options):
        at = START + DAY_S * next(days)
        for gpus, level in levels.items():
            result = make_result(
                f"run-{gpus}-{at:.0f}", gpus=gpus, step_times=[level] * 20, submitted_at=at + gpus, **options
            )
            (publish if update else stored.write)(store, result)
        return update_incidents(store, now=at + 3600) if update else []

    return run


def usual_runs(week, gpus):
    """Publish a history of these cells; all of it is judged with its last run."""
    for level in USUAL[:-1]:
        week(dict.fromkeys(gpus, level), update=False)
    assert week(dict.fromkeys(gpus, USUAL[-1])) == []


def told(store, news):
    """Return the states that are news, and keep that they were notified."""
    for one in news:
        mark_notified(store, one)
    return [one.state for one in news]


def listed_by_command():
    """Return the last incident that `steptime incidents` lists."""
    shown = CliRunner().invoke(app, ["incidents", "--format", "json"])
    return json.loads(shown.stdout)["incidents"][-1]


def test_an_incident_opens_is_confirmed_and_is_fixed_and_each_is_news_once(store, week):
    usual_runs(week, [2])

    [opened] = week({2: 1.06})
    assert opened.title == "tiny·fp32·2 on local 5.9 % slower since 2001-09-16, no recorded change"
    assert [one.id for one in update_incidents(store, now=START + 8 * DAY_S)] == [opened.id], "until notified"
    assert told(store, [opened]) == ["open"]
    assert week({2: 1.06}) == []
    assert told(store, week({2: 1.06})) == ["confirmed"]
    assert [one.state for one in incidents(store)] == ["confirmed"]
    assert week({2: 1.0}) == []
    assert told(store, week({2: 1.0})) == ["fixed"]
    assert incidents(store) == []
    [closed] = incidents(store, closed_since=START)
    assert (closed.id, closed.state) == (opened.id, "fixed")


@pytest.mark.parametrize("was_told", [True, False])
def test_a_suspicion_that_confirmation_runs_dismiss_was_not_fixed(store, week, was_told):
    usual_runs(week, [2])
    opened = week({2: 1.06})
    if was_told:
        told(store, opened)
    week({2: 1.0})
    assert told(store, week({2: 1.0})) == ["dismissed"] * was_told
    assert [one.state for one in incidents(store, closed_since=START)] == ["dismissed"]


def test_nobody_is_notified_of_a_faster_cell_but_it_is_listed(store, week):
    usual_runs(week, [2])
    assert week({2: 0.94}) == []
    [found] = incidents(store)
    assert (found.direction, found.state) == ("faster", "open")


def test_slower_cells_come_first_and_in_each_incident_the_most_changed(store, week):
    usual_runs(week, [1, 2, 8, 16])
    week({1: 0.95, 2: 0.92, 8: 1.05, 16: 1.08})
    slower, faster = incidents(store)
    assert [slower.direction, faster.direction] == ["slower", "faster"]
    assert [cell.series["gpus"] for cell in slower.affected] == [16, 8]
    assert [cell.series["gpus"] for cell in faster.affected] == [2, 1]


def test_cells_of_one_size_and_data_type_are_one_incident(store, week):
    usual_runs(week, [1, 2])
    assert update_incidents(store, now=START + 7 * DAY_S) == [], "nothing happened yet"
    [found] = week({1: 1.06, 2: 1.06})
    assert (found.kind, found.subject) == ("family", "both cells of tiny fp32")
    assert found.evidence == "no recorded change in common"
    assert found.title.startswith("local: 2 cells 5.9 % slower since 2001-09-16, both cells of tiny fp32")
    week({1: 1.06})
    week({1: 1.06})
    [found] = incidents(store)
    assert {cell.series["gpus"]: cell.state for cell in found.cells} == {1: "confirmed", 2: "suspected"}
    assert found.state == "confirmed", "as one of its cells is"


def test_the_title_counts_the_cells_that_are_as_usual(store, week):
    usual_runs(week, [1, 2, 4, 8, 16])
    week({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.06, 16: 1.06})
    [found] = incidents(store)
    assert found.subject == "both cells of tiny fp32 from 8 GPUs on"
    week({1: 1.06, 4: 1.0})
    assert "tiny·fp32·1 on local" in {one.title.partition(" 5")[0] for one in incidents(store)}


def test_a_faster_level_that_lasts_is_the_new_level_and_nothing_is_called_fixed(store, week):
    usual_runs(week, [1, 2])
    for _ in range(3):
        week({1: 0.94, 2: 0.94})
    for _ in range(3):
        week({1: 0.94, 2: 1.0})
    assert [one.state for one in incidents(store, closed_since=START)] == ["confirmed"]
    for _ in range(2):
        week({1: 0.94, 2: 1.0})
    [closed] = incidents(store, closed_since=START)
    assert {cell.state for cell in closed.cells} == {"at a new level", "returned"}
    assert closed.state == "new level"


def test_what_was_faster_for_a_while_has_ended_and_was_not_fixed(store, week):
    usual_runs(week, [1])
    for level in (0.94, 0.94, 0.94, 1.0, 1.0):
        week({1: level})
    assert [one.state for one in incidents(store, closed_since=START)] == ["ended"]


def test_a_new_level_stands_in_the_sentence_of_a_long_period(store, week):
    usual_runs(week, [1])
    for _ in range(9):
        week({1: 0.94})
    [closed] = incidents(store, closed_since=START)
    assert closed.sentence.startswith("New level: tiny·fp32·1 on local 6.1 % faster since 2001-09-16")
    assert "1 cell: 0 slower, 0 faster, 1 unchanged; 1 at a new, faster level" in (
        compare_since(store, START).sentence
    )


def test_a_closed_incident_keeps_its_size_cause_and_date(store, week):
    usual_runs(week, [1, 2])
    for _ in range(4):
        week({1: 1.06, 2: 1.06}, **RING)
    [before] = incidents(store)
    for _ in range(2):
        week({1: 1.0, 2: 1.0}, **RING)
    [closed] = incidents(store, closed_since=START)
    assert closed.state == "fixed"
    assert (closed.title, closed.evidence) == (before.title, before.evidence)


def test_a_further_slowdown_on_top_of_an_open_one_is_an_incident_with_its_own_cause(store, week):
    with_ring = [1, 2, 4, 8]
    usual_runs(week, [*with_ring, 16])
    for update in FIVE_UNSEEN:
        week({16: 1.0}, update=update)
        week(dict.fromkeys(with_ring, 1.06), update=update, **RING)
    told(store, incidents(store))
    for _ in range(3):
        week({16: 1.05}, environment={"NCCL_IB_QPS": "4"})
        news = week(dict.fromkeys(with_ring, 1.113), environment=RING["environment"] | {"NCCL_IB_QPS": "4"})
    first, second = sorted(incidents(store), key=lambda one: one.since)
    assert [one.subject for one in (first, second)] == ["NCCL_ALGO none → Ring", "NCCL_IB_QPS none → 4"]
    assert [len(one.affected) for one in (first, second)] == [4, 5]
    assert first.change == pytest.approx(0.06, abs=0.004)
    assert second.change == pytest.approx(0.05, abs=0.004)
    assert [one.id for one in news] == [second.id], "it has its own message"
    [remark] = [one for one in compare_since(store, START).remarks if one.startswith("tiny·fp32·2: ")]
    assert re.search(r"^tiny·fp32·2: slower by 5\.\d % since [\d-]+ on top of 5\.\d % since [\d-]+, ", remark)
    for _ in range(2):
        week({16: 1.0})
        week(dict.fromkeys(with_ring, 1.06), **RING)
    assert [(one.id, one.state) for one in incidents(store)] == [(first.id, "confirmed")]
    for _ in range(2):
        week(dict.fromkeys(with_ring, 1.0))
    assert {one.state for one in incidents(store, closed_since=START)} == {"fixed"}


def test_accepting_a_further_slowdown_begins_the_baseline_with_it(store, week):
    usual_runs(week, [2])
    for update in FIVE_UNSEEN:
        week({2: 1.06}, update=update)
    for _ in range(3):
        week({2: 1.12})
    second = max(incidents(store), key=lambda one: one.since)
    accept(store, second.id or 0, note="meant", author="Kim")
    week({2: 1.12})
    assert incidents(store) == []


def test_a_cell_that_joins_later_joins_the_same_incident(store, week):
    usual_runs(week, [1, 2, 4])
    [first] = week({1: 1.06, 2: 1.0, 4: 1.0}, **RING)
    assert (first.kind, first.subject) == ("cell", "NCCL_ALGO none → Ring")
    told(store, [first])

    assert told(store, week({1: 1.06, 2: 1.06, 4: 1.06}, **RING)) == []
    [found] = incidents(store)
    assert (found.id, len(found.cells)) == (first.id, 3)


def test_a_change_that_the_other_cells_took_without_harm_is_not_named_as_the_cause(store, week):
    gpus = [1, 2, 4, 8, 16]
    usual_runs(week, gpus)
    [found] = week({**dict.fromkeys(gpus, 1.0), 4: 1.06}, **RING)
    assert found.subject == "no change of its own"
    [remark] = [one for one in compare_since(store, START).remarks if one.startswith("tiny·fp32·4: ")]
    assert "changed then: NCCL_ALGO none → Ring; most cells that are as usual have " in remark


def test_two_incidents_of_one_family_become_one(store, week):
    usual_runs(week, [1, 2, 4])
    opened = [*week({1: 1.06}, **RING), *week({2: 1.06}, **RING)]
    [found] = incidents(store)
    assert (found.kind, found.id) == ("family", opened[0].id)
    assert [cell.series["gpus"] for cell in found.cells] == [1, 2]
    assert found.judged_cells == 3


def test_a_cell_without_the_recorded_change_of_another_is_an_incident_of_its_own(store, week):
    usual_runs(week, [1, 2, 4])
    for levels, options in (({1: 1.06}, RING), ({2: 1.06}, {})):
        for _ in range(2):
            week(levels, update=False, **options)
        week(levels, **options)
    assert [(one.kind, one.subject) for one in incidents(store)] == [
        ("cell", "NCCL_ALGO none → Ring"),
        ("cell", ""),
    ]


def test_a_small_slowdown_is_fixed_only_when_its_runs_are_as_before(store, week):
    """The mean of two runs at such a level is often within the limits of a usual one."""
    usual_runs(week, [2])
    for level in (1.03, 1.03, 1.03, 1.004, 1.026, 1.004):
        week({2: level})
    [found] = incidents(store)
    assert found.state == "confirmed"
    for level in (1.001, 0.999):
        week({2: level})
    assert [one.state for one in incidents(store, closed_since=START)] == ["fixed"]


def test_some_cells_of_an_incident_return_before_the_others(store, week, monkeypatch):
    usual_runs(week, [1, 2])
    for _ in range(3):
        week({1: 1.06, 2: 1.06}, **RING)
    for _ in range(2):
        week({1: 1.0, 2: 1.06})
    [found] = incidents(store)
    assert found.state == "confirmed"
    assert [cell.state for cell in found.cells] == ["returned", "confirmed"]
    assert found.title.startswith("local: 1 of 2 cells still 5.9 % slower")
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    assert listed_by_command()["cells"] == len(found.affected) == 1


@pytest.mark.slow
def test_what_cells_have_in_common_is_the_incident(sixty_cells):
    stores = sixty_cells(SEEDS[0])
    store = Store(stores.planted)
    found = {one.subject: one for one in incidents(store)}
    node, change = found[f"node {stores.bad_node}"], found[WEST_CHANGE]
    assert (node.kind, node.nodes) == ("node", (stores.bad_node,))
    assert (change.kind, change.nodes) == ("change", ())
    assert min(len(node.cells), len(change.cells)) >= 3
    series = [cell.series for one in found.values() for cell in one.cells]
    assert len(series) == len(set(series)), "a cell is in one incident"
    before = [one.as_row for one in incidents(store)]
    update_incidents(store)
    assert [one.as_row for one in incidents(store)] == before, "another update changes nothing"
    assert incidents(Store(stores.unchanged)) == []


def test_an_accepted_incident_closes_and_its_level_is_the_new_baseline(store, week):
    usual_runs(week, [1, 2])
    for _ in range(3):
        news = week({1: 1.06, 2: 1.06}, **RING)
    number = news[0].id
    assert number is not None

    accepted = accept(store, number, note="meant", author="ann")
    assert (accepted.state, accepted.note, accepted.noted_by) == ("accepted", "meant", "ann")
    assert week({1: 1.06, 2: 1.06}, **RING) == []
    assert incidents(store) == []
    with pytest.raises(UserError, match=f"incident {number} is accepted"):
        accept(store, number, note="again", author="ann")


def test_a_level_that_was_accepted_by_its_run_closes_the_incident(store, week):
    from steptime.judging.judgements import accept as accept_level

    usual_runs(week, [2])
    [found] = week({2: 1.06})
    told(store, [found])
    accept_level(store, found.cells[0].job_name, note="meant", accepted_by="ann", now=START + 30 * DAY_S)
    assert week({2: 1.06}) == []
    assert [one.state for one in incidents(store, closed_since=START)] == ["accepted"]


def test_a_note_stays_with_the_incident(store, week):
    usual_runs(week, [2])
    [found] = week({2: 1.06})
    assert found.id is not None
    comment(store, found.id, note="the switch is being replaced", author="ann", now=5.0)
    week({2: 1.06})
    again = find_incident(store, found.id)
    assert (again.note, again.noted_by, again.noted_at) == ("the switch is being replaced", "ann", 5.0)
    with pytest.raises(UserError, match="there is no incident 1000"):
        find_incident(store, 10**30)
    with pytest.raises(UserError, match="there is no incident 999"):
        comment(store, 999, note="x", author="ann")


def test_a_reader_sees_the_cells_of_the_dags_that_they_may_read(store, week):
    usual_runs(week, [2])
    [found] = week({2: 1.06})
    assert found.id is not None
    [cell] = found.cells
    assert cell.dag_id is not None
    for dags, seen in (((cell.dag_id,), 1), (("another",), 0)):
        assert len(incidents(Store(store.url, dags=dags))) == seen
    with pytest.raises(UserError, match="there is no incident"):
        find_incident(Store(store.url, dags=("another",)), found.id)


def test_the_command_lists_notes_and_accepts(store, week, monkeypatch):
    def steptime(*arguments):
        return CliRunner().invoke(app, ["incidents", *arguments], catch_exceptions=False).stdout

    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    usual_runs(week, [2])
    assert "There is no incident" in CliRunner().invoke(app, ["incidents"], catch_exceptions=False).stderr
    [found] = week({2: 1.06})

    assert "tiny·fp32·2 on local 5.9 % slower" in " ".join(steptime().split())
    assert steptime("note", str(found.id), "a bad switch").startswith("noted: tiny·fp32·2 on local")
    [listed] = json.loads(steptime("--format", "json"))["incidents"]
    assert (listed["state"], listed["note"], listed["cells"]) == ("open", "a bad switch", 1)
    assert listed["change_percent"] == pytest.approx(5.9, abs=0.05)
    [cell] = json.loads(steptime("show", str(found.id), "--format", "json"))["cells"]
    assert (cell["state"], cell["job"]) == ("suspected", found.cells[0].job_name)
    assert (cell["seconds"], cell["usual_s"]) == (1.06, pytest.approx(1.001, abs=0.001))
    assert cell["change_percent"] == pytest.approx(5.9, abs=0.05)
    assert steptime("accept", str(found.id), "--note", "meant").startswith("accepted: ")
    assert json.loads(steptime("--format", "json"))["incidents"] == []
    assert len(json.loads(steptime("--format", "json", "--since", "2001-09-09"))["incidents"]) == 1
    with pytest.raises(UserError, match="--note is empty"):
        steptime("accept", str(found.id), "--note", " ")


@pytest.fixture
def on_nodes(store, make_result):
    """Return a function that publishes a run of each cell on a node, a day after the last."""
    days = iter(range(1000))

    def run(levels, nodes, *, update=True):
        at = START + DAY_S * next(days)
        for gpus, level in levels.items():
            name = f"run-{gpus}-{at:.0f}"
            plain = {"gpus": gpus, "step_times": [level] * 20, "submitted_at": at + gpus}
            status = make_result(name, **plain).status.model_copy(update={"nodes": (nodes[gpus],)})
            (publish if update else stored.write)(store, make_result(name, **plain, status=status))
        return update_incidents(store, now=at + 3600) if update else []

    return run


def test_a_node_is_confirmed_by_usual_runs_elsewhere_and_fixed_by_usual_runs_on_it(store, on_nodes):
    cells = (1, 2, 4, 8, 16)
    elsewhere = {gpus: f"n{gpus}" for gpus in cells}
    for level in USUAL:
        on_nodes(dict.fromkeys(cells, level), elsewhere, update=False)
    usual, slow = dict.fromkeys(cells, 1.001), dict.fromkeys(cells, 1.06)
    there = dict.fromkeys(cells, "bad")

    on_nodes(slow, there)
    on_nodes(usual, elsewhere)
    on_nodes(usual, elsewhere)
    [named] = incidents(store)
    assert (named.kind, named.state, named.nodes) == ("node", "confirmed", ("bad",))
    assert named.title == "local: 5 cells 5.9 % slower since 2001-09-16, node bad"
    assert {cell.state for cell in named.cells} == {"slow on the node"}
    for _ in range(2):
        on_nodes(usual, elsewhere)
    assert [one.state for one in incidents(store)] == ["confirmed"], "no run since then used the node"

    on_nodes(usual, there)
    assert incidents(store) == []
    [closed] = incidents(store, closed_since=START)
    assert (closed.id, closed.state) == (named.id, "fixed")
    assert "5.9 % slower since 2001-09-16, node bad" in closed.title


def test_a_node_on_top_of_a_slower_cluster_has_an_incident_beside_that_of_the_cluster(
    store, on_nodes, monkeypatch
):
    cells = (1, 2, 4, 8, 16)
    elsewhere = {gpus: f"n{gpus}" for gpus in cells}
    for level in USUAL:
        on_nodes(dict.fromkeys(cells, level), elsewhere, update=False)
    slower = dict.fromkeys(cells, 1.05)
    for _ in range(3):
        on_nodes(slower, elsewhere)
    [of_all] = incidents(store)
    assert (of_all.kind, of_all.state) == ("cluster", "confirmed")

    on_nodes(dict.fromkeys(cells, 1.11), dict.fromkeys(cells, "bad"))
    on_nodes(slower, elsewhere)
    [both, of_node] = sorted(incidents(store), key=lambda one: one.kind)
    assert both.id == of_all.id
    assert (of_node.kind, of_node.state, of_node.nodes) == ("node", "confirmed", ("bad",))
    assert {cell.state for cell in of_node.cells} == {"slower on the node"}
    assert of_node.cells[0].seconds == pytest.approx(1.11, abs=0.01)
    assert "5 of the 5 also ran on other nodes since then, where they were faster" in of_node.evidence
    told = compare_since(store, START)
    assert {row["cause"] for row in told.rows} == {"whole cluster"}, "the first cause of the cells"
    assert any(remark.startswith("node bad: ") for remark in told.remarks)

    now = START + 20 * DAY_S
    monkeypatch.setattr(time, "time", lambda: now)
    assert of_node.id is not None
    silence(store, of_node.id, until=now + DAY_S, note="known", author="ada")
    assert compare_since(store, START).sentence.startswith("5 cells: 5 slower")
    on_nodes(slower, dict.fromkeys(cells, "bad"))
    assert [one.kind for one in incidents(store)] == ["cluster"], "the node is usual again"


def test_a_silenced_incident_counts_apart_and_comes_back_by_itself(store, week, monkeypatch):
    usual_runs(week, [2, 4])
    [opened] = week({2: 1.06, 4: 1.0})
    assert told(store, [opened]) == ["open"]
    assert opened.id is not None
    now = START + 8 * DAY_S
    monkeypatch.setattr(time, "time", lambda: now)

    with pytest.raises(UserError, match="2001-09-16 is past: silence the incident until a later time"):
        silence(store, opened.id, until=START + 7 * DAY_S, note="known", author="ada")
    silenced = silence(store, opened.id, until=START + 10 * DAY_S, note="ticket 4711", author="ada")
    assert (silenced.silence, silenced.note) == ("silenced until 2001-09-19 by ada", "ticket 4711")
    assert week({2: 1.06, 4: 1.0}) == []
    assert week({2: 1.06, 4: 1.0}) == [], "that it is confirmed is no news"
    found = compare_since(store, START)
    assert found.sentence.startswith("2 cells: 0 slower, 0 faster, 1 unchanged, 1 silenced until 2001-09-19")
    assert not found.confirmed_slower
    assert [row["silenced_until"] for row in found.rows] == [START + 10 * DAY_S, None]
    assert [one.silence for one in incidents(store)][-1] == "silenced until 2001-09-19 by ada"
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    of_silence = ("silenced_until", "silenced_by")
    assert [listed_by_command()[name] for name in of_silence] == [START + 10 * DAY_S, "ada"]

    now = START + 10 * DAY_S + 3600
    assert told(store, week({2: 1.06, 4: 1.0})) == ["confirmed"], "it is news once more"
    found = compare_since(store, START)
    assert found.sentence.startswith("2 cells: 1 slower, 0 faster, 1 unchanged")
    assert found.confirmed_slower
    assert [listed_by_command()[name] for name in of_silence] == [None, None]


def test_a_further_slowdown_on_top_of_a_silenced_one_counts(store, week):
    usual_runs(week, [2])
    for update in FIVE_UNSEEN:
        opened = week({2: 1.06}, update=update)
    [first] = incidents(store)
    assert first.id is not None
    assert opened == [first]
    silence(store, first.id, until=time.time() + DAY_S, note="known", author="ada")
    assert compare_since(store, START).sentence.startswith("1 cell: 0 slower")

    for _ in range(3):
        week({2: 1.13})

    assert compare_since(store, START).sentence.startswith("1 cell: 1 slower")
    assert {one.silence[:14] for one in incidents(store)} == {"", "silenced until"}
