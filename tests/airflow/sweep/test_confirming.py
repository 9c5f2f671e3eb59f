"""Confirmation runs: a sweep starts them by itself for suspected cells, once and within its budget."""

import re
import shutil

import pytest
from airflow.sdk.exceptions import AirflowFailException
from stored import publish
from sync_ledger import ledger

from steptime.airflow.assets import extra_of_run
from steptime.airflow.base import task_key
from steptime.airflow.sweep import confirming
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_since, finding_of_run
from steptime.judging.detection import Baseline
from steptime.recipes.models import Mode
from steptime.store.budgets import budget_balances
from steptime.store.database import close_engines
from steptime.store.run_queries import Store

from .conftest import SweepTask, of_sweep
from .test_approval_and_report import report

__all__ = ["report"]  # a fixture

CELL = "llama3.1·tiny·fp32·2"
"""The cell of two ranks."""
DAY_S = 86_400.0
USUAL_S, SLOW_S = 0.2, 0.24
USUAL_WEEKS = 8
PLANNED = (1 + 2) * 600 / 3600
"""GPU-hours of the sweep's cells, of one and of two ranks."""
CONFIRMATIONS = 2 * 2 * 600 / 3600
"""GPU-hours of two confirmation runs of two ranks."""


class Scene:
    """A store with eight usual weekly runs of a cell of two ranks and of one, and a sweep that has run."""

    def __init__(self, make_result, task, make_context):
        self.make_result, self.task, self.make_context = make_result, task, make_context
        self.runs = USUAL_WEEKS

    def measure(self, step_time_s, cell=None, *, jitter=0.002, **options):
        """Publish a run of two ranks or `gpus`, of this sweep if `cell` is given, a day later each."""
        self.runs += 1
        result = measured(self.make_result, self.runs, step_time_s, jitter, **options)
        publish(Store(), result if cell is None else of_sweep(result, cell))

    def confirm(self, checked):
        """Return the cells that the task `confirm` plans."""
        cells = [] if checked is None else checked["cells"]
        staged = {"runs": [{"run": cell["label"], "staged": {"for": cell["label"]}} for cell in cells]}
        self.planned = self.task("confirm", checked=checked, staged=staged).execute(self.context())
        return list(self.planned["cells"])

    def context(self):
        return self.make_context() | {"ti": SweepTask(map_index=-1)}


def measured(make_result, number, step_time_s, jitter=0.002, **options):
    times = [step_time_s * (1 + jitter * (number % 3))] * 20
    at = 1.7e9 + number * DAY_S
    name = f"{'one' if options.get('gpus') == 1 else 'job'}-{number:02}"
    return make_result(name, dag_run_id="by-hand", step_times=times, submitted_at=at, **options)


@pytest.fixture(scope="module")
def usual_weeks(tmp_path_factory, make_result):
    """Return the file of a store with the usual weeks, made once for all tests."""
    path = tmp_path_factory.mktemp("usual-weeks") / "steptime.db"
    store = Store(f"sqlite:///{path}")
    for number in range(1, USUAL_WEEKS + 1):
        publish(store, measured(make_result, number, USUAL_S))
        publish(store, measured(make_result, number, USUAL_S, gpus=1))
    close_engines()  # flushes the store into its file
    return path


@pytest.fixture
def scene(home, usual_weeks, make_result, task, make_context):
    (home / "store").mkdir(parents=True)
    shutil.copy(usual_weeks, home / "store")
    return Scene(make_result, task, make_context)


def labels(cells):
    return [cell["label"] for cell in cells]


@pytest.mark.long
def test_a_suspected_cell_is_run_twice_again(check, scene):
    scene.measure(SLOW_S, CELL)
    checked = check()

    planned = scene.confirm(checked)

    cell = checked["cells"][1]
    assert labels(planned) == [f"{cell['label']}·confirmation 1", f"{cell['label']}·confirmation 2"]
    assert [again["repeat"] for again in planned] == [2, 3]
    stored = {name: run.options for name, run in ledger.planned_runs(task_key(scene.context())).items()}
    assert all(stored[name] == stored[cell["label"]] for name in labels(planned))
    assert [each["run"] for each in scene.planned["runs"]] == labels(planned)
    assert [again["staged"] for again in scene.planned["runs"]] == [{"for": cell["label"]}] * 2
    assert scene.planned["checkpoint_pairs"] == []


