"""Records of runs as the task `parse` writes them: real jobs on the local cluster, and a whole DAG run."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from steptime import __version__
from steptime.clusters.base import JobState
from steptime.measure.record import REDACTED
from steptime.settings import store_url
from steptime.store.database import read_connection
from steptime.store.run_queries import Store
from steptime.store.run_records import RunRecord
from steptime.store.schema import jobs, metadata

from .conftest import event_of, task_of, trigger_of
from .test_submit import submit  # noqa: F401 (a fixture)

pytestmark = pytest.mark.long

CANARY = "canary-7c1e"
PASSWORD = "hunter-2a8d"


@pytest.fixture
def parse(make_context):
    """Return a function that runs `parse` on what `submit` passed on, and returns the stored result."""

    def run(submitted):
        handle = task_of("performance.parse").execute(make_context(submitted=submitted))
        return Store().measured(handle["job"])

    return run


@pytest.fixture
def wait_for(make_context):
    """Return a function that waits for the end of the job that `submit` passed on."""
    return lambda submitted: asyncio.run(event_of(trigger_of(submitted, make_context())))


def recorded(read):
    return RunRecord.model_validate_json(read.record)


def test_a_job_that_has_ended_has_its_record(submission, wait_for, parse):
    submitted = submission(STAND_IN_STEP_S="0.001")
    wait_for(submitted)

    read = parse(submitted)

    record = recorded(read)
    assert (record.run, record.job, record.status) == (read.run, read.job, read.status)
    assert (record.request, record.attempt) == (read.submitted.request, 1)
    assert record.status.state is JobState.SUCCEEDED
    assert record.status.started_at is not None
    assert record.versions == {"nemo": "none", "megatron_core": "none", "torch": "none", "python": "3"}
    assert record.nodes == ("localhost",)
    provenance = record.provenance
    assert provenance.steptime_version == __version__
    assert provenance.script == Path(submitted["job"]["directory"], "job.sh").read_text()
    assert provenance.environment["STAND_IN_STEP_S"] == "0.001"
    assert provenance.environment["OMP_NUM_THREADS"] == "1"
    assert provenance.task_id == "performance.wait"
    assert (
        provenance.dag_run == f"{submitted['provenance']['dag_id']}/{submitted['provenance']['dag_run_id']}"
    )


def test_a_job_that_its_cluster_has_forgotten_keeps_its_end_and_its_record(submission, wait_for, parse, home):
    submitted = submission(STAND_IN_STEP_S="0.001")
    wait_for(submitted)
    first = parse(submitted)
    shutil.rmtree(home / "clusters" / "local" / "jobs" / submitted["job"]["name"])

    assert parse(submitted) == first


def test_earlier_attempts_are_in_the_record_with_how_they_ended(
    submit,  # noqa: F811
    parse,
):
    first = submit(max_tries=2)
    cleared = submit(max_tries=3)  # cancels the job before
    log = Path(cleared.job.log_path)
    log.touch()  # `parse` ends the job, perhaps before the stand-in has written a log

    record = recorded(parse(cleared.model_dump(mode="json")))

    [before] = record.earlier_attempts
    assert before.job == first.job
    assert before.status.state is JobState.CANCELLED
    assert record.job == cleared.job
    assert record.status.state is JobState.CANCELLED


def printed_and_logged(capfd):
    logs = Path(os.environ["AIRFLOW_HOME"], "logs").rglob("*.log")
    return "".join([*capfd.readouterr(), *(log.read_text() for log in logs)])


@pytest.mark.service
@pytest.mark.filterwarnings("ignore:Using `httpx` with")
def test_a_secret_that_got_into_a_run_is_in_no_record_result_or_log(run_dag, home, monkeypatch, capfd):
    # Secrets must stay out of the record even if the check of the environment does not recognise them.
    for module in ("steptime.recipes.planning", "steptime.clusters.jobscript"):
        monkeypatch.setattr(f"{module}.check_environment", lambda _: None)
    proxy = f"http://ada:{PASSWORD}@proxy.example:3128"

    dag_run = run_dag(gpus="1", environment={"MY_TOKEN": CANARY, "SOME_PROXY": proxy})

    assert dag_run.state == "success"
    [row] = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    record = json.loads(Store().record(row["job_name"])["content"])
    shown = {"MY_TOKEN": REDACTED, "SOME_PROXY": f"http://ada:{REDACTED}@proxy.example:3128"}
    assert record["run"]["environment"] == record["provenance"]["options"]["environment"] == shown
    assert record["provenance"]["environment"].items() >= shown.items()
    [script] = home.glob("experiments/**/job.sh")
    assert CANARY in script.read_text(), "the job itself got it"
    told = printed_and_logged(capfd)
    assert "its script:" in told
    assert "MY_TOKEN=" in told
    # The ledger keeps the environment that the cluster gets, as a resubmission needs it.
    tables = [table for table in metadata.sorted_tables if table is not jobs]
    with read_connection(store_url()) as connection:
        stored = {table.name: repr(connection.execute(table.select()).all()) for table in tables}
    assert row["job_name"] in stored["records"]
    for secret in (CANARY, PASSWORD):
        assert secret not in told
        assert [name for name, rows in stored.items() if secret in rows] == []
