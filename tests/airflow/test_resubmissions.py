"""A run whose job the cluster failed is resubmitted on other nodes, a limited number of times."""

import asyncio
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from sync_ledger import ledger

from steptime.airflow.base import task_key
from steptime.airflow.triggers import TrainingTrigger
from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.config import ClusterConfig
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import UserError
from steptime.store.ledger import latest_submitted

from .conftest import (
    KilledError,
    noted,
    state_of,
    submit_task,
    submitted_job,
    task_of,
    wait_task,
)

pytestmark = pytest.mark.long


@pytest.fixture
def lose(cluster, monkeypatch):
    """Return a function that makes the cluster fail a job on these nodes, and returns the trigger's event."""
    lost = {}
    poll = LocalCluster.poll

    async def with_faults(self, names):
        return {name: lost.get(name, status) for name, status in (await poll(self, names)).items()}

    def lose_job(job, *nodes):
        asyncio.run(cluster.cancel(job.name))
        lost[job.name] = JobStatus(
            state=JobState.FAILED, reason="a node failed", cluster_fault=True, failed_nodes=nodes
        )
        return {"job": job.name, "status": lost[job.name].model_dump(mode="json")}

    monkeypatch.setattr(LocalCluster, "poll", with_faults)
    return lose_job


@pytest.fixture
def avoided(monkeypatch):
    """Return the nodes that each job script was told to avoid."""
    seen = []

    def avoiding(self, run, nodes):
        if nodes:
            seen.append(nodes)
        return run

    def excluded_nodes(self, run):
        return seen[-1] if seen else ()

    monkeypatch.setattr(ClusterConfig, "avoiding", avoiding)
    monkeypatch.setattr(ClusterConfig, "excluded_nodes", excluded_nodes)
    return seen


def waits_for(task, context, event=None):
    """Return the job for which the task defers: at its start, or after an event."""
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context) if event is None else task.execute_complete(context, event)
    assert isinstance(deferred.value.trigger, TrainingTrigger)
    in_ledger = noted(deferred.value.trigger.job)
    assert in_ledger.job is not None
    return in_ledger.job


def live_jobs(cluster):
    return [job.name for job in asyncio.run(cluster.live_jobs())]


def test_a_run_is_resubmitted_in_place_of_a_job_that_the_cluster_failed(
    submission,
    make_context,
    lose,
    avoided,
    cluster,
    capsys,
):
    submitted, context = submission(STAND_IN="hang"), make_context()
    first = waits_for(wait_task(submitted), context)

    second = waits_for(wait_task(submitted), context, lose(first, "node3"))
    third = waits_for(wait_task(submitted), context, lose(second, "node5", "node3"))

    assert len({first.name, second.name, third.name}) == 3
    assert [noted(job.name).attempt for job in (first, second, third)] == [1, 2, 3]
    assert len({first.directory, second.directory, third.directory}) == 3
    assert list(dict.fromkeys(avoided)) == [("node3",), ("node3", "node5")]
    assert live_jobs(cluster) == [third.name]
    handed_on = latest_submitted(ledger.jobs_of_task(task_key(context)))
    assert handed_on is not None
    assert handed_on.job == third
    assert handed_on.excluded_nodes == ("node3", "node5")
    assert Path(third.directory).name in Path(handed_on.job.directory, "job.sh").read_text()
    assert "resubmitting the run, 2 of at most 2 times, without node3, node5" in capsys.readouterr().out
    task_of("performance.end").execute(context)
    assert state_of(cluster, third.name) is JobState.CANCELLED, "nobody waits for it"


def test_a_run_whose_log_names_a_failed_node_is_resubmitted_without_it(
    submission, make_context, avoided, cluster
):
    """Here srun ended with an error and Slurm's record says no more, so the log is what names the node."""
    submitted, context = submission(STAND_IN="hang"), make_context()
    first = waits_for(wait_task(submitted), context)
    asyncio.run(cluster.cancel(first.name))
    with Path(first.log_path).open("a") as log:
        log.write("srun: error: Node failure on node3\n")
    status = JobStatus(state=JobState.FAILED, exit_code=1, nodes=("node2", "node3"))
    event = {"job": first.name, "status": status.model_dump(mode="json")}
    second = waits_for(wait_task(submitted), context, event)
    assert set(avoided) == {("node3",)}
    assert live_jobs(cluster) == [second.name]


