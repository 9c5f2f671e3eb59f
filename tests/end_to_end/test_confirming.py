"""A real Airflow runs a sweep with a slower cell, and then by itself its confirmation runs."""

import json
from urllib.parse import quote

import httpx
import pytest
from stand_ins.trainer_python import STAND_IN
from stored import publish

from end_to_end.conftest import SLOWER
from steptime.store.run_queries import Store

# tests/airflow/sweep has its parts.
pytestmark = [pytest.mark.end_to_end, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


def test_what_a_sweep_makes_suspect_is_confirmed_by_runs_of_its_own(airflow, make_result):
    """The times are made up: the trainer is a stand-in, and the history is written into the store."""
    store = Store(f"sqlite:///{airflow.home / 'store' / 'steptime.db'}")
    for week in range(8):
        usual = make_result(f"usual-{week}", gpus=1, step_times=[0.5] * 20, submitted_at=1.7e9 + week)
        run = usual.run.model_copy(update={"cluster": STAND_IN})
        publish(
            store, usual.model_copy(update={"submitted": usual.submitted.model_copy(update={"run": run})})
        )

    sweep = airflow.ended(airflow.client.trigger("steptime_sweep", {"sweep": SLOWER}, patience_s=60))

    assert sweep.state == "success"
    rows = airflow.steptime("results", "--cluster", STAND_IN, "--format", "json")
    of_sweep = [
        row
        for row in json.loads(rows.stdout)["results"]
        if (row["dag_id"], row["dag_run_id"]) == ("steptime_sweep", sweep.dag_run_id)
    ]
    assert len(of_sweep) == 3
    compared = airflow.steptime("results", "compare", "--sweep", SLOWER, "--format", "json")
    assert compared.returncode == 3, "a slowdown is confirmed"
    found = json.loads(compared.stdout)
    (cell,) = found["cells"]
    assert (cell["verdict"], cell["series_state"]) == ("slower", "confirmed")
    assert cell["change_percent"] == pytest.approx(20)
    report = airflow.task(sweep, "report")
    assert report is not None
    assert "confirmation 2" in airflow.log_text(sweep, report)
    lead = "1 cell: 1 slower, 0 faster, 0 unchanged; worst tiny·fp32·1 +20.0 %, confirmed"
    tab = f"/steptime/api/results?dag_id={sweep.dag_id}&dag_run_id={quote(sweep.dag_run_id)}"
    assert airflow.answer("GET", tab).json()["comparison"]["sentence"] == lead, "the page says the same"
    assert httpx.get(airflow.url + tab).status_code == 401, "the page is open to everyone"
    finished = airflow.asset_event(f"x-steptime://sweeps/{SLOWER}", "steptime_sweep", sweep)
    assert finished["sentence"] == lead
    [slower] = finished["cells"]
    assert (slower["verdict"], slower["series_state"]) == ("slower", "confirmed")
    assert slower["job_name"] == cell["job_name"]
    published = airflow.asset_event("x-steptime://results/llama3.1-25.04", "steptime_sweep", sweep)
    assert published["change_percent"] == pytest.approx(20)

    level = {"job_name": cell["job_name"], "note": "a made up slowdown"}
    first = airflow.answer("POST", "/steptime/api/accept", level).json()["job_name"]
    assert first in {row["job_name"] for row in of_sweep} - {cell["job_name"]}, "the one that was suspected"
    assert airflow.steptime("results", "compare", "--sweep", SLOWER).returncode == 0
