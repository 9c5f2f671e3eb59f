"""What the tasks of a sweep and of a trial log, return and store, from the first to the report.

The tales are kept in tests/golden/tasks. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/airflow/sweep/test_sweep_tales.py
"""

import asyncio
import json

import pytest
import stored
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from kept import NAMES_OF_JOBS, assert_kept, masked

from steptime.airflow.base import task_key
from steptime.recipes.models import Mode
from steptime.store.ledger import Ledger
from steptime.store.run_queries import Store
from tests.airflow.conftest import logged

from .conftest import SweepTask, of_sweep
from .test_confirming import scene, usual_weeks
from .test_trial_rounds import FIRST, LAST, states, trial

__all__ = ["scene", "states", "trial", "usual_weeks"]  # fixtures
pytestmark = pytest.mark.long

MASKED = {
    **NAMES_OF_JOBS,
    r"20\d\d-\d\d-\d\d": "DATE",
    r"/\S*/(?=home/)": "/",
}


class Tale:
    def __init__(self):
        self.parts = []

    def tell(self, what, act):
        """Add what a task logs, and what it returns or raises."""
        came = []

        def acting():
            try:
                came.append(act())
            except (AirflowFailException, AirflowSkipException, TaskDeferred) as error:
                trigger = getattr(error, "trigger", None)
                came.append(f"{type(error).__name__}: {trigger.serialize()[1] if trigger else error}")

        lines = [line for line in logged(acting) if not line.startswith("its script")]
        self.parts.append("\n".join([f"== {what}", *lines, f"-> {came[0]}"]))
        return came[0]

    def told(self):
        return masked("\n\n".join(self.parts) + "\n", MASKED)


@pytest.fixture(autouse=True)
def notified(monkeypatch):
    """Return a list that gets the events and sentences with which people would be notified."""
    told = []
    for name in ("operators", "trial_operators"):
        monkeypatch.setattr(
            f"steptime.airflow.sweep.{name}.notify",
            lambda event, sentence, *_: told.append(f"{event}: {sentence}"),
        )
    return told


def reserved(context):
    """Return what the DAG run's plan in the ledger has: each run, with its share of the budget."""
    plans = asyncio.run(Ledger(print).planned_runs(task_key(context)))
    return "\n".join(
        f"{name}: reserves {plan.reserves}, sweep {plan.sweep}" for name, plan in sorted(plans.items())
    )


def test_the_tasks_of_a_sweep(
    check,
    scene,
    task,
    staged,
    notified,
    monkeypatch,
):
    tale = Tale()
    staged_for = []

    def stage_for(run, _):
        staged_for.append(f"{run.name} on {run.cluster}")
        return staged

    monkeypatch.setattr("steptime.airflow.sweep.operators.stage_for", stage_for)
    checked = None

    def do_check():
        nonlocal checked
        runs = [
            {"workload": "llama3.1", "gpus": [1, 2]},
            {"workload": "llama3.1", "gpus": 4, "checkpoint": True},
        ]
        checked = check(runs=runs, approval_above_gpu_hours=None)
        return json.dumps(
            {
                **checked,
                "cells": [
                    {"label": cell["label"], "jobs": cell["jobs"], "gpu_hours_max": cell["gpu_hours_max"]}
                    for cell in checked["cells"]
                ],
            }
        )

    tale.tell("check_sweep", do_check)
    tale.tell("the plan", lambda: reserved(scene.context()))
    tale.tell("approve", lambda: task("approve", checked=checked).execute(scene.context()))

    def do_stage():
        inputs = task("stage", checked=checked).execute(scene.context())
        short = {
            name: [{key: item[key] for key in item if key != "staged"} for item in items]
            for name, items in inputs.items()
        }
        return f"{short}, staged for {staged_for}"

    tale.tell("stage", do_stage)
    cell_1, cell_2, cell_4 = (cell["label"] for cell in checked["cells"])
    nothing_yet = tale.tell("confirm, before anything ran", lambda: str(scene.confirm(checked)))
    assert nothing_yet == "[]"
    scene.measure(0.24, cell_2)
    scene.measure(0.24, cell_1, gpus=1)

    def do_confirm():
        return "\n".join(
            f"{cell['label']}, repeat {cell['repeat']}, {cell['jobs']} jobs, at most {cell['gpu_hours_max']}"
            for cell in scene.confirm(checked)
        )

    tale.tell("confirm, of a slower cell", do_confirm)
    tale.tell("the plan with confirmations", lambda: reserved(scene.context()))

    def report(**xcoms):
        context = scene.context() | {
            "ti": SweepTask(
                task_id="report",
                map_index=-1,
                xcoms={("approve", None, key): value for key, value in xcoms.items()},
            ),
            "outlet_events": OutletEventAccessors(),
        }
        operator = task("report", checked=checked, confirmed=scene.planned)
        operator.execute(context)
        return [context["outlet_events"][asset].extra for asset in operator.outlets]

    tale.tell("report, with cells that have no result", report)
    for at, (mode, steps) in enumerate(
        ((Mode.PERFORMANCE, 20), (Mode.CHECKPOINT_SAVE, 20), (Mode.CHECKPOINT_LOAD, 1))
    ):
        result = scene.make_result(
            f"of {mode}", gpus=4, mode=mode, step_times=[0.5] * steps, submitted_at=1.71e9 + at
        )
        stored.write(Store(), of_sweep(result, cell_4))
    for cell in scene.planned["cells"]:
        scene.measure(0.24, cell["label"], gpus=1 if cell["label"].startswith(cell_1) else 2)
    tale.tell("report", report)
    tale.tell("report, of a rejected one", lambda: report(rejected_by="ada"))
    checked = None
    tale.tell("report, of a refused one", report)
    tale.parts.append("\n".join(["== people were told", *notified]))
    assert_kept("tasks/sweep.txt", tale.told())


def test_the_tasks_of_a_trial(trial, states, make_result, notified):
    tale = Tale()
    made = None

    def do_check():
        nonlocal made
        made = trial(same_nodes=True, rounds_max=5)
        rules = {name: made.checked[name] for name in ("trial", "gpu_hours_max") if name in made.checked}
        return f"{json.dumps(rules)}\n{made.labels}"

    tale.tell("check_trial", do_check)
    tale.tell("the plan", lambda: reserved(made.context("report", -1)))
    tale.tell("a run of the third round, before any", lambda: made.submit(4))

    def report():
        operator = made.dag.get_task("report").prepare_for_execution()
        operator.checked = made.checked
        operator.execute(made.context("report", -1))

    tale.tell("report, before any", report)
    for index in range(len(made.labels)):
        states |= {f"{where}_{before}": "success" for before in range(index) for where in (FIRST, LAST)}
        time = 0.6 if "slow" in made.labels[index] else 0.4
        came = tale.tell(
            f"run {index}, {made.labels[index]}",
            lambda index=index, time=time: made.publish(make_result, index, time),
        )
        if str(came).startswith("AirflowSkip"):
            states |= {f"{where}_{index}": "skipped" for where in (FIRST, LAST)}
    tale.tell("report", report)
    tale.parts.append("\n".join(["== people were told", *notified]))
    assert_kept("tasks/trial.txt", tale.told())
