"""A real Airflow for all end-to-end tests of a worker: its first start takes a minute."""

import shutil
from pathlib import Path

import pytest
from free_ports import free_port
from stand_ins.trainer_python import STAND_IN, add_stand_in

from end_to_end.driving import running_airflow
from steptime import settings
from steptime.mini_slurm.layout import CONNECTION
from steptime.service import connection_file

DAGS = """
from steptime.airflow.dags import make_dags

make_dags(["bridge-llama", "grok1", "llama3.1"], sweeps={})
"""
"""Three workloads, as parsing all takes Airflow long."""

DATA = Path(__file__).parents[1] / "data"
WORKLOADS = (
    DATA / "mixtures" / "workloads" / "grok1-25.08.yaml",
    DATA / "bridge" / "workloads" / "bridge-llama-26.11.yaml",
)
SLOWER = "slower"
AFTER_SLOWER = f"""
from airflow.sdk import DAG

from steptime.airflow.assets import finished_sweep

dag = DAG("after_slower", schedule=[finished_sweep("{SLOWER}")])
"""
"""A DAG that names the asset of the sweep, so that Airflow keeps the asset's events."""
SLOWER_SWEEP = f"""
name: {SLOWER}
cluster: {STAND_IN}
gpu_hours_max: 10
runs:
  - {{workload: llama3.1, gpus: 1, environment: {{STAND_IN_PRINTED_S: "0.6"}}}}
"""
"""A sweep of a cell whose history tests make up."""
CELLS, HANGING_CELLS = "cells", "hanging-cells"
CELLS_SWEEP = """
name: {name}
cluster: {cluster}
gpu_hours_max: 10
runs:
  - workload: llama3.1
    gpus: 2
    max_steps: {max_steps}
    environment: {environment}
"""
"""A sweep of cells whose series no other test uses."""


@pytest.fixture(scope="package")
def airflow(tmp_path_factory):
    """Yield an Airflow with the shipped config and the clusters of the stand-in."""
    home, dags = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("dags")
    (dags / "steptime_dags.py").write_text(DAGS)
    (dags / "after_slower.py").write_text(AFTER_SLOWER)
    add_stand_in(config := tmp_path_factory.mktemp("config"))
    for workload in WORKLOADS:
        shutil.copy(workload, config / "workloads")
    (config / "sweeps" / f"{SLOWER}.yaml").write_text(SLOWER_SWEEP)
    all_but_one_hang = {"STAND_IN_FIRST": str(config / "first")}
    for name, max_steps, given in ((CELLS, [20, 21], {}), (HANGING_CELLS, [20, 21, 22], all_but_one_hang)):
        sweep = CELLS_SWEEP.format(name=name, cluster=STAND_IN, max_steps=max_steps, environment=given)
        (config / "sweeps" / f"{name}.yaml").write_text(sweep)
    share_environments(home)
    # Airflows that start at once would choose the same port, and one would start again.
    with running_airflow(home, config, dags, port=free_port()) as running:
        yield running


def share_environments(home):
    """Link the trainer's environments of all tests into a state folder, as making one takes minutes."""
    venvs = settings.home() / "venvs"
    venvs.mkdir(parents=True, exist_ok=True)
    (home / "venvs").symlink_to(venvs)


@pytest.fixture(scope="package")
def main_job(airflow):
    """Run the main job as `make demo` does, in fewer steps: 1 and 2 ranks, a checkpoint saved and loaded."""
    what = ["--gpus", "1,2", "--checkpoint", "--max-steps", "8", "--window", "4:7"]
    return airflow.steptime("run", "llama3.1", *what, "--wait", "--format", "json", timeout_s=2400)


@pytest.fixture
def slurm(airflow, mini_slurm, monkeypatch):
    """Yield the mini Slurm, with the connection in Airflow that `steptime slurm up` would make."""
    monkeypatch.setenv("STEPTIME_HOME", str(airflow.home))
    work = airflow.home / "mini-slurm-work"
    if not work.exists():
        work.mkdir()
        (work / "venvs").symlink_to(airflow.home / "venvs")
    connection_file.keep(mini_slurm.login)
    yield mini_slurm
    connection_file.forget(CONNECTION)
