"""Results in MLflow: written by its own client, in an environment with the extra, to a store of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import SystemFailure
from steptime.pages.mlflow_export import export_results
from steptime.store.columns import COLUMNS
from steptime.store.run_queries import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

READ = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("nightly")
runs = client.search_runs([experiment.experiment_id])
metric = lambda run: client.get_metric_history(run.info.run_id, "step_time_mean_s")[0].timestamp
print(json.dumps([
    [run.info.status, run.data.params, run.data.metrics, run.data.tags,
     run.info.start_time, run.info.end_time, metric(run)] for run in runs
]))
"""

BREAK_OFF = """
import sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("nightly")
[run] = client.search_runs([experiment.experiment_id], "tags.`steptime.job_name` = 'job-2'")
client.update_run(run.info.run_id, "RUNNING")
"""
"""Leaves the run of job-2 as an export that was killed leaves it."""


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_each_result_becomes_one_run(make_result: Callable[..., Any], tmp_path: Path, extra: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    server = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = {
        **{"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(extra)},
        **{"STEPTIME_STORE_URL": store.url, "STEPTIME_HOME": str(tmp_path / "home")},
    }

    def python(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv], env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def export() -> str:
        options = ["--tracking-uri", server, "--experiment", "nightly"]
        return python(str(Path(sys.executable).with_name("steptime")), "results", "mlflow", *options)

    publish(store, make_result("job-1", step_times=[0.25] * 20))
    assert export() == "1 results are in the experiment 'nightly', 1 of them new.\n"
    publish(store, make_result("job-2", gpus=4, step_times=[0.5] * 20))
    assert export() == "2 results are in the experiment 'nightly', 1 of them new.\n"

    runs = {run[3]["steptime.job_name"]: run for run in json.loads(python("-c", READ, server))}
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

    python("-c", BREAK_OFF, server)
    assert export() == "2 results are in the experiment 'nightly', 1 of them new.\n"
    again = {run[3]["steptime.job_name"]: run[0] for run in json.loads(python("-c", READ, server))}
    assert again == {"job-1": "FINISHED", "job-2": "FINISHED"}


def test_without_the_extra_it_says_what_to_install(
    make_result: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    publish(Store(), make_result("job-1"))
    done = CliRunner().invoke(app, ["results", "mlflow"])
    assert str(done.exception or done.output).endswith("pip install 'steptime[mlflow]'.")


def test_a_password_in_the_servers_address_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://ada:hunter2@mlflow.example"

    class Client:
        def __init__(self, _: str) -> None:
            raise OSError(f"HTTPConnectionPool: {address}/api failed")

    exceptions = SimpleNamespace(MlflowException=KeyError)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client, exceptions=exceptions))
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    with pytest.raises(
        SystemFailure, match=r"not exported to http://ada:\*\*\*@mlflow\.example: "
    ) as failure:
        export_results([], "weekly", address, print)
    assert "hunter2" not in str(failure.value)
