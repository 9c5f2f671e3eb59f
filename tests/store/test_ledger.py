"""The job ledger on SQLite and PostgreSQL."""

import pytest
from sync_ledger import ledger

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.errors import StoreUnavailable, SystemFailure
from steptime.store import database
from steptime.store.ledger import Ledger, TaskKey
from steptime.store.run_queries import Store

from .conftest import OURS


def key(**fields):
    of_job = {
        "dag_id": "steptime_llama3.1-25.04",
        "dag_run_id": "manual",
        "task_group": "performance",
        "map_index": 0,
    }
    return TaskKey.model_validate({"installations": ("ours", "too"), **of_job, **fields})


def job_of(row, **fields):
    its_own = {"cluster": row.cluster, "name": row.name, "job_id": "7", "submitted_at": 1001.0}
    paths = {"directory": row.directory, "log_path": row.log_path}
    return Job.model_validate({**its_own, **paths, "installation": OURS, **fields})


def test_a_job_is_in_the_ledger_before_and_after_its_cluster_has_it(ledger_job, store):
    planned = ledger_job(excluded_nodes=("node1", "node2"))
    ledger.add(planned)
    assert ledger.find(planned.name) == planned
    assert Store(store).excluded_nodes(planned.name) == ("node1", "node2")
    assert Store(store).excluded_nodes("another") == ()
    assert not ledger.was_reached(planned.cluster)
    assert (planned.job, planned.submitted) == (None, None)
    with pytest.raises(SystemFailure) as twice:
        ledger.add(planned)
    assert not isinstance(twice.value, StoreUnavailable), "waiting would not help"

    ledger.store_submission(job_of(planned))

    job = ledger.find(planned.name)
    assert job is not None
    assert job.job == job_of(planned)
    assert job.submitted is not None
    assert job.submitted.run == planned.run
    assert (job.state, job.ended_at) == (JobState.QUEUED, None)
    assert ledger.find("another") is None
    assert (ledger.was_reached(planned.cluster), ledger.was_reached("another")) == (True, False)


@pytest.mark.usefixtures("store")
def test_jobs_are_found_by_their_task_and_their_cell(ledger_job):
    for name, fields in {
        "first": {"attempt": 1, "created_at": 1.0},
        "second": {"attempt": 2, "created_at": 2.0, "installation_id": "too"},
        "moved": {"map_index": 1, "created_at": 3.0},
        "theirs": {"installation_id": "other", "created_at": 9.0},
        "load": {"task_group": "checkpoint.load", "cell": "other", "created_at": 9.0},
        "next": {"dag_run_id": "next", "created_at": 9.0},
    }.items():
        ledger.add(ledger_job(name, **fields))

    def names(jobs):
        return [job.name for job in jobs]

    cell = ledger_job().cell
    assert names(ledger.jobs_of_task(key())) == ["first", "second"]
    assert names(ledger.jobs_of_task(key(), cell)) == ["first", "second", "moved"]
    latest = ledger.latest_job(key())
    assert latest is not None
    assert latest.name == "second"
    assert ledger.latest_job(key(map_index=7)) is None


@pytest.mark.long
@pytest.mark.usefixtures("store")
def test_a_job_is_open_until_it_has_ended(ledger_job):
    def note(status):
        ledger.store_status("job-1", status, now=50.0)
        stored = ledger.find("job-1")
        assert stored is not None
        assert (stored.state, stored.reason) == (status.state, status.reason)
        return stored.ended_at, [job.name for job in ledger.open_jobs("eos")]

    ledger.add(ledger_job("elsewhere", cluster="dgx"))
    ledger.add(ledger_job())
    assert note(JobStatus(state=JobState.RUNNING, started_at=10.0)) == (None, ["job-1"])
    assert note(JobStatus(state=JobState.UNKNOWN, reason="it vanished")) == (None, ["job-1"])
    assert note(JobStatus(state=JobState.TIMED_OUT, started_at=10.0, ended_at=20.0)) == (20.0, [])
    assert note(JobStatus(state=JobState.CANCELLED)) == (50.0, [])


@pytest.mark.usefixtures("store")
def test_a_job_is_abandoned_and_taken_up_again(ledger_job):
    ledger.add(ledger_job())
    for abandoned in (True, False):
        ledger.mark_abandoned("job-1", abandoned=abandoned)
        job = ledger.find("job-1")
        assert job is not None
        assert job.abandoned is abandoned


async def test_a_store_that_does_not_answer_is_waited_for(ledger_job, store, monkeypatch):
    """PostgreSQL is away for two tries; each warning has the cause and no password."""
    warnings = []
    pauses = []

    def warn(sentence):
        warnings.append(sentence)
        if len(warnings) == 2:
            waiting.url = store

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    waiting = Ledger(warn, url="postgresql://steptime:secret@127.0.0.1:1/nowhere")

    await waiting.add(ledger_job())

    assert await waiting.find("job-1") is not None
    assert [round(pause) for pause in pauses] == [1, 2]
    assert ["127.0.0.1" in text and "secret" not in text for text in warnings] == [True, True]


async def test_a_store_that_stays_away_is_given_up(monkeypatch):
    monkeypatch.setattr(database, "STORE_PATIENCE_S", 0)
    waiting = Ledger(print, url="postgresql://steptime@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        await waiting.find("job-1")
