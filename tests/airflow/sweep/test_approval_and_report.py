"""The approval that people give before a sweep, and its report afterwards."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import stored
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput
from airflow.sdk.execution_time.context import OutletEventAccessors
from stored import publish

from steptime.airflow.dags import report_broken_files
from steptime.airflow.sweep.dag import sweep_dag
from steptime.airflow.sweep.trial_dag import trial_dag
from steptime.errors import UserError
from steptime.recipes.models import Mode
from steptime.settings import shipped
from steptime.staging.checking import check_config_files
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store
from tests.airflow.conftest import logged

from .conftest import SweepTask, of_sweep

ONE, TWO = "llama3.1·tiny·fp32·1", "llama3.1·tiny·fp32·2"
"""The labels of the two cells."""


def test_the_first_task_shows_what_the_sweep_comes_to(check):
    table, most, expected, *_ = logged(check)
    assert table.startswith("\nsweep night: 2 runs\n")
    assert re.search(r"llama3\.1·tiny·fp32·2 +local {8}1 {6}2 +0\.33\d* +-", table), (
        "numbers are right-aligned"
    )
    assert (most, expected) == ("at most 0.50 GPU-hours", "no history and no publication: upper bound only")


def test_the_request_has_no_params_of_its_dag_also_with_the_provider_of_airflow_3_1(
    monkeypatch,
):
    """It keeps them in the request, and refuses a DAG with a param that has no default, as a trial's."""
    monkeypatch.delattr(ParamsDict, "filter_params_by_source")
    monkeypatch.setattr(HITLOperator, "validate_params", lambda self: self.params.validate())
    assert not trial_dag("steptime_trial").get_task("approve").params


def test_nobody_is_asked_below_the_limit(check, task, make_context):
    for fields in ({}, {"approval_above_gpu_hours": 1}):
        operator = task("approve", checked=check(**fields))
        with pytest.raises(AirflowSkipException, match=r"at most 0\.50 GPU-hours"):
            operator.execute(make_context() | {"ti": SweepTask(map_index=-1)})


def test_above_the_limit_somebody_sees_what_it_costs_at_most_and_probably(
    check,
    task,
    told,
    make_result,
    make_context,
    monkeypatch,
):
    asked = {}
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **said: asked.update(said)
    )
    publish(Store(), make_result("a job of 38.5 s", gpus=2))
    operator = task("approve", checked=check(approval_above_gpu_hours=0.2))

    with pytest.raises(TaskAwaitingInput):
        operator.execute(
            make_context() | {"ti": SweepTask(map_index=-1), "task_instance": TaskInstanceWithId()}
        )
    assert asked["subject"] == "Start sweep night: 2 jobs, at most 0.50 GPU-hours?"
    expected, _, heading, rule, one, two = asked["body"].splitlines()
    assert expected.startswith("expected 0.021 GPU-hours, the longest job 00:00:38 (1 by the history ")
    assert heading == "| cell | cluster | jobs | GPUs | GPU-hours ≤ | expected |"
    assert rule == "| --- | --- | --- | --- | --- | --- |"
    assert one == "| llama3.1·tiny·fp32·1 | local | 1 | 1 | 0.17 | unknown |"
    assert two == "| llama3.1·tiny·fp32·2 | local | 1 | 2 | 0.33 | 0.021 |"
    assert asked["options"] == ["Approve", "Reject"]
    news = f"Start sweep night? 2 jobs, at most 0.50 GPU-hours; {expected}"
    assert told == [("approval waiting", news)]


@pytest.fixture
def told(monkeypatch):
    """Return a list that gets the events and sentences with which notifiers would be called."""
    calls = []
    monkeypatch.setattr(
        "steptime.airflow.sweep.operators.notify", lambda event, sentence, *_: calls.append((event, sentence))
    )
    return calls


@dataclass
class TaskInstanceWithId:
    id: str = "01"


@pytest.fixture
def report(check, task, home):
    """Return a function that reports on a sweep of one and two ranks, given the XComs of its other tasks."""
    planned = check()

    def report(xcoms=None, *, checked=planned, confirmed=None):
        context = {
            "ti": SweepTask(task_id="report", map_index=-1, xcoms=xcoms or {}),
            "outlet_events": OutletEventAccessors(),
        }
        operator = task("report", checked=checked, confirmed=confirmed)
        operator.execute(context)
        events = context["outlet_events"]
        return [SimpleNamespace(uri=asset.uri, extra=events[asset].extra) for asset in operator.outlets]

    return report


@pytest.mark.long
def test_the_report_shows_the_step_times_of_each_cell(report, make_result, told, capsys):
    store = Store()
    for gpus, cell in ((1, ONE), (2, TWO)):
        publish(store, of_sweep(make_result(f"job-{gpus}", gpus=gpus, step_times=[gpus / 8] * 20), cell))

    [event] = report()
    assert event.uri == "x-steptime://sweeps/night"
    assert event.extra["sweep"] == "night"
    assert event.extra["sentence"] == (
        "2 cells: 0 slower, 0 faster, 0 unchanged, 2 with insufficient history"
    )
    assert {(cell["job_name"], cell["verdict"]) for cell in event.extra["cells"]} == {
        ("job-1", "insufficient history"),
        ("job-2", "insufficient history"),
    }
    assert told == [("sweep finished", f"sweep night: {event.extra['sentence']}")]
    printed = capsys.readouterr().out
    assert re.search(r"cell +result +step time, s +tokens/s +MFU, % +queued, s +job", printed)
    assert re.search(r"llama3\.1·tiny·fp32·1 +valid +0\.125 +\S+ +\S+ +\S+ +job-1", printed)
    assert re.search(r"llama3\.1·tiny·fp32·2 +valid +0\.25 +\S+ +\S+ +\S+ +job-2", printed)
    assert printed.index(event.extra["sentence"]) < printed.index("results of manual__"), "it comes first"