def test_a_run_is_resubmitted_as_often_as_the_clusters_file_allows(
    submission, make_context, lose, home, cluster
):
    file = home.with_name("config") / "clusters" / "local.yaml"
    file.write_text(f"{file.read_text()}resubmissions: 1\n")
    submitted, context = submission(STAND_IN="hang"), make_context()
    first = waits_for(wait_task(submitted), context)
    second = waits_for(wait_task(submitted), context, lose(first))

    with pytest.raises(AirflowFailException, match=rf"job '{second.name}' failed \(a node failed\)"):
        wait_task(submitted).execute_complete(context, lose(second))

    assert live_jobs(cluster) == []


def test_the_trainings_own_failure_is_not_resubmitted(submission, make_context, cluster):
    submitted, context = submission(STAND_IN="hang"), make_context()
    job = waits_for(wait_task(submitted), context)
    asyncio.run(cluster.cancel(job.name))
    for status in (
        JobStatus(state=JobState.FAILED, exit_code=1),
        JobStatus(state=JobState.CANCELLED),
        JobStatus(state=JobState.TIMED_OUT),
        JobStatus(state=JobState.UNKNOWN, cluster_fault=True),
    ):
        event = {"job": job.name, "status": status.model_dump(mode="json")}
        with pytest.raises(AirflowException):
            wait_task(submitted).execute_complete(context, event)

    assert live_jobs(cluster) == []


@pytest.mark.parametrize("submitted_before", [False, True])
def test_a_worker_killed_around_the_submit_comes_back_to_the_same_job(
    submission,
    make_context,
    lose,
    avoided,
    cluster,
    monkeypatch,
    submitted_before,
):
    submitted, context = submission(STAND_IN="hang"), make_context()
    event = lose(waits_for(wait_task(submitted), context), "node3")
    submit, names = LocalCluster.submit, []

    async def killed(self, spec):
        names.append(spec.name)
        if submitted_before:
            await submit(self, spec)
        raise KilledError

    monkeypatch.setattr(LocalCluster, "submit", killed)
    with pytest.raises(KilledError):
        wait_task(submitted).execute_complete(context, event)
    monkeypatch.setattr(LocalCluster, "submit", submit)

    again = waits_for(wait_task(submitted), context)  # a retry starts from the beginning

    assert [again.name] == names == live_jobs(cluster)
    assert set(avoided) == {("node3",)}


@pytest.mark.usefixtures("avoided")
def test_a_cluster_that_cannot_run_it_without_the_failed_nodes_is_told_in_one_sentence(
    submission, make_context, lose, monkeypatch
):
    submitted, context = submission(STAND_IN="hang"), make_context()
    event = lose(waits_for(wait_task(submitted), context), "node3")

    async def refuse(self, spec):
        raise UserError(f"local cannot run job {spec.name}: there are not enough nodes")

    monkeypatch.setattr(LocalCluster, "submit", refuse)
    said = r"the run cannot be resubmitted on nodes other than node3: .* there are not enough nodes"
    with pytest.raises(AirflowFailException, match=said):
        wait_task(submitted).execute_complete(context, event)


def test_a_task_taken_away_while_it_resubmits_leaves_no_job(
    submission,
    make_context,
    lose,
    cluster,
    airflow_says,
    monkeypatch,
):
    submitted, context = submission(STAND_IN="hang"), make_context()
    airflow_says("failed")
    event = lose(waits_for(wait_task(submitted), context))
    task, submit = wait_task(submitted), LocalCluster.submit

    async def failed_by_hand_before(self, spec):
        await asyncio.to_thread(task.on_kill)
        return await submit(self, spec)

    monkeypatch.setattr(LocalCluster, "submit", failed_by_hand_before)
    with pytest.raises(AirflowFailException, match="ended or deleted from outside"):
        task.execute_complete(context, event)

    assert live_jobs(cluster) == []


def test_after_a_clear_everything_begins_anew_and_nothing_else_lives(
    a_run, staged, make_context, lose, cluster
):
    def submit(max_tries):
        handle = submit_task(a_run(STAND_IN="hang"), staged).execute(make_context(max_tries=max_tries))
        return submitted_job(handle)

    submitted, context = submit(2), make_context()
    second = waits_for(wait_task(submitted), context, lose(waits_for(wait_task(submitted), context)))

    cleared = submit(3)  # on_kill was not called, so the second job still lives

    job = waits_for(wait_task(cleared), context)
    assert job.name not in (submitted["job"]["name"], second.name)
    assert live_jobs(cluster) == [job.name]
    in_ledger = noted(job.name)
    assert in_ledger.resubmission == 0
