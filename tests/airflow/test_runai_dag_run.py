"""A whole DAG run on the stand-in for Run:ai; nothing that Airflow keeps has a secret."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from airflow.models import Connection
from stand_ins.runai import RunaiStandIn

from steptime.store.run_queries import Store

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore:Using `httpx` with")]

CLUSTER = """
name: dgx
kind: runai
gpu_type: cpu
connection: dgx
project: llm
image: ubuntu:24.04
pvcs: [{{claim: workspace, path: {volume}}}]
work_dir: {volume}/work
gpus_per_node: 2
degraded_after_s: 0
poll_interval_s: 0.2
"""


@pytest.fixture
def server(tmp_path, home, monkeypatch):
    """Yield the stand-in, configured as the cluster `dgx` with its connection in Airflow."""
    (tmp_path / "config" / "clusters" / "dgx.yaml").write_text(CLUSTER.format(volume=tmp_path))
    with RunaiStandIn(tmp_path / "runai").running() as stand_in:
        connection = Connection(
            conn_id="dgx",
            conn_type="runai",
            host=stand_in.url,
            login=stand_in.application,
            password=stand_in.secret,
        )
        monkeypatch.setenv("AIRFLOW_CONN_DGX", connection.get_uri())
        yield stand_in


def test_a_training_on_runai_is_published_and_its_secret_kept(run_dag, server, tmp_path, capfd):
    dag_run = run_dag(gpus="1,2", cluster="dgx")

    assert dag_run.state == "success"
    rows = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    assert sorted(row["label"] for row in rows) == ["tiny·fp32·1", "tiny·fp32·2"]
    assert {row["state"] for row in rows} == {"valid"}
    assert len(server.workloads) == 2
    secrets = [server.secret, *server.tokens]
    # Airflow's database (XComs, rendered fields) and logs, the store, the volume, and all that was printed.
    kept = [file for folder in (Path(os.environ["AIRFLOW_HOME"]), tmp_path) for file in folder.rglob("*")]
    texts = {}
    for file in kept:
        with suppress(FileNotFoundError, IsADirectoryError):  # a journal of SQLite may vanish meanwhile
            texts[str(file)] = file.read_bytes()
    texts["printed"] = "".join(capfd.readouterr()).encode()
    assert any(name.endswith(".db") and dag_run.run_id.encode() in text for name, text in texts.items())
    told = [name for name, text in texts.items() if any(secret.encode() in text for secret in secrets)]
    assert not told
