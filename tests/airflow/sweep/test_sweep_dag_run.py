"""A whole sweep in one DAG run, with a stand-in for the trainer on the local cluster."""

import json
import os
from pathlib import Path

import pytest

from steptime.airflow.sweep.dag import sweep_dag
from steptime.store.run_queries import Store

# The warning is of Airflow's API server, which runs in the test's process.
pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Using `httpx` with"),
]


_DAG_FILE = """
from steptime.airflow.sweep.dag import sweep_dag

dag = sweep_dag("any_sweep", sweep="night")
"""


@pytest.fixture
def run_sweep(airflow_database, write_sweep, staged, monkeypatch):
    """Yield a function that runs a sweep with these fields to its end and returns its DAG run."""
    file = Path(os.environ["AIRFLOW_HOME"], "dags", "any_sweep.py")
    file.write_text(_DAG_FILE)

    async def nothing(*_):
        return staged

    monkeypatch.setattr("steptime.airflow.operators.stage", nothing)

    def run(**fields):
        write_sweep(**fields)
        return sweep_dag("any_sweep", sweep="night").test()

    yield run
    file.unlink()


def events_of(dag_id, uri):
    """Return the asset events that tasks of a DAG have emitted for an asset."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        events = session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == dag_id)).all()
        return [event for event in events if event.asset.uri == uri]


def test_all_cells_are_trained_in_one_dag_run(run_sweep):
    """The cells of two workloads have the same size, type and number of GPUs; one has a checkpoint pair."""
    runs = [
        {"workload": "nemotron4", "size": "tiny", "gpus": 1},
        {"workload": "llama3.1", "gpus": 1, "checkpoint": True},
    ]
    dag_run = run_sweep(runs=runs, repeats=1)

    assert dag_run.state == "success"
    rows = Store().list_runs("any_sweep", dag_run.run_id)
    assert {row["state"] for row in rows} == {"valid"}
    assert {(row["sweep"], row["dag_run_id"]) for row in rows} == {("night", dag_run.run_id)}
    assert len({row["job_name"] for row in rows}) == len(rows) == 4
    assert sorted((row["workload"], row["label"]) for row in rows) == [
        ("llama3.1-25.04", "tiny·fp32·1"),
        ("llama3.1-25.04", "tiny·fp32·1·checkpoint load"),
        ("llama3.1-25.04", "tiny·fp32·1·checkpoint save"),
        ("nemotron4-25.04", "tiny·fp32·1"),
    ]
    requests = [json.loads(Store().record(row["job_name"])["content"])["request"] for row in rows]
    assert {(request["workload"], request["gpus"]) for request in requests} == {
        ("llama3.1-25.04", "1"),
        ("nemotron4-25.04", "1"),
    }
    # The DAG of llama3.1 is loaded too, so that Airflow keeps the events of its asset.
    events = events_of("any_sweep", "x-steptime://results/llama3.1-25.04")
    told = {event.extra["job_name"]: event.extra for event in events}
    assert len(told) == len(events)
    assert told.keys() == {row["job_name"] for row in rows if row["workload"] == "llama3.1-25.04"}
    for row in rows:
        if row["job_name"] in told:
            extra = told[row["job_name"]]
            assert (extra["state"], extra["verdict"]) == ("valid", "insufficient history")
            for name in ("label", "dag_run_id", "step_time_mean_s", "mfu_percent", "against_publication"):
                assert extra[name] == row[name], name
    named = {(ti.task_id, ti.rendered_map_index) for ti in dag_run.get_task_instances()}
    assert ("performance.wait", "nemotron4·tiny·fp32·1") in named
    assert ("checkpoint.load.wait", "llama3.1·tiny·fp32·1·checkpoint load") in named
    assert ("confirmation.performance.submit", None) in named, "nothing is suspected, so nothing is run again"