@pytest.mark.long
def test_what_may_be_chance_among_so_many_cells_is_run_again_too(check, scene):
    """A change that may be chance among so many cells is not reported, but confirmation runs decide it."""
    usual = (0.2, 0.206, 0.196, 0.203, 0.198, 0.201, 0.205)
    before = Baseline(usual)
    slow = before.mean * (1 + 1.01 * before.bound())
    for seconds in (*usual, slow):
        cell = CELL if seconds == slow else None
        for size in "abcdef":
            scene.measure(USUAL_S, cell, size=size, jitter=0)
        scene.measure(seconds, cell, size="slow", jitter=0)
    store = Store()
    row = store.run(f"job-{scene.runs:02}")
    week = compare_since(store, row["submitted_at"] - WEEK_S)
    extra = extra_of_run(row, finding_of_run(store, row))

    assert week.sentence == "7 cells: 0 slower, 0 faster, 7 unchanged; 1 waits for confirmation runs"
    assert (extra["verdict"], extra["series_state"]) == ("unchanged", "suspected")
    not_judged = extra_of_run(row, None)
    assert not_judged.keys() == extra.keys()
    assert (not_judged["verdict"], not_judged["changes"]) == (None, [])
    assert len(scene.confirm(check())) == 2


@pytest.mark.parametrize(
    ("room", "most", "repeats"), [(0.2, 4, [2, 3]), (0.6, 4, [2, 3, 4, 5]), (0.6, 3, [2, 3])]
)
@pytest.mark.long
def test_of_two_suspected_cells_the_one_that_changed_most_is_run_again_first(
    check, scene, monkeypatch, room, most, repeats
):
    monkeypatch.setattr(confirming, "MOST_CELLS", most)
    scene.measure(SLOW_S, CELL)
    scene.measure(2 * SLOW_S, CELL[:-1] + "1", gpus=1)
    planned = scene.confirm(check(gpu_hours_max=PLANNED + room))
    assert [cell["repeat"] for cell in planned] == repeats
    assert labels(planned)[:2] == [f"llama3.1·tiny·fp32·1·confirmation {number}" for number in (1, 2)]


def test_nothing_is_run_again_without_a_suspicion_of_this_sweep(check, scene, capsys):
    scene.measure(USUAL_S, CELL)
    assert scene.confirm(check()) == [], "as usual"
    assert scene.confirm(None) == [], "refused"
    rejected = scene.task("confirm", checked=check(), staged=None)
    assert rejected.execute(scene.context()) == {"runs": [], "checkpoint_pairs": [], "cells": []}
    assert "no confirmation runs to add" in capsys.readouterr().out


@pytest.mark.long
def test_what_is_planned_once_is_neither_doubled_nor_forgotten(check, scene, staged):
    scene.measure(SLOW_S, CELL)
    checked = check(repeats=2)
    planned = scene.confirm(checked)

    assert [cell["repeat"] for cell in planned] == [3, 4]
    assert scene.confirm(checked) == planned, "retried"
    for index, again in enumerate(scene.planned["runs"]):
        context = scene.context()
        context["ti"] = SweepTask(task_id="confirmation.performance.submit", map_index=index)
        rendered = {"run": again["run"], "staged": staged.model_dump()}
        scene.task("confirmation.performance.submit", **rendered).execute(context)
    assert scene.confirm(checked) == planned, "cleared while they run"
    for cell in labels(planned):
        scene.measure(SLOW_S, cell)
    assert scene.confirm(checked) == planned, "cleared, once it is decided"


def test_a_repeat_that_ran_counts_as_fresh(check, scene):
    scene.measure(SLOW_S, CELL)
    scene.measure(SLOW_S, f"{CELL}·repeat 2")
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2}], repeats=2)

    assert [cell["repeat"] for cell in scene.confirm(checked)] == [3]


@pytest.mark.long
def test_only_what_is_suspected_is_run(check, scene):
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2, "checkpoint": True}])
    scene.measure(SLOW_S, CELL)

    planned = scene.confirm(checked)

    assert checked["cells"][0]["jobs"] == 3
    assert [cell["jobs"] for cell in planned] == [1, 1], "not its checkpoint"


