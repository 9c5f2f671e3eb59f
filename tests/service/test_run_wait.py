"""`steptime run --wait`, and of sweeps and trials, against a REST API: requests, output and exit code."""

import csv
import io
import re

import pytest
import stored
from stored_trial import StoredTrial

from steptime.cli import following
from steptime.recipes.models import Mode
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

TRIGGER = "POST /api/v2/dags/steptime_llama3.1-25.04/dagRuns"


class Airflow:
    """A stand-in for the routes that a run needs, for one DAG run with a failed or successful task."""

    def __init__(self, api, dag_id="steptime_llama3.1-25.04"):
        self.api, self.dag_id = api, dag_id
        dag = f"GET /api/v2/dags/{dag_id}"
        self.state = "success"
        self.before_end = lambda _run_id: None
        self.task = {
            "task_id": "publish",
            "map_index": -1,
            "state": "success",
            "try_number": 1,
        }
        self.others = []
        api.answers[dag] = (200, {"dag_id": dag_id, "is_paused": False})
        api.answers[f"POST {dag.removeprefix('GET ')}/dagRuns"] = self._triggered

    def _triggered(self, body):
        self.run_id = body["dag_run_id"]
        path = f"GET /api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"
        self.api.answers[path] = lambda _: (200, self._run())
        self.api.answers[f"{path}/taskInstances"] = lambda _: (
            200,
            {"task_instances": [self.task, *self.others], "total_entries": 1 + len(self.others)},
        )
        self.before_end(self.run_id)
        error = [{"exc_type": "AirflowException", "exc_value": "job x timed out"}]
        line = {"event": "Task failed with exception", "level": "error", "error_detail": error}
        for task in (self.task, *self.others):
            self.api.answers[f"{path}/taskInstances/{task['task_id']}/logs/1"] = (200, {"content": [line]})
        return 200, self._run()

    def _run(self):
        return {"dag_id": self.dag_id, "dag_run_id": self.run_id, "state": self.state}


@pytest.fixture
def airflow(api, steptime, monkeypatch):
    monkeypatch.setattr(following, "POLL_S", 0.01)
    return Airflow(api)


def test_without_wait_it_tells_where_the_run_is(airflow, steptime, capsys):
    assert steptime("run llama3.1 --gpus 2 --env A=b") == 0
    out = capsys.readouterr().out
    assert f"run id:  {airflow.run_id}" in out
    assert f"address: {airflow.api.url}/dags/steptime_llama3.1-25.04/runs/" in out
    (sent,) = airflow.api.asked(TRIGGER)
    assert sent["logical_date"] is None
    assert "workload" not in sent["conf"]
    assert (sent["conf"]["size"], sent["conf"]["gpus"], sent["conf"]["environment"]) == (
        "tiny",
        "2",
        {"A": "b"},
    )


def test_a_rejected_result_is_printed_and_is_a_failure(airflow, make_result, steptime, capsys):
    bad = Verdict(checks=(Check(name="x", passed=False, message="3 of 20 steps"),))
    airflow.before_end = lambda run_id: stored.write(Store(), make_result(dag_run_id=run_id, verdict=bad))
    assert steptime("run llama3.1 --wait --format csv") == 2
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["state"] == "rejected"


def test_results_stand_as_people_read_them(airflow, make_result, steptime, capsys):
    def made(run_id):
        stored.write(Store(), make_result("saved", mode=Mode.CHECKPOINT_SAVE, dag_run_id=run_id))
        stored.write(Store(), make_result("two", map_index=1, dag_run_id=run_id))
        stored.write(Store(), make_result("one", gpus=1, dag_run_id=run_id))

    airflow.before_end = made
    assert steptime("run llama3.1 --wait --format csv") == 0
    captured = capsys.readouterr()
    listed = [*csv.DictReader(io.StringIO(captured.out))]
    assert [row["job_name"] for row in listed] == ["one", "two", "saved"]
    assert {(row["dag_run_id"], row["state"]) for row in listed} == {(airflow.run_id, "valid")}
    assert "0 of 2 done" in captured.err


