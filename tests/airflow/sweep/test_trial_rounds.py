"""The rounds of a trial: a run waits for the rounds before it, and is skipped if its variant has left."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import TaskDeferred
from stored import publish
from sync_ledger import ledger

from steptime.airflow.base import task_key
from steptime.airflow.sweep import trial_operators
from steptime.airflow.sweep.trial_dag import trial_dag
from steptime.airflow.versions import AirflowFailException, AirflowSkipException
from steptime.judging.trial_answers import RoundRun
from steptime.store.run_queries import Store
from tests.airflow.conftest import logged

from .conftest import SweepTask

VARIANTS = {"default": {}, "slow": {"environment": {"STAND_IN_PRINTED_S": "0.6"}}}
FIRST, LAST = "performance.submit", "performance.publish"


@pytest.fixture
def states(monkeypatch):
    """The states of the runs' last tasks, as Airflow tells them; tests change them."""
    told = {}
    monkeypatch.setattr(trial_operators, "_states", lambda *_: dict(told))
    monkeypatch.setattr(trial_operators, "_ASKED_EVERY_S", 0.01)
    return told


class Trial:
    """A trial in its DAG run, whose tasks are executed one by one."""

    def __init__(self, make_context, staged):
        self.dag = trial_dag("steptime_trial")
        self.make_context, self.staged = make_context, staged
        context = self.context("check_trial", -1)
        context["params"] = {"trial": "race"}
        self.checked = self.dag.get_task("check_trial").prepare_for_execution().execute(context)
        self.labels = [cell["label"] for cell in self.checked["cells"]]

    def context(self, task_id, map_index):
        ti = SweepTask(task_id=task_id, dag_id="steptime_trial", map_index=map_index)
        return self.make_context() | {"ti": ti}

    def submit(self, index):
        task = self.dag.get_task("performance.submit").prepare_for_execution()
        task.run, task.staged = self.labels[index], self.staged.model_dump(mode="json")
        return task.execute(self.context("performance.submit", index))

    def publish(self, make_result, index, step_time_s):
        """Submit a run, and store it as if its job had ended."""
        name = self.submit(index)["job"]
        submitted = ledger.find(name).submitted
        assert submitted is not None
        assert submitted.run.trial is not None
        result = make_result(name, step_times=[step_time_s] * 20, submitted=submitted)
        publish(Store(), result)


@pytest.fixture
def trial(home, make_context, staged, states):
    """Return a function that plans a trial with these fields."""
    folder = Path(home).parent / "config" / "trials"
    folder.unlink()
    folder.mkdir()

    def make(**fields):
        content = {"name": "race", "run": {"workload": "llama3.1", "gpus": 1}, "variants": VARIANTS}
        content |= {"gpu_hours_max": 10, "rounds_max": 4, "same_nodes": False, **fields}
        (folder / "race.yaml").write_text(json.dumps(content))
        return Trial(make_context, staged)

    return make


def test_a_round_waits_for_the_rounds_before_it(trial, states):
    made = trial()
    assert made.labels[:2] != made.labels[2:4]
    first = {made.submit(index)["job"] for index in (0, 1)}
    assert len(first) == 2
    states |= {f"{LAST}_0": "success", f"{LAST}_1": "running", f"{LAST}_2": None}
    with pytest.raises(TaskDeferred) as deferred:
        made.submit(2)
    path, arguments = deferred.value.trigger.serialize()
    assert path.endswith("RoundTrigger")
    assert arguments["count"] == 2
    assert ledger.jobs_of_task(task_key(made.context("performance.submit", 2))) == []

    async def fires():
        trigger = trial_operators.RoundTrigger(**arguments)
        waiting = asyncio.create_task(trigger.event())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        states[f"{LAST}_1"] = "upstream_failed"
        return [await asyncio.wait_for(waiting, 10)]

    assert asyncio.run(fires())
    assert made.submit(2)["job"] not in first


def test_a_run_is_on_the_nodes_of_the_first_run_of_its_round_of_which_they_are_known():
    known = ((1, 0, ()), (1, 1, ("n1",)), (1, 2, ("n2",)), (2, 0, ("n3",)), (1, 4, ("n4",)))
    runs = [RoundRun("x", number, index, None, None, 0.0, nodes) for number, index, nodes in known]
    found = [
        trial_operators._nodes_of_round(runs, SimpleNamespace(round=number, index=index))
        for number, index in ((1, 3), (1, 1), (2, 3), (3, 1))
    ]
    assert found == [("n1",), (), ("n3",), ()]


