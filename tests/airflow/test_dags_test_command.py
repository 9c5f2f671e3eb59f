"""`airflow dags test`, as people type it, with no Airflow running and the stand-in trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins.trainer_python import STAND_IN, add_stand_in

from steptime.store.run_queries import Store

pytestmark = [pytest.mark.service, pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("airflow_database")
def test_airflow_dags_test_trains_and_publishes(tmp_path):
    add_stand_in(tmp_path / "config")
    environment = os.environ | {
        "STEPTIME_HOME": str(tmp_path / "home"),
        "STEPTIME_CONFIG_DIR": str(tmp_path / "config"),
    }
    params = {"cluster": STAND_IN, "gpus": "2", "checkpoint": False}
    airflow = Path(sys.executable).with_name("airflow")
    done = subprocess.run(
        [airflow, "dags", "test", "steptime_llama3.1-25.04", "--conf", json.dumps(params)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:]
    assert "all 1 runs have valid results: tiny·fp32·2 0." in done.stdout
    [row] = Store(f"sqlite:///{tmp_path}/home/store/steptime.db").results()
    assert row["label"] == "tiny·fp32·2"
    assert row["step_time_mean_s"] > 0
    assert row["steps_in_window"] == 10
