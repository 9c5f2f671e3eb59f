"""Stored judgements: written with the run and in any order, they equal those of the whole history."""

import json
import random

import pytest
import sqlalchemy
import stored
from kept import assert_kept
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.base import JobState, JobStatus
from steptime.errors import UserError
from steptime.judging import judgements
from steptime.judging.comparison import compare_since, compare_sweep
from steptime.judging.incident_updates import update_incidents
from steptime.judging.incidents import mark_notified
from steptime.judging.judgements import accept, judge_all, run_writer
from steptime.judging.placement import Placement
from steptime.recipes.node_lists import fold_nodes
from steptime.store import schema
from steptime.store.database import read_connection, write_transaction
from steptime.store.run_models import Check, Verdict
from steptime.wording import date

LEVELS = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 1.001, 1.06, 1.061, 1.058]
"""Step times in seconds: seven usual runs, a slow one, and the two that confirm it."""


@pytest.fixture
def runs(make_result):
    """Return a series with a slowdown, whose slow runs have another variable."""
    return [
        make_result(
            f"run-{number}",
            step_times=[level] * 20,
            submitted_at=1e9 + number,
            environment={"NCCL_ALGO": "Ring"} if level > 1.05 else {},
        )
        for number, level in enumerate(LEVELS)
    ]


def kept_judgements(store):
    """Return the judgements against the history, by job."""
    with read_connection(store.url) as connection:
        query = sqlalchemy.text(
            "SELECT runs.job_name, judgements.* FROM judgements "
            "JOIN runs ON runs.id = run_id WHERE kind = 'history'"
        )
        rows = connection.execute(query).mappings()
        return {row["job_name"]: dict(row) for row in rows}


def states(store):
    return [row["series_state"] for _, row in sorted(kept_judgements(store).items())]


def test_a_run_is_judged_as_it_is_published_and_keeps_what_that_rests_on(store, runs):
    for result in runs:
        publish(store, result)

    assert states(store) == [*["insufficient history"] * 6, "unchanged", *["suspected"] * 2, "confirmed"]
    last = kept_judgements(store)["run-9"]
    assert (last["metric"], last["direction"], last["baseline_runs"]) == ("step_time_s", "slower", 7)
    assert last["ratio"] == pytest.approx(1.0595 / (sum(LEVELS[:7]) / 7))
    assert 1.015 <= last["limit_ratio"] < last["ratio"]
    assert last["baseline_median_s"] == 1.001
    assert "NCCL_ALGO none" in last["changes"]
    for name in ("run-0", "run-6", "run-8"):
        assert name in last["rests_on"]


@pytest.mark.long
def test_every_number_of_stored_judgements_is_the_reviewed_one(store, make_result):
    for number, level in enumerate((1.0, 1.03, 0.98, 1.02, 0.97, 1.01, 1.04, 1.12, 1.13, 1.11)):
        publish(store, make_result(f"run-{number}", step_times=[level] * 20, submitted_at=1e9 + number))
    told = [
        " ".join(f"{name} {value:.5g}" for name, value in row.items() if isinstance(value, float)) + "\n"
        for _, row in sorted(kept_judgements(store).items())
    ]
    assert_kept("judging/stored.txt", "".join(told))


def test_runs_that_end_in_another_order_are_judged_as_they_were_submitted(store, runs):
    random.Random(0).shuffle(runs)  # noqa: S311 - an order, no secret

    for result in runs:
        publish(store, result)

    assert states(store)[-3:] == ["suspected", "suspected", "confirmed"]
    kept = kept_judgements(store)
    assert judge_all(store) == 1
    assert kept_judgements(store) == kept, "as if all were judged at once"


def test_stored_judgements_equal_a_fresh_judgement(store, runs):
    for result in runs:
        publish(store, result)
    told = compare_since(store, 0)
    assert told.sentence.startswith(
        "1 cell: 1 slower, 0 faster, 0 unchanged; worst tiny·fp32·2 +5.9 %, confirmed"
    )

    (row,) = told.rows
    assert (row["baseline_runs"], row["judged_runs"], row["judged_on"]) == (
        *(7, 2),
        "median of steps 0 to 19",
    )
    assert row["baseline_s"] == pytest.approx(sum(LEVELS[:7]) / 7)
    assert row["judged_s"] == pytest.approx(1.0595)
    assert row["p_value"] == row["q_value"] < 0.001

    with write_transaction(store.url) as connection:
        connection.execute(schema.judgements.delete())

    assert compare_since(store, 0).rows == told.rows


