"""One real Airflow for all end-to-end tests: its first start takes a minute; no test needs a fresh one."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stand_ins.trainer_python import STAND_IN, add_stand_in

from end_to_end.driving import Airflow, assert_nothing_lives, steptime
from steptime import settings
from steptime.service.rest import AirflowClient

IN_WORKER = """
from steptime.airflow.dag_builder import training_dag

dag = training_dag("llama31_in_worker", workload="llama3.1", deferrable=False)
"""
"""The shipped DAG, but waiting in a worker: there a worker can be killed while the job runs."""

SLOWER = "slower"
SLOWER_SWEEP = f"""
name: {SLOWER}
cluster: {STAND_IN}
gpu_hours_max: 10
runs:
  - {{workload: llama3.1, gpus: 1, environment: {{STAND_IN_PRINTED_S: "0.6"}}}}
"""
"""Of a cell whose history tests make up."""


@pytest.fixture(scope="package")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """One Airflow, with a stand-in's cluster."""
    dags = tmp_path_factory.mktemp("dags")
    for shipped in settings.shipped("dags").glob("*.py"):
        shutil.copy(shipped, dags)
    (dags / "llama31_in_worker.py").write_text(IN_WORKER)
    add_stand_in(config := tmp_path_factory.mktemp("config"))
    (config / "sweeps" / f"{SLOWER}.yaml").write_text(SLOWER_SWEEP)
    with running_airflow(tmp_path_factory.mktemp("home"), config, dags) as running:
        yield running


@contextmanager
def running_airflow(home: Path, config: Path, dags: Path) -> Iterator[Airflow]:
    """Airflow by `steptime up`, and at the end `steptime down`, which must leave nothing behind."""
    venvs = settings.home() / "venvs"  # built once for all tests: it takes minutes
    venvs.mkdir(parents=True, exist_ok=True)
    (home / "venvs").symlink_to(venvs)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPTIME_DAGS_DIR", str(dags))
        environment.setenv("STEPTIME_CONFIG_DIR", str(config))
        up = steptime(home, "up", "--timeout", "900", timeout_s=1000)
    assert up.returncode == 0, up.stderr
    said = dict(line.split(":", 1) for line in up.stdout.splitlines() if ":" in line)
    url, user, password = (said[name].strip() for name in ("address", "user", "password"))
    with AirflowClient(url, user, password) as client:
        yield Airflow(home, url, user, password, client)
    down = steptime(home, "down", "--cancel-jobs")
    assert down.returncode == 0, down.stderr
    assert_nothing_lives(home)
    assert "did not end in time" not in (home / "airflow" / "service" / "supervisor.log").read_text()


@pytest.fixture(scope="package")
def main_job(airflow: Airflow) -> subprocess.CompletedProcess[str]:
    """The main job as `make demo` runs it: 1 and 2 ranks, and a checkpoint saved and loaded."""
    return airflow.steptime(
        "run", "llama3.1", "--gpus", "1,2", "--checkpoint", "--wait", "--format", "json", timeout_s=2400
    )