@pytest.mark.long
def test_a_checkpoint_that_got_slower_is_saved_again(check, scene):
    measurement = scene.make_result(mode=Mode.CHECKPOINT_SAVE).measurement
    for week, seconds in enumerate([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.5]):
        scene.measure(
            USUAL_S,
            CELL if week == 7 else None,
            mode=Mode.CHECKPOINT_SAVE,
            measurement=measurement.model_copy(update={"checkpoint_blocked_s": seconds}),
        )
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2, "checkpoint": True}])

    assert [cell["jobs"] for cell in scene.confirm(checked)] == [3, 3]

    scene.measure(SLOW_S)  # not of this sweep, so that one further run would decide this
    scene.measure(SLOW_S, CELL)
    assert [cell["jobs"] for cell in scene.confirm(checked)] == [3, 3], "with what else is suspected"


def test_a_sweep_may_want_no_confirmation_runs(check, scene, capsys):
    scene.measure(SLOW_S, CELL)

    assert scene.confirm(check(confirm=False)) == []
    assert (
        "no cell is run again to confirm a change: the sweep's file has 'confirm: false'"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        (
            {"gpu_hours_max": PLANNED + CONFIRMATIONS - 0.1},
            2,
        ),  # the cell of two ranks took less than its limit
        ({"gpu_hours_max": PLANNED}, 0),
        ({"gpu_hours_max": 10, "approval_above_gpu_hours": PLANNED}, 0),  # nobody was asked to approve
        ({"gpu_hours_max": 10, "approval_above_gpu_hours": PLANNED - 0.1}, 2),  # somebody approved
    ],
)
def test_confirmation_runs_take_no_more_than_the_sweep_has_left(check, scene, fields, number, capsys):
    scene.measure(SLOW_S, CELL)

    assert len(scene.confirm(check(**fields))) == number
    refused = "no confirmation run is started: they may take 0.67 GPU-hours, and the sweep has 0.31 left"
    assert (refused in capsys.readouterr().out) == (number == 0)


def test_the_clusters_budget_may_refuse_them_and_the_sweep_goes_on(check, scene, budget, capsys):
    scene.measure(SLOW_S, CELL)
    budget(PLANNED + 0.1)
    checked = check()

    assert scene.confirm(checked) == []
    assert re.search(r"no confirmation run is started: .*this plan may take 0\.67", capsys.readouterr().out)

    budget(10)
    assert len(scene.confirm(checked)) == 2, "cleared, once there is room"
    [balance] = budget_balances(["local"])
    assert balance.committed_gpu_hours == pytest.approx(CONFIRMATIONS)


@pytest.mark.long
def test_the_report_leads_with_what_got_slower_and_has_the_confirmation_runs_too(
    check, scene, report, capsys
):
    """A cell has one verdict, however many runs decided it; saving a checkpoint has a verdict of its own."""
    saved = scene.make_result(mode=Mode.CHECKPOINT_SAVE).measurement
    save = {
        "mode": Mode.CHECKPOINT_SAVE,
        "measurement": saved.model_copy(update={"checkpoint_blocked_s": 0.5}),
    }
    scene.measure(SLOW_S, CELL)
    scene.measure(USUAL_S, CELL, **save)
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2}])
    for cell in labels(scene.confirm(checked)):
        scene.measure(SLOW_S, cell)

    [event] = report(checked=checked, confirmed=scene.planned)

    sentence = (
        "2 cells: 1 slower, 0 faster, 0 unchanged, 1 with insufficient history; worst tiny·fp32·2 +20.0 %, "
        "confirmed"
    )
    told = capsys.readouterr().out
    assert re.search(r"llama3\.1·tiny·fp32·2·confirmation 2 +valid .* job-12", told)
    assert (
        told.index(sentence) < told.index("tiny·fp32·2: slower by 20.0 % since ") < told.index("results of ")
    )
    assert event.extra["sentence"] == sentence
    slower, first_save = event.extra["cells"]
    assert (slower["verdict"], slower["series_state"], slower["job_name"]) == (
        "slower",
        "confirmed",
        "job-12",
    )
    assert slower["change_percent"] == pytest.approx(20, abs=0.1)
    assert slower["minimum_detectable_change_percent"] == pytest.approx(1.8, abs=0.1)
    assert (first_save["mode"], first_save["verdict"]) == ("checkpoint_save", "insufficient history")
    assert first_save["minimum_detectable_change_percent"] is None


def test_the_report_names_what_is_missing_behind_what_was_found(check, scene, report, capsys):
    scene.measure(USUAL_S, CELL)

    with pytest.raises(AirflowFailException, match=r"1 of 2 runs have no valid result: .*·1"):
        report()

    assert (
        "1 cell: 0 slower, 0 faster, 1 unchanged; 1 of 2 runs without a valid result: llama3.1·tiny·fp32·1"
        in capsys.readouterr().out
    )
