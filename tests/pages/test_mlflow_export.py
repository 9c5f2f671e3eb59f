"""Results in MLflow: written by its own client, in an environment with the extra, to a store of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kept import assert_kept, masked
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import SystemFailure
from steptime.pages.mlflow_export import export_results
from steptime.store.columns import COLUMNS
from steptime.store.run_queries import Store

EXPORT_AND_READ = """
import json, sys
from mlflow import MlflowClient
from typer.testing import CliRunner
from steptime.cli import app

server = sys.argv[1]
client = MlflowClient(server)

def export():
    asked = ["results", "mlflow", "--tracking-uri", server, "--experiment", "nightly"]
    return CliRunner().invoke(app, asked, catch_exceptions=False).stdout

def runs(wanted=""):
    experiment = client.get_experiment_by_name("nightly").experiment_id
    return {run.data.tags["steptime.job_name"]: run for run in client.search_runs([experiment], wanted)}

def moment(run):
    return client.get_metric_history(run.info.run_id, "step_time_mean_s")[0].timestamp

told = [export()]
read = {
    name: [run.info.status, run.data.params, run.data.metrics, run.data.tags,
           run.info.start_time, run.info.end_time, moment(run)] for name, run in runs().items()
}
client.update_run(runs()["job-2"].info.run_id, "RUNNING")  # as an export leaves it that was killed
told.append(export())
print(json.dumps([told, read, {name: run.info.status for name, run in runs().items()}]))
"""
"""Exports twice in one process, as each start of MLflow takes seconds, and breaks one run off between."""


@pytest.fixture(scope="module")
def extra(tmp_path_factory):
    """A folder with MLflow's client and what it requires; it is not in this environment's lock file."""
    folder = tmp_path_factory.mktemp("mlflow")
    uv = Path(sys.executable).with_name("uv")
    options = ["--quiet", "--python", sys.executable, "--target", folder]
    done = subprocess.run(
        [uv, "pip", "install", *options, "mlflow-skinny>=3.1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_result_becomes_one_run(make_result, tmp_path, extra):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    server = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = {
        **{"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(extra)},
        **{"STEPTIME_STORE_URL": store.url, "STEPTIME_HOME": str(tmp_path / "home")},
    }

    def python(*argv):
        done = subprocess.run(
            [sys.executable, *argv], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    publish(store, make_result("job-1", step_times=[0.25] * 20))
    options = ["--tracking-uri", server, "--experiment", "nightly"]
    said = python(str(Path(sys.executable).with_name("steptime")), "results", "mlflow", *options)
    assert said == "1 results are in the experiment 'nightly', 1 of them new.\n"
    publish(store, make_result("job-2", gpus=4, step_times=[0.5] * 20))
    told, runs, again = json.loads(python("-c", EXPORT_AND_READ, server))
    assert told == 2 * ["2 results are in the experiment 'nightly', 1 of them new.\n"]
    assert again == {"job-1": "FINISHED", "job-2": "FINISHED"}
    assert runs.keys() == {"job-1", "job-2"}
    status, parameters, metrics, tags, *times = runs["job-2"]
    assert status == "FINISHED"
    assert (parameters["gpus"], parameters["workload"]) == ("4", "llama3.1-25.04")
    assert metrics["step_time_mean_s"] == 0.5
    assert (tags["mlflow.runName"], tags["steptime.state"]) == ("job-2", "valid")
    stored = store.run("job-2")
    told = {*parameters, *metrics, *(name.removeprefix("steptime.") for name in tags)}
    assert {column.name for column in COLUMNS if stored[column.name] not in (None, "")} <= told, (
        "0 and False too"
    )
    assert times == [
        *(round(1000 * stored["started_at"]), round(1000 * stored["ended_at"])),
        round(1000 * stored["ended_at"]),
    ]


MASKED = {r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d": "TIME"}


class Tracking:
    """Stands in for MLflow's client and entities: an experiment on a server that gives a run in a page."""

    def __init__(self):
        self.asked = []
        self.runs = {}
        self.experiment = None

    def get_experiment_by_name(self, name):
        return self.experiment

    def create_experiment(self, name):
        self.asked.append(f"experiment {name}")
        self.experiment = SimpleNamespace(experiment_id="7")
        return "7"

    def search_runs(self, experiments, *, max_results, page_token):
        at = int(page_token or 0)
        page = type("Page", (list,), {"token": str(at + 1) if at + 1 < len(self.runs) else None})
        return page([*self.runs.values()][at : at + 1])

    def create_run(self, experiment, start_ms, tags, name):
        self.asked.append(f"run {name} of experiment {experiment} from {start_ms}: {tags}")
        run = SimpleNamespace(
            data=SimpleNamespace(tags=tags), info=SimpleNamespace(run_id=f"id of {name}", status="RUNNING")
        )
        self.runs[run.info.run_id] = run
        return run

    def log_batch(self, run_id, **entities):
        for kind, each in entities.items():
            for name, *values in sorted(each):
                self.asked.append(f"{run_id}: {kind[:-1]} {name} = {', '.join(map(str, values))}")

    def set_terminated(self, run_id, status, end_ms):
        self.asked.append(f"{run_id}: {status} at {end_ms}")
        self.runs[run_id].info.status = status


