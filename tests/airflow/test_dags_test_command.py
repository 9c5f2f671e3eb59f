"""`airflow dags test llama31`, as people type it: a tiny Llama trained for real, with no Airflow running."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptime import settings
from steptime.results.store import Store

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(2400)]


def test_airflow_dags_test_trains_and_publishes(tmp_path: Path) -> None:
    venvs = settings.home() / "venvs"  # built once: it takes minutes
    venvs.mkdir(parents=True, exist_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    (home / "venvs").symlink_to(venvs)
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.shipped("dags")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "STEPTIME_HOME": str(home),
    }

    def airflow(*arguments: str) -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name("airflow"), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout

    airflow("db", "migrate")
    said = airflow("dags", "test", "llama31", "--conf", json.dumps({"gpus": "2", "checkpoint": False}))

    assert "all 1 planned runs have valid results" in said
    [row] = Store(f"sqlite:///{home}/store/steptime.db").results()
    assert row["label"] == "tiny·fp32·2"
    assert row["step_time_mean_s"] > 0
    assert row["steps_in_window"] == 10