@pytest.mark.long
def test_the_report_shows_no_times_of_checkpoint_runs(check, report, make_result, capsys):
    runs = (
        ("saved", Mode.CHECKPOINT_SAVE, 0.5),
        ("trained", Mode.PERFORMANCE, 0.125),
        ("loaded", Mode.CHECKPOINT_LOAD, 0.75),
    )
    store = Store()
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2, "checkpoint": True}])
    for at, (name, mode, time) in enumerate(runs):
        with pytest.raises(AirflowFailException, match=r"1 of 1 runs have no valid result"):
            report(checked=checked)
        steps = 1 if mode is Mode.CHECKPOINT_LOAD else 20
        made = make_result(name, mode=mode, step_times=[time] * steps, submitted_at=1e9 + at)
        stored.write(store, of_sweep(made, TWO))

    report(checked=checked)
    told = capsys.readouterr().out
    assert re.search(r"llama3\.1·tiny·fp32·2 +valid +0\.125 ", told)
    assert not re.search(r"0\.5 |0\.75 ", told)


@pytest.mark.long
def test_the_report_fails_for_a_cell_that_was_rejected_and_one_without_a_result(report, make_result, capsys):
    failed = Check(name="all_steps", passed=False, message="steps are missing")
    rejected = make_result("job-1", gpus=1, verdict=Verdict(checks=(failed,)), submitted_at=1e9)
    publish(Store(), of_sweep(rejected, ONE))

    with pytest.raises(AirflowFailException, match=r"2 of 2 runs have no valid result: .*·1, .*·2"):
        report()
    told = capsys.readouterr().out
    assert re.search(r"llama3\.1·tiny·fp32·1 +rejected ", told)
    assert re.search(r"llama3\.1·tiny·fp32·2 +none +- ", told)

    publish(Store(), of_sweep(make_result("job-1-2", gpus=1, submitted_at=2e9), ONE))
    with pytest.raises(AirflowFailException, match=r"1 of 2 runs have no valid result: .*·2"):
        report()


def test_the_report_waits_for_the_store(report, make_result, monkeypatch):
    """The report waits while PostgreSQL does not answer; here it answers after the first pause."""
    for gpus, cell in ((1, ONE), (2, TWO)):
        publish(Store(), of_sweep(make_result(f"job-{gpus}", gpus=gpus), cell))
    monkeypatch.setenv("STEPTIME_STORE_URL", "postgresql://steptime@127.0.0.1:1/nowhere")
    pauses = []

    def back(pause_s):
        pauses.append(pause_s)
        monkeypatch.delenv("STEPTIME_STORE_URL")

    monkeypatch.setattr("tenacity.nap.time.sleep", back)
    report()
    assert len(pauses) == 1


def test_a_rejected_sweep_is_no_failure(report, capsys):
    assert report({("approve", None, "rejected_by"): "ada"}) == [], "nothing has finished"
    assert "rejected by ada: nothing was started" in capsys.readouterr().out


def test_a_rejection_is_kept_for_the_report(check, task):
    operator = task("approve", checked=check())
    ti = SweepTask()
    event = {
        "chosen_options": [ApprovalOperator.REJECT],
        "params_input": {},
        "responded_by_user": {"id": "1", "name": "ada"},
        "responded_at": datetime.now(UTC),
    }
    operator.execute_complete({"ti": ti, "task": operator}, event)
    assert ti.pushed["rejected_by"] == "ada"
    assert ti.pushed["skipmixin_key"] == {"skipped": ["stage"]}


def test_files_that_cannot_be_run_are_told_with_line_and_field_and_change_no_dag(write_sweep, home):
    before = sweep_dag("any_sweep", sweep="night").task_ids
    check_config_files()

    write_sweep(cluster="moon")
    broken = home.parent / "config/sweeps/broken.yaml"
    broken.write_text("name: broken\ngpu_hours_max: 1\nrepeats: often\nruns: []\n")
    with pytest.raises(UserError) as refused:
        check_config_files()
    assert f"{broken.resolve()}, line 3, repeats" in str(refused.value)
    assert "unknown cluster 'moon'" in str(refused.value)
    assert sweep_dag("any_sweep", sweep="night").task_ids == before


BROKEN = [
    ("gpus.yaml", "memory_gb: 80", "memory_gb: 80 GB", "a100.memory_gb: has to be a number"),
    ("flops.yaml", "mlp_matrices: 2", "mlp_matrices: 1", "nemotron4-24.11.counted.mlp_matrices: has to"),
    ("clusters/local.yaml", "kind", "kin", "kind: is missing"),
    ("references/qwen3-26.02.yaml", "title", "titel", "titel: unknown field"),
    ("expectations/steps.yaml", "cpu: 30", "gpu: 30", "step_time_variation_percent.gpu: unknown GPU type"),
    ("notifications.yaml", "notifications", "notification", "notification: unknown field"),
]


@pytest.mark.long
def test_a_mistake_in_any_file_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path))
    for file, old, new, _ in BROKEN:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((shipped("config") / file).read_text().replace(old, new, 1))
    with pytest.raises(UserError) as refused:
        report_broken_files()
    told = str(refused.value)
    assert [told.count(f"{Path(file).name}, line ") for file, *_ in BROKEN] == [1, 1, 1, 1, 1, 1]
    assert all(sentence in told for *_, sentence in BROKEN)