def test_on_one_machine_the_variants_of_a_round_follow_one_another(trial, states):
    made = trial(same_nodes=True)
    made.submit(0)
    with pytest.raises(TaskDeferred):
        made.submit(1)
    states[f"{LAST}_0"] = "failed"
    assert made.submit(1)


def test_after_a_skipped_round_all_later_runs_are_skipped_at_once(trial, states, make_result):
    """And not one after the other: a trial of 16 variants that ends early has some 200 of them."""
    made = trial(same_nodes=True, rounds_max=8)
    for index in range(6):
        states |= {f"{where}_{before}": "success" for before in range(index) for where in (FIRST, LAST)}
        try:
            made.publish(make_result, index, 0.6 if "slow" in made.labels[index] else 0.4)
        except AirflowSkipException:
            break
    round_ended = index - index % 2
    with pytest.raises(TaskDeferred) as deferred:
        made.submit(15)
    trigger = trial_operators.RoundTrigger(**deferred.value.trigger.serialize()[1])
    states |= {f"{FIRST}_{round_ended}": "skipped", f"{FIRST}_{round_ended + 1}": "skipped"}
    assert asyncio.run(asyncio.wait_for(trigger.event(), 10))
    with pytest.raises(AirflowSkipException, match="the trial has ended after"):
        made.submit(15)


def test_a_variant_that_has_left_is_skipped_before_the_others_of_its_round_end(trial, states, make_result):
    made = trial(same_nodes=True, variants={**VARIANTS, "third": {"environment": {"NCCL_DEBUG": "WARN"}}})
    for index in range(6):
        states |= {f"{where}_{before}": "success" for before in range(index) for where in (FIRST, LAST)}
        made.publish(make_result, index, 0.9 if "slow" in made.labels[index] else 0.4)
    slow = next(index for index in (6, 7, 8) if "slow" in made.labels[index])
    states |= {f"{where}_{before}": "success" for before in range(6) for where in (FIRST, LAST)}
    with pytest.raises(AirflowSkipException, match="slow has left the trial"):
        made.submit(slow)


def test_a_round_that_somebody_skipped_is_no_end_of_the_trial(trial, states):
    made = trial(same_nodes=True)
    states |= {f"{FIRST}_0": "skipped", f"{FIRST}_1": "skipped"}
    with pytest.raises(AirflowFailException, match="was stopped"):
        made.submit(3)


@pytest.mark.parametrize("first", ["failed", "success"])
def test_a_run_that_begins_while_the_trial_is_stopped_submits_nothing(trial, states, first):
    """Airflow skips what has not begun, which is no end of the runs before."""
    made = trial(same_nodes=True)
    states |= {f"{FIRST}_0": first, f"{LAST}_0": "skipped"}
    with pytest.raises(AirflowFailException, match="was stopped"):
        made.submit(1)
    states |= {f"{FIRST}_0": "skipped"}
    assert made.submit(1), "a variant that has left is skipped, too"


def test_a_job_that_was_submitted_before_a_crash_is_found_again(trial, states):
    made = trial()
    states |= {f"{LAST}_{index}": "success" for index in range(2)}
    assert made.submit(2) == made.submit(2)


def test_a_run_is_skipped_when_its_trial_has_ended(trial, states, make_result):
    made = trial()
    for index in range(6):
        states |= {f"{LAST}_{before}": "success" for before in range(index - index % 2)}
        try:
            made.publish(make_result, index, 0.6 if "slow" in made.labels[index] else 0.4)
        except AirflowSkipException:
            break
    states |= {f"{LAST}_{before}": "success" for before in range(6)}
    with pytest.raises(AirflowSkipException, match=r"the trial has ended after \d rounds?: one left"):
        made.submit(7)
    report = made.dag.get_task("report").prepare_for_execution()
    report.checked = made.checked
    *_, table = logged(lambda: report.execute(made.context("report", -1)))
    heading, row = (next(line for line in table.splitlines() if word in line) for word in ("status", "slow "))
    assert re.split(r"  +", heading.strip())[:7] == [
        "variant",
        "status",
        "runs",
        "slower, %",
        "from",
        "to",
        "than",
    ]
    assert "…" not in heading + row


def test_a_trial_that_was_stopped_fails_and_says_what_is_known(trial):
    made = trial()
    report = made.dag.get_task("report").prepare_for_execution()
    report.checked = made.checked
    with pytest.raises(AirflowFailException, match="stopped before its answer is known"):
        report.execute(made.context("report", -1))


def test_a_mistake_in_the_file_submits_nothing(trial):
    with pytest.raises(SystemExit, match="not a multiple of micro batch size 3"):
        trial(variants={"a": {}, "b": {"micro_batch_size": 3}})
