"""Submitting: a retry finds the same job, a cleared task gets a new one, and no run has two live jobs."""

import asyncio
import os
from datetime import timedelta

import pytest
import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from steptime.airflow.base import task_key
from steptime.airflow.installation import KEY_PREFIX
from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SubmitLimit, SystemFailure
from steptime.recipes.models import Mode
from steptime.runs.launch import end_job
from steptime.store.budgets import budget_balances
from steptime.store.ledger import Ledger
from steptime.store.run_models import Submission

from .conftest import (
    RUN_AFTER,
    KilledError,
    noted,
    state_of,
    submit_task,
    submitted_job,
    task_of,
)

pytestmark = pytest.mark.long


@pytest.fixture
def submit(a_run, staged, make_context):
    """Return a function that makes one try of `submit` for an endless run, as this task instance."""

    def try_once(**task_instance):
        task = submit_task(a_run(STAND_IN="hang"), staged)
        return Submission.model_validate(submitted_job(task.execute(make_context(**task_instance))))

    return try_once


@pytest.mark.parametrize("submitted_before", [False, True])
def test_a_retry_submits_the_job_that_the_ledger_had_before_the_worker_died(
    submit,
    cluster,
    variables,
    monkeypatch,
    submitted_before,
):
    """The retry keeps its job although another installation has appeared that sorts first."""

    names = []
    submit_job = LocalCluster.submit

    async def killed(self, spec):
        names.append(spec.name)
        in_ledger = noted(spec.name)
        assert in_ledger.job is None
        if submitted_before:
            await submit_job(self, spec)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "submit", killed)
        with pytest.raises(KilledError):
            submit()
    variables.kept[f"{KEY_PREFIX}0"] = ""

    second = submit()

    assert [second.job.name] == names == [job.name for job in asyncio.run(cluster.live_jobs())]
    assert second.attempt == 1


def test_a_cleared_task_begins_a_new_attempt_and_ends_the_job_before(submit, cluster, capsys):
    """The log says which attempt this is, and what became of the one before."""
    first = submit(max_tries=2)
    assert submit(max_tries=2).job == first.job
    assert f"attempt 1 was begun before: its job is {first.job.name}" in capsys.readouterr().out
    cleared = submit(max_tries=3)
    assert f"job {first.job.name} is running and nobody waits for it: ending it" in capsys.readouterr().out

    assert cleared.job.name != first.job.name
    assert cleared.job.directory != first.job.directory
    assert state_of(cluster, first.job.name) is JobState.CANCELLED
    assert state_of(cluster, cleared.job.name).is_live
    in_ledger = noted(first.job.name)
    assert in_ledger.state is JobState.CANCELLED


def test_a_retry_after_its_job_was_cancelled_begins_a_new_attempt(submit, cluster):
    first = submit()
    asyncio.run(end_job(cluster, first.job.name, Ledger(print)))

    assert submit().job.name != first.job.name


def test_the_job_of_a_deleted_dag_run_of_the_same_id_is_not_taken_over(submit, cluster):
    first = submit()

    second = submit(run_after=RUN_AFTER + timedelta(hours=1))

    assert second.job.name != first.job.name
    assert [job.name for job in asyncio.run(cluster.live_jobs())] == [second.job.name]


def test_a_job_of_a_ledger_that_was_lost_is_ended_and_its_name_not_used_again(
    submit, cluster, monkeypatch, tmp_path
):
    first = submit()
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path}/another.db")

    second = submit()

    assert second.attempt == 2
    assert [job.name for job in asyncio.run(cluster.live_jobs())] == [second.job.name]
    assert not state_of(cluster, first.job.name).is_live


def test_a_job_that_was_noted_and_never_submitted_is_no_trouble_at_the_end(
    a_run, staged, make_context, monkeypatch
):
    names = []

    async def fail(_, spec):
        names.append(spec.name)
        raise SystemFailure("sbatch crashed")

    monkeypatch.setattr(LocalCluster, "submit", fail)
    with pytest.raises(AirflowException, match="sbatch crashed"):
        submit_task(a_run(), staged).execute(make_context())

    task_of("performance.end").execute(make_context())

    in_ledger = noted(names[0])
    assert (in_ledger.state, in_ledger.reason) == (JobState.CANCELLED, "never submitted")
    assert in_ledger.ended_at is not None


def test_a_job_whose_end_is_not_settled_is_not_waited_for(submit, make_context, cluster, monkeypatch):
    """On Slurm this happens where the accounting does not say how a job ended: nothing is left to end."""
    left = submit()
    asyncio.run(cluster.cancel(left.job.name))
    not_settled = JobStatus(state=JobState.RUNNING, reason="it has left the queue")

    async def poll(_, names):
        return {
            name: not_settled if name == left.job.name else JobStatus(state=JobState.UNKNOWN)
            for name in names
        }

    monkeypatch.setattr(LocalCluster, "poll", poll)
    task_of("performance.end").execute(make_context())
    ended = asyncio.run(end_job(cluster, left.job.name, Ledger(print)))
    assert (ended.state, ended.reason) == (JobState.UNKNOWN, "it has left the queue")


