"""The limit on GPUs that jobs hold at a time: which jobs get them, in which order; on both databases."""

import multiprocessing

import pytest
from sync_ledger import ledger

from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.config import load_cluster
from steptime.store import database

from .test_ledger import job_of

_FORK = multiprocessing.get_context("fork")


@pytest.fixture
def limit():
    """Return a function that returns the cluster `local` with this limit on GPUs."""
    return lambda gpus: load_cluster("local").model_copy(update={"gpus": gpus, "queue_patience_h": 1.0})


@pytest.fixture
def waits(ledger_job, store):
    """Return a function that adds a job that waits for GPUs since `at`."""

    def add(name, *, at, **fields):
        waiting = {"cluster": "local", "waits_for_gpus": True, "created_at": at, "asked_at": at}
        job = ledger_job(name, **{**waiting, **fields})
        ledger.add(job)
        return job

    return add


def end(job):
    ledger.store_status(job.name, JobStatus(state=JobState.CANCELLED), 20.0)


def test_jobs_get_gpus_in_the_order_in_which_they_came(waits, limit):
    first, second, third = (waits(name, at=number, gpus=2) for number, name in enumerate("abc"))
    small = waits("d", at=5, gpus=1)
    four = limit(4)

    assert [ledger.reserve_gpus(job, four, 10) for job in (first, second)] == ["", ""]
    needs = "of the 4 GPUs that jobs on cluster 'local' may hold at a time: 4 are in use"
    assert ledger.reserve_gpus(third, four, 10) == f"needs 2 {needs}"
    assert ledger.reserve_gpus(small, four, 10) == f"needs 1 {needs}, and 1 job came before it"
    end(first)
    assert ledger.reserve_gpus(small, four, 10).endswith("2 are in use, and 1 job came before it")
    assert ledger.reserve_gpus(third, four, 10) == ""
    assert ledger.reserve_gpus(small, four, 10) == f"needs 1 {needs}"
    assert ledger.reserve_gpus(small, limit(5), 10) == "", "the file was changed"
    waiting = ledger.find("d")
    assert waiting is not None
    assert not waiting.waits_for_gpus


def test_what_has_crashed_is_passed_over_and_holds_nothing_for_ever(waits, limit):
    limit_of_1 = limit(1)
    lost, crashed, last = (waits(name, at=number, gpus=1) for number, name in enumerate("abc"))
    assert ledger.reserve_gpus(lost, limit_of_1, 10) == ""
    assert ledger.reserve_gpus(crashed, limit_of_1, 10)

    assert "1 job came before it" in ledger.reserve_gpus(last, limit_of_1, 609)
    assert "1 are in use" in ledger.reserve_gpus(last, limit_of_1, 610), "which has not asked for ten minutes"
    assert ledger.reserve_gpus(last, limit_of_1, 3610) == "", "which was not submitted for an hour"

    ledger.store_submission(job_of(last))
    again = waits("d", at=4000, gpus=1)
    day_s = 86_400
    longest = last.created_at + 3600 + last.time_limit_s + day_s
    assert [bool(ledger.reserve_gpus(again, limit_of_1, longest + more)) for more in (-1, 0)] == [True, False]


def _ask(barrier, job, config):
    barrier.wait(60)
    raise SystemExit(bool(ledger.reserve_gpus(job, config, 10)))


@pytest.mark.service
def test_jobs_that_ask_at_once_do_not_all_slip_through(waits, limit):
    jobs = [waits(f"job-{number}", at=1, gpus=4) for number in range(6)]
    database.close_engines()
    barrier = _FORK.Barrier(6)
    processes = [_FORK.Process(target=_ask, args=(barrier, job, limit(8))) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)

    exits = [process.exitcode for process in processes]
    # A job is refused if it asks before an earlier one has asked.
    assert exits.count(0) <= 2
    assert set(exits) <= {0, 1}
    [one, two, *others] = jobs
    assert [bool(ledger.reserve_gpus(job, limit(8), 11)) for job in (one, two, *others)] == [False] * 2 + [
        True
    ] * 4