@pytest.mark.long
@pytest.mark.parametrize("rejected", [True, False])
def test_a_run_that_is_rejected_or_read_anew_leaves_no_judgement(store, runs, rejected):
    for result in runs:
        publish(store, result)
    bad = Verdict(checks=(Check(name="x", passed=False, message="No."),))

    if rejected:
        publish(store, runs[8].model_copy(update={"verdict": bad}))
    else:
        longer = runs[8].log.model_copy(update={"bytes_read": 9000})
        run_writer(store).store_measurement(runs[8].model_copy(update={"log": longer}))

    assert "run-8" not in kept_judgements(store)
    assert kept_judgements(store)["run-9"]["series_state"] == "suspected", (
        "of two confirmation runs one is gone"
    )


def test_nothing_is_stored_where_judging_fails(store, runs, monkeypatch):
    def fails(*_):
        raise RuntimeError("no judge")

    monkeypatch.setattr(judgements, "judge_runs", fails)
    with pytest.raises(RuntimeError):
        publish(store, runs[0])
    assert store.results() == []


def test_runs_that_were_not_judged_are_judged_by_a_command(store, runs, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    for result in runs:
        stored.write(store, result)  # does not judge
    told = compare_since(store, 0).rows
    assert not kept_judgements(store)

    shown = CliRunner().invoke(app, ["results", "judge"], catch_exceptions=False)

    assert shown.stdout == "1 series judged\n"
    assert states(store)[-1] == "confirmed"
    assert compare_since(store, 0).rows == told


def test_a_sweep_is_compared_by_the_cells_of_its_newest_run(store, make_result):
    for number, (dag_run, gpus) in enumerate((("1", 2), ("1", 4), ("2", 2), ("2", 1))):
        provenance = make_result("x", dag_run_id=dag_run).submitted.provenance.model_copy(
            update={"sweep": "gone"}
        )
        publish(
            store, make_result(f"run-{number}", gpus=gpus, provenance=provenance, submitted_at=1e9 + number)
        )

    found = compare_sweep(store, "gone")

    assert sorted(found.names) == ["tiny·fp32·1", "tiny·fp32·2"]
    assert found.took.startswith("2 cells · 2 runs · "), "of that run alone"


@pytest.fixture
def small_step(make_result):
    """Return twenty usual runs and eight that are 2 % slower, with a new variable; none stands out alone."""
    return [
        make_result(
            f"run-{number:02}",
            step_times=[(1.02 if number >= 20 else 1.0) + 0.011 * (-1) ** number] * 20,
            submitted_at=1e9 + 7 * 86_400 * number,
            environment={"NCCL_ALGO": "Ring"} if number >= 20 else {},
        )
        for number in range(28)
    ]


@pytest.mark.long
def test_a_small_step_of_weeks_ago_is_confirmed_with_its_date_and_what_changed_then(store, small_step):
    raised = []
    for result in small_step:
        publish(store, result)
        for one in update_incidents(store, now=result.job.submitted_at + 60):
            mark_notified(store, one)
            raised.append(one)

    [found] = compare_since(store, 0).findings
    assert (found.verdict, found.series_state.state) == ("slower", "confirmed")
    assert found.onset is not None
    assert found.onset.job_name == "run-20"
    assert found.onset.earliest <= found.since == found.onset.at <= found.onset.latest
    assert found.judgement.changes == ("NCCL_ALGO none → Ring",)
    assert found.drift is None, "a step, and no drift"
    [row] = compare_since(store, 0).rows
    assert row["since"] == 1e9 + 20 * 7 * 86_400
    [remark] = compare_since(store, 0).remarks
    since = f"since {date(1e9 + 20 * 7 * 86_400)}"
    assert since in remark
    assert remark.endswith("changed then: NCCL_ALGO none → Ring")
    [told] = raised
    assert told.state == "confirmed", "once, though each run confirms it"
    assert since in told.title
    assert accept(store, "run-27", note="meant", accepted_by="somebody") == "run-20"


@pytest.mark.long
def test_a_slowdown_after_a_lucky_run_is_told_as_that_and_nothing_is_dismissed(store, make_result):
    told = []
    for number, level in enumerate([*LEVELS[:7], 0.94, 1.06, 1.06, 1.06]):
        result = make_result(f"run-{number:02}", step_times=[level] * 20, submitted_at=1e9 + number)
        publish(store, result)
        for one in update_incidents(store, now=1e9 + number + 1):
            mark_notified(store, one)
            told.append((one.direction, one.state))

    assert told == [("slower", "open"), ("slower", "confirmed")]


@pytest.mark.long
def test_an_accepted_level_is_the_new_baseline(store, runs, make_result):
    for result in runs:
        publish(store, result)

    assert accept(store, "run-9", note="meant", accepted_by="somebody", now=1e9) == "run-7", (
        "the first slow one"
    )

    assert states(store)[7:] == ["insufficient history"] * 3
    later = [1.059, 1.062, 1.06, 1.061, 1.12]
    for number, level in enumerate(later):
        publish(store, make_result(f"seen-{number}", step_times=[level] * 20, submitted_at=2e9 + number))
    assert states(store)[-2:] == ["unchanged", "suspected"], "judged by six runs of the new level"
    kept = kept_judgements(store)
    judge_all(store)
    assert kept_judgements(store) == kept
    with read_connection(store.url) as connection:
        (row,) = connection.execute(sqlalchemy.text("SELECT * FROM accepted_levels")).mappings()
    assert (row["note"], row["accepted_by"], row["accepted_at"]) == ("meant", "somebody", 1e9)


@pytest.mark.long
def test_a_level_is_accepted_by_a_command_with_a_note(store, runs, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    for result in runs:
        publish(store, result)

    shown = CliRunner().invoke(app, ["results", "accept", "run-8", "--note", "meant"], catch_exceptions=False)

    assert shown.stdout == "accepted: the new baseline begins with run-7\n"
    assert compare_since(store, 0).sentence.endswith("0 unchanged, 1 with insufficient history")
    with pytest.raises(UserError, match="--note is empty"):
        CliRunner().invoke(app, ["results", "accept", "run-8", "--note", " "], catch_exceptions=False)


@pytest.mark.long
def test_a_run_is_told_as_its_series_stood_after_it(store, runs):
    for result in runs:
        publish(store, result)
    publish(store, runs[0].model_copy(update={}))  # publishing it again changes nothing

    def told(job_name):
        judged = judgements.read_judgement(store, store.run(job_name))
        assert judged is not None
        return (
            judged.run.job_name,
            judged.series_state.state,
            judged.series_state.direction,
            len(judged.changes),
        )

    assert told("run-0") == ("run-0", "insufficient history", None, 0)
    assert told("run-7") == ("run-7", "suspected", "slower", 1)
    assert told("run-9") == ("run-9", "confirmed", "slower", 1)


def on_nodes(make_result, number, level, *nodes):
    at = 1e9 + number
    ended = JobStatus(state=JobState.SUCCEEDED, started_at=at, ended_at=at + 40, nodes=nodes)
    return make_result(f"run-{number}", step_times=[level] * 20, submitted_at=at, status=ended)


@pytest.mark.parametrize(("nodes", "named"), [("b[1-8]", " (b[1-8])"), ("b[1-9]", "")])
def test_many_nodes_are_not_named(nodes, named):
    assert Placement("a1", (nodes,)).words == f" on other nodes{named}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("confirmations", "level", "words"),
    [
        ((["b2", "b3"], ["b3", "b4"]), 1.06, " on other nodes (b[2-4])"),
        ((["b1"], ["b1"]), 1.06, " on another node (b1)"),
        ((["a1"], ["a1"]), 1.06, " on the same node (a1)"),
        ((["a1", "a2"], ["a2"]), 1.06, " on the same nodes (a[1-2])"),
        ((["a1"], ["b1"]), 1.06, " partly on the same nodes (a1,b1)"),
        ((["b1"], ["b2"]), 1.0, " on other nodes (b[1-2])"),
        ((["b1"], []), 1.06, ""),
    ],
)
def test_what_confirmation_runs_decided_says_on_which_nodes(
    store,
    make_result,
    confirmations,
    level,
    words,
):
    for number, usual in enumerate(LEVELS[:7]):
        publish(store, on_nodes(make_result, number, usual, "a1"))
    publish(store, on_nodes(make_result, 7, 1.06, "a1", "a2"))
    for number, nodes in enumerate(confirmations, start=8):
        publish(store, on_nodes(make_result, number, level, *nodes))

    placed = json.loads(kept_judgements(store)["run-9"]["rests_on"])["nodes"]
    assert placed == {"suspected": "a[1-2]", "confirmations": [fold_nodes(some) for some in confirmations]}
    assert "nodes" not in json.loads(kept_judgements(store)["run-6"]["rests_on"]), "usual"
    judged = judgements.read_judgement(store, store.run("run-9"))
    assert judged is not None
    assert judged.placement is not None
    assert judged.placement.words == words
    [row] = compare_since(store, 0).rows
    assert (row["suspected_on"], row["confirmation_on"]) == (
        "a[1-2]",
        fold_nodes(confirmations[0] + confirmations[1]),
    )

    publish(store, on_nodes(make_result, 10, 1.06, "c1"))
    [later] = compare_since(store, 0).findings
    if level > 1.05:
        assert later.judgement.placement == judged.placement, "the same runs have confirmed it"