def test_a_task_taken_away_while_it_submits_leaves_no_job(
    a_run,
    staged,
    cluster,
    make_context,
    airflow_says,
    monkeypatch,
):
    airflow_says("failed")
    operator = submit_task(a_run(STAND_IN="hang"), staged)
    submit, names = LocalCluster.submit, []

    async def killed_before_submitting(self, spec):
        names.append(spec.name)
        await asyncio.to_thread(operator.on_kill)
        return await submit(self, spec)

    monkeypatch.setattr(LocalCluster, "submit", killed_before_submitting)
    with pytest.raises(Exception, match="ended or deleted from outside"):
        operator.execute(make_context())

    assert asyncio.run(cluster.poll(names))[names[0]].state is JobState.CANCELLED


ONE_RUN_GPU_HOURS = 600 / 3600


def refuse_at_a_limit(monkeypatch, times):
    """Make the local cluster refuse the first `times` submissions; return the names of all that it gets."""
    names = []
    submit = LocalCluster.submit

    async def limited(self, spec):
        names.append(spec.name)
        if len(names) <= times:
            raise SubmitLimit(f"refused {spec.name}: QOSMaxSubmitJobPerUserLimit")
        return await submit(self, spec)

    monkeypatch.setattr(LocalCluster, "submit", limited)
    return names


def test_a_job_beyond_a_submit_limit_is_submitted_again_and_committed_once(
    submit, cluster, budget, monkeypatch
):
    budget(1.5 * ONE_RUN_GPU_HOURS)
    names = refuse_at_a_limit(monkeypatch, times=2)

    with structlog.testing.capture_logs() as lines:
        submitted = submit()

    assert names == [submitted.job.name] * 3
    assert state_of(cluster, submitted.job.name).is_live
    [balance] = budget_balances(["local"])
    assert balance.committed_gpu_hours == pytest.approx(ONE_RUN_GPU_HOURS)
    assert ["QOSMaxSubmitJobPerUserLimit" in line["event"] for line in lines].count(True) == 1, lines


def test_a_job_that_is_refused_for_too_long_fails_for_good_and_takes_no_budget(submit, budget, monkeypatch):
    path = budget(1.5 * ONE_RUN_GPU_HOURS)
    path.write_text(f"{path.read_text()}queue_patience_h: 0.0001\n")
    refuse_at_a_limit(monkeypatch, times=99)

    with pytest.raises(AirflowFailException, match="queue_patience_h of cluster 'local' allows"):
        submit()

    [balance] = budget_balances(["local"])
    assert balance.committed_gpu_hours == 0


DF = """#!/bin/sh
echo 'Filesystem 1024-blocks Used Available Capacity Mounted on'
echo '/dev/sda1 100000000 90000000 {free} 90% /shared disk'
exit {code}
"""


@pytest.mark.parametrize(
    ("mode", "free_kib", "code", "refused"),
    [
        (Mode.CHECKPOINT_SAVE, 40_000, 0, True),
        (Mode.CHECKPOINT_SAVE, 60_000, 0, False),
        (Mode.CHECKPOINT_SAVE, 40_000, 1, False),
        (Mode.PERFORMANCE, 40_000, 0, False),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_its_job_exists(
    a_run,
    staged,
    make_context,
    cluster,
    tmp_path,
    monkeypatch,
    mode,
    free_kib,
    code,
    refused,
):
    """The tiny model's checkpoint takes 49 MiB; a df that fails refuses nothing."""
    df = tmp_path / "bin" / "df"
    df.parent.mkdir()
    df.write_text(DF.format(free=free_kib, code=code))
    df.chmod(0o755)
    monkeypatch.setenv("PATH", f"{df.parent}:{os.environ['PATH']}")
    run = a_run(STAND_IN="hang").model_copy(update={"mode": mode})
    task = submit_task(run, staged)
    if not refused:
        assert submitted_job(task.execute(make_context()))
        return
    too_little = r"saves a checkpoint of about 49 MiB, and .* has 39.1 MiB free"
    with pytest.raises(AirflowFailException, match=too_little):
        task.execute(make_context())
    assert asyncio.run(cluster.live_jobs()) == []


@pytest.mark.parametrize(("given", "stored"), [(None, -1), (-1, -1), (0, 0), (3, 3)])
def test_jobs_belong_to_the_map_index_by_which_airflow_stores_their_task(given, stored, make_context):
    """Airflow tells a task that is not mapped of no index, and stores -1."""
    assert task_key(make_context(map_index=given)).map_index == stored