def test_no_results_where_there_should_be_some_is_a_failure(airflow, steptime, capsys):
    assert steptime("run llama3.1 --wait") == 2
    assert "set STEPTIME_STORE_URL" in capsys.readouterr().err


def test_a_failed_task_is_named_with_its_error_and_its_log(airflow, steptime, capsys):
    airflow.state = "failed"
    airflow.task |= {"task_id": "wait", "state": "failed"}
    assert steptime("run llama3.1 --wait") == 2
    said = capsys.readouterr().err
    assert "wait failed: job x timed out" in said
    assert f"its log: {airflow.api.url}/dags/steptime_llama3.1-25.04/runs/" in said
    assert "/tasks/wait" in said


def test_of_each_run_the_first_failed_task_is_named(airflow, steptime, capsys):
    """Tasks that fail later because of it explain nothing more."""
    airflow.state = "failed"
    failed = {"state": "failed", "try_number": 1}
    at = {second: {"end_date": f"2026-11-28T03:00:0{second}Z"} for second in range(4)}
    airflow.task |= {"task_id": "performance.wait", **failed, "map_index": 1, **at[1]}
    airflow.others = [
        {"task_id": "report", **failed, "map_index": -1, **at[3]},
        {"task_id": "performance.validate", **failed, "map_index": 1, **at[2]},
        {"task_id": "performance.submit", **failed, "map_index": 0, **at[0]},
    ]
    assert steptime("run llama3.1 --gpus 1,2 --wait") == 2
    told = re.findall(r"^(?:steptime: )?(.+) failed: job x", capsys.readouterr().err, re.MULTILINE)
    assert told == ["performance.submit [0]", "performance.wait [1]"]


def test_a_failed_dag_run_is_a_failure_although_one_of_its_runs_is_valid(
    airflow, make_result, steptime, capsys
):
    airflow.state = "failed"
    airflow.task |= {"task_id": "wait", "state": "failed", "map_index": 1}
    airflow.before_end = lambda run_id: stored.write(Store(), make_result("one", dag_run_id=run_id))
    assert steptime("run llama3.1 --gpus 1,2 --wait --format csv") == 2
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["job_name"], row["state"]) == ("one", "valid")


def test_ctrl_c_stops_the_following_and_not_the_run(airflow, steptime, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(following.time, "sleep", interrupted)
    airflow.state = "running"
    assert steptime("run llama3.1 --wait") == 2
    said = capsys.readouterr().err
    assert "no longer following; the runs continue" in said
    assert [what for what, _, _ in airflow.api.requests].count(TRIGGER) == 1


def test_a_sweep_is_followed_to_its_results(airflow, make_result, steptime, capsys):
    def of_sweep(run_id):
        provenance = make_result(dag_run_id=run_id).submitted.provenance
        changes = {"dag_id": "steptime_sweep"}
        stored.write(Store(), make_result("one", provenance=provenance.model_copy(update=changes)))

    sweep = Airflow(airflow.api, "steptime_sweep")
    sweep.before_end = of_sweep
    assert steptime("sweep run example-weekly --wait") == 0
    printed = capsys.readouterr()
    assert "tiny" in printed.out
    assert f"run id:  {sweep.run_id}" in printed.err
    assert "0 of 4 done" in printed.err  # two cells, two runs of each

    sweep.state, sweep.task = "failed", sweep.task | {"task_id": "wait", "state": "failed"}
    assert steptime("sweep run example-weekly --wait") == 2
    assert "wait failed: job x timed out" in capsys.readouterr().err


def test_a_trial_is_followed_to_its_answer(airflow, make_result, steptime, capsys):
    trial = Airflow(airflow.api, "steptime_trial")
    assert steptime("trial run example-micro-batch --wait") == 2
    assert "set STEPTIME_STORE_URL" in capsys.readouterr().err

    trial.before_end = lambda run_id: StoredTrial(Store(), make_result).ran(
        "default", 1, 1.5, dag_run_id=run_id
    )
    assert steptime("trial run example-micro-batch --wait") == 0
    assert "Nothing is shown yet" in capsys.readouterr().out
