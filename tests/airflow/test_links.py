"""Where the buttons of steptime's tasks lead."""

from airflow.sdk import BaseOperator
from airflow.sdk.types import TaskInstanceKey

from steptime.airflow.links import ResultsLink


def test_the_results_link_leads_to_the_tab_as_airflow_writes_its_address(
    monkeypatch,
):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.example:8080/bench/")
    key = TaskInstanceKey("steptime_llama3.1-25.04", "report", "manual__2026-11-21T10:00:00+00:00")

    address = ResultsLink().get_link(BaseOperator(task_id="report"), ti_key=key)

    assert address == (
        "http://airflow.example:8080/bench/dags/steptime_llama3.1-25.04/runs/manual__2026-11-21T10:00:00+00:00"
        "/plugin/step-times-of-run"
    )
