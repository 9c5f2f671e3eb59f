"""Whole DAG runs on the mini Slurm: a node dies or is refused, or the login node is away."""

import json
from functools import partial
from pathlib import Path

import pytest
import slurm_faults
from airflow.models import Connection
from end_to_end.driving import wait_until
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.slurm.node_check import REFUSED
from steptime.store.run_queries import Store

from .conftest import noted

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:Using `httpx`")]

ROOT = Path(__file__).parents[2]
CLUSTER = """
name: mini-slurm
kind: slurm
gpu_type: cpu
connection: mini_slurm
work_dir: {work_dir}
gpus_per_node: 8
poll_interval_s: 0.2
"""


@pytest.fixture
def slurm(home, mini_slurm, tmp_path, monkeypatch):
    """Return the mini Slurm, configured as a cluster with its login in Airflow."""
    (tmp_path / "config/clusters/mini-slurm.yaml").write_text(CLUSTER.format(work_dir=tmp_path / "work"))
    login = mini_slurm.login
    connection = Connection(
        conn_type="ssh", host=login.host, port=login.port, login=login.login, extra=dict(login.extra)
    )
    monkeypatch.setenv("AIRFLOW_CONN_MINI_SLURM", connection.as_json())
    return mini_slurm


@pytest.mark.exhaustive
def test_a_run_whose_node_died_is_trained_on_another_node(run_dag, slurm, first_training):
    killed = first_training(partial(slurm_faults.kill_node, slurm.home))
    dag_run = run_dag(gpus="1", cluster="mini-slurm")

    node = killed.result()
    assert dag_run.state == "success"
    [row] = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    assert (row["label"], row["state"]) == ("tiny·fp32·1", "valid")
    assert "this is attempt 2, after job " in row["warnings"]
    stem = row["job_name"].removesuffix("2")
    in_ledger = noted(row["job_name"])
    assert (in_ledger.attempt, in_ledger.resubmission, in_ledger.excluded_nodes) == (2, 1, (node,))
    assert f"#SBATCH --exclude={node}\n" in Path(in_ledger.directory, "job.sh").read_text()
    record = json.loads(Store().record(row["job_name"])["content"])
    [before] = record["earlier_attempts"]
    assert (before["job"]["name"], before["status"]["reason"]) == (f"{stem}1", "a node failed")
    shown = ["sacct", "-X", "-D", "-n", "-P", "--starttime=now-1hours", "--format=JobName,State,NodeList"]

    def accounted():
        """Return our jobs in Slurm's accounting, or None until it has the end of each."""
        ours = [line.split("|") for line in slurm.ssh(*shown).splitlines() if line.startswith(stem)]
        return None if "RUNNING" in [job[1] for job in ours] else ours

    ours = wait_until("the ends in the accounting", accounted)
    assert [job[:2] for job in ours] == [[f"{stem}1", "NODE_FAIL"], [f"{stem}2", "COMPLETED"]]
    assert ours[0][2] == node != ours[1][2]


NODE_CHECK = """
gpus_per_node: 1
poll_interval_s: 0.2
node_check: {{product: H100, time_limit_s: 500, least_free_memory_percent: 1}}
setup:
  - export PATH={stand_ins}:$PATH
  # The last node of the first job is the bad one, whichever Slurm takes.
  - if mkdir {folder}/first 2>/dev/null; then scontrol show hostnames | tail -n 1 >{folder}/bad; fi
  - export STAND_IN_GPU_FAULTS="{{\\"$(cat {folder}/bad)\\":\\"uncorrected ECC\\"}}"
"""
"""The GPUs are stand-ins; the matrix product and the all-reduce run on the CPU, over gloo."""


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_a_node_that_its_check_refuses_is_avoided_when_the_run_is_resubmitted(
    run_dag, slurm, staged, trainer_python, tmp_path
):
    file = tmp_path / "config/clusters/mini-slurm.yaml"
    site = NODE_CHECK.format(stand_ins=ROOT / "tests/stand_ins/gpu_node", folder=tmp_path)
    file.write_text(file.read_text().partition("gpus_per_node")[0] + site)
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    assert staged.python is not None
    interpreter = Path(staged.python)
    trains = interpreter.read_text().removeprefix("#!/bin/sh\n")
    checks = f'if test "$2" = trainer.node_check; then exec "{trainer_python}" "$@"; fi'
    interpreter.write_text(f"#!/bin/sh\n{checks}\n{trains}")

    dag_run = run_dag(gpus="2", cluster="mini-slurm")

    assert dag_run.state == "success"
    [row] = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    bad = (tmp_path / "bad").read_text().strip()
    why = f"the node check refused {bad}: GPU 3 has 2 uncorrected ECC errors"
    assert row["state"] == "valid"
    assert why in row["warnings"]
    record = json.loads(Store().record(row["job_name"])["content"])
    [before] = record["earlier_attempts"]
    status = before["status"]
    assert (status["exit_code"], status["reason"], status["failed_nodes"]) == (REFUSED, why, [bad])
    assert len(before["status"]["nodes"]) == 2
    assert f"#SBATCH --exclude={bad}\n" in record["provenance"]["script"]
    node_check = record["node_check"]
    assert {node["node"] for node in node_check["nodes"]} == set(record["status"]["nodes"])
    assert bad not in record["status"]["nodes"]
    assert all(node["matmul_tflops"] > 0 and node["gpus"] == 8 for node in node_check["nodes"])
    assert (node_check["refused"], node_check["all_reduce"]["ranks"]) == ([], 2)
    assert node_check["all_reduce"]["bus_gb_per_s"] > 0
    shown = CliRunner().invoke(app, ["results", "show", row["job_name"], "--format", "csv"])
    assert f"all-reduce {node_check['all_reduce']['bus_gb_per_s']:.4g} GB/s" in shown.stdout
