"""A connection that people made in Airflow: its tasks log in with it, on each release of Airflow."""

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1800)]

CLUSTER = """
name: away
kind: slurm
gpu_type: cpu
connection: away
work_dir: /shared/steptime
partition: batch
container: none
python: python3.11
patience_h: 0.001
"""


def test_a_task_uses_a_connection_of_airflows_database(airflow):
    """Nothing listens on the connection's port, so that the task's error shows which address it used."""
    made = {"connection_id": "away", "conn_type": "ssh", "host": "127.0.0.1", "port": 1, "login": "me"}
    assert airflow.answer("POST", "/api/v2/connections", made).is_success
    (airflow.config / "clusters" / "away.yaml").write_text(CLUSTER)

    run = airflow.ended(airflow.trigger(cluster="away", gpus="2"))

    assert run.state == "failed"
    stage = airflow.task(run, "stage", -1)
    assert stage is not None
    assert "127.0.0.1" in airflow.log_text(run, stage)