def test_what_is_written_of_each_result(make_result, tmp_path, monkeypatch):
    """The values are kept in tests/golden/numbers/mlflow.txt."""
    tracking, said = Tracking(), []
    entities = SimpleNamespace(**{name: lambda *values: values for name in ("Metric", "Param", "RunTag")})
    exceptions = SimpleNamespace(MlflowException=KeyError)
    mlflow = SimpleNamespace(MlflowClient=lambda _: tracking, exceptions=exceptions, entities=entities)
    for name, module in (
        ("mlflow", mlflow),
        ("mlflow.exceptions", exceptions),
        ("mlflow.entities", entities),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    for gpus in (1, 2048):
        publish(
            store,
            make_result(f"job-{gpus}", gpus=gpus, step_times=[gpus / 8] * 20, submitted_at=1.7e9 + gpus),
        )
    rows = [
        {
            **row,
            "verdict": "slower",
            "change_percent": float("inf"),
            "state": "v" * 5001 if row["gpus"] == 2048 else "valid",
        }
        for row in store.results()
    ]
    new = [
        export_results(rows[:1], "nightly", None, said.append),
        export_results(rows, "nightly", None, said.append),
    ]
    asked = list(tracking.asked)
    tracking.asked.clear()
    tracking.runs["id of job-1"].info.status = "RUNNING"
    tracking.runs["id of another"] = SimpleNamespace(data=SimpleNamespace(tags={}))
    new.append(export_results(rows, "nightly", None, said.append))
    again = [line for line in tracking.asked if ": param" not in line and ": metric" not in line]
    told = [*asked, "== again, of job-1 after a broken export", *again, f"new: {new}", *said]
    text = "\n".join(told).replace("v" * 5000, "v × 5000") + "\n"
    assert_kept("numbers/mlflow.txt", masked(text, MASKED))


def test_without_the_extra_it_says_what_to_install(make_result, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    publish(Store(), make_result("job-1"))
    done = CliRunner().invoke(app, ["results", "mlflow"])
    assert str(done.exception or done.output).endswith("pip install 'steptime[mlflow]'.")


def test_a_password_in_the_servers_address_is_not_told(monkeypatch):
    address = "http://ada:hunter2@mlflow.example"

    class Client:
        def __init__(self, _):
            raise OSError(f"HTTPConnectionPool: {address}/api failed")

    exceptions = SimpleNamespace(MlflowException=KeyError)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client, exceptions=exceptions))
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    with pytest.raises(
        SystemFailure, match=r"not exported to http://ada:\*\*\*@mlflow\.example: "
    ) as failure:
        export_results([], "weekly", address, print)
    assert "hunter2" not in str(failure.value)
