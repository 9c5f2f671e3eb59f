"""Submitting: retries find the same job, cleared tasks get a new one, and no two ever live for one run."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from end_to_end.driving import wait_until

from steptime.airflow.base import LEFT_KEY, SUBMITTED_KEY, as_json, end_job
from steptime.airflow.installation import KEY_PREFIX
from steptime.clusters.base import Job, JobSpec, JobState, JobStatus, Staged
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SubmitLimit
from steptime.recipes.models import Run
from steptime.results.charges import open_commitments
from steptime.results.models import Submitted

from .conftest import TaskInstance, Variables, submit_task, task_of


@pytest.fixture
def submit(
    a_run: Callable[..., Run],
    staged: Staged,
    make_context: Callable[..., dict[str, Any]],
    airflow_says: Callable[..., Any],
) -> Callable[..., Submitted]:
    """One try of the task `submit` of a run that never ends; keywords are of the task instance."""
    airflow_says(None)  # of the task that is to wait

    def try_once(**task_instance: Any) -> Submitted:
        task = submit_task(a_run(STAND_IN="hang"), staged)
        return Submitted.model_validate(task.execute(make_context(**task_instance)))

    return try_once


def state(cluster: LocalCluster, submission: Submitted) -> JobState:
    return asyncio.run(cluster.poll([submission.job.name]))[submission.job.name].state


def test_a_retry_finds_the_job_of_the_try_before(
    submit: Callable[..., Submitted], cluster: LocalCluster
) -> None:
    first, second = submit(), submit()

    assert second.job == first.job
    assert state(cluster, first).is_live


def test_a_retry_submits_under_the_name_that_the_try_before_had_taken(
    submit: Callable[..., Submitted], cluster: LocalCluster, home: Path, variables: Variables
) -> None:
    """The worker died before it had submitted; and meanwhile there is an installation that comes first."""
    first = submit()
    asyncio.run(cluster.cancel(first.job.name))
    shutil.rmtree(home / "clusters" / "local" / "jobs" / first.job.name)
    variables.kept[f"{KEY_PREFIX}0"] = ""

    second = submit()

    assert (second.attempt, second.job.name) == (1, first.job.name)
    assert state(cluster, second).is_live


def test_it_keeps_what_was_asked_for_without_what_was_left_to_defaults(
    a_run: Callable[..., Run],
    staged: Staged,
    make_context: Callable[..., dict[str, Any]],
    airflow_says: Callable[..., Any],
) -> None:
    airflow_says(None)
    context = make_context()
    context["params"] = {"max_steps": 30, "dtype": None, "proxy": False}
    made_by = Submitted.model_validate(submit_task(a_run(), staged).execute(context)).made_by
    assert made_by.options == {"max_steps": 30, "proxy": False}


@pytest.mark.parametrize("state_of_wait", [None, "restarting"])
def test_a_cleared_task_starts_anew_and_ends_the_job_before(
    submit: Callable[..., Submitted],
    cluster: LocalCluster,
    airflow_says: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    *,
    state_of_wait: str | None,
) -> None:
    """Its log says which attempt it is at, and what became of the one before."""
    first = submit(max_tries=2)
    assert submit(max_tries=2).job == first.job
    assert f"attempt 1 was begun before: its job is {first.job.name}" in capsys.readouterr().out
    airflow_says(state_of_wait)
    cleared = submit(max_tries=3)
    said = capsys.readouterr().out
    assert f"attempt 1 is over (cleared or cancelled); its job is ended: {first.job.name}" in said

    assert cleared.job.name != first.job.name
    assert cleared.job.directory != first.job.directory
    assert state(cluster, first) is JobState.CANCELLED
    assert state(cluster, cleared).is_live


@pytest.mark.parametrize("state_of_wait", ["deferred", "up_for_retry", "success", "failed"])
def test_a_task_that_was_cleared_because_another_one_was_hands_on_the_job_it_had(
    submit: Callable[..., Submitted],
    cluster: LocalCluster,
    home: Path,
    airflow_says: Callable[..., Any],
    state_of_wait: str,
) -> None:
    """Clearing one mapped `wait` clears the `submit` of all: only those start anew whose `wait` does."""
    first = submit(max_tries=2)
    airflow_says(state_of_wait)
    pushed = {SUBMITTED_KEY: first.model_dump(mode="json")}

    assert submit(max_tries=3, pushed=pushed).job == first.job
    assert state(cluster, first).is_live

    asyncio.run(cluster.cancel(first.job.name))  # nobody could end it behind the next line
    shutil.rmtree(home / "clusters" / "local" / "jobs" / first.job.name)
    assert submit(max_tries=3, pushed=pushed).job == first.job
    assert asyncio.run(cluster.find(first.job.name)) is None, (
        "what the cluster has forgotten is not run again"
    )


@pytest.mark.parametrize("max_tries", [2, 3])
def test_a_task_whose_job_nobody_would_wait_for_submits_none(
    submit: Callable[..., Submitted], cluster: LocalCluster, airflow_says: Callable[..., Any], max_tries: int
) -> None:
    """It had failed, perhaps before its attempt began, when somebody cleared the `wait` of another cell."""
    if max_tries > 2:
        asyncio.run(cluster.cancel(submit(max_tries=2).job.name))
    airflow_says("upstream_failed")

    with pytest.raises(AirflowException, match="is upstream_failed and has left no job"):
        submit(max_tries=max_tries)
    assert asyncio.run(cluster.live_jobs()) == []


def test_a_cleared_task_goes_on_with_a_job_that_was_left_out_of_reach(
    submit: Callable[..., Submitted], cluster: LocalCluster
) -> None:
    first = submit(max_tries=2)
    left = {LEFT_KEY: first.job.name}

    assert submit(max_tries=3, pushed=left).job == first.job
    assert state(cluster, first).is_live
    asyncio.run(cluster.cancel(first.job.name))
    assert submit(max_tries=3, pushed=left).job.name != first.job.name, "what failed meanwhile starts anew"


def test_a_cleared_task_goes_on_with_a_job_that_was_left_and_has_succeeded_meanwhile(
    a_run: Callable[..., Run],
    staged: Staged,
    *,
    cluster: LocalCluster,
    make_context: Callable[..., dict[str, Any]],
    airflow_says: Callable[..., Any],
) -> None:
    airflow_says(None)  # of the task that is to wait

    def submit(**task_instance: Any) -> Submitted:
        return Submitted.model_validate(submit_task(a_run(), staged).execute(make_context(**task_instance)))

    first = submit(max_tries=2)
    wait_until("the job's end", lambda: state(cluster, first) is JobState.SUCCEEDED)

    assert submit(max_tries=3, pushed={LEFT_KEY: first.job.name}).job == first.job
    assert submit(max_tries=4).job.name != first.job.name, "but it was not left"


def test_a_retry_after_a_cancel_from_outside_starts_anew(
    submit: Callable[..., Submitted], cluster: LocalCluster
) -> None:
    first = submit()
    asyncio.run(cluster.cancel(first.job.name))

    assert submit().job.name != first.job.name


def test_the_job_of_a_deleted_dag_run_of_the_same_id_is_not_taken_over(
    submit: Callable[..., Submitted], make_context: Callable[..., dict[str, Any]]
) -> None:
    first = submit()
    make_context()["task_state_store"].kept.clear()

    assert submit().job.name != first.job.name


def test_tries_differ_by_run_and_by_dag_run(submit: Callable[..., Submitted]) -> None:
    assert submit(run_id="one").job.name != submit(run_id="two").job.name


def test_a_job_that_nobody_waits_for_is_ended(
    submit: Callable[..., Submitted], make_context: Callable[..., dict[str, Any]], cluster: LocalCluster
) -> None:
    left = submit()
    task_of("performance.end", submitted=left.model_dump(mode="json")).execute(make_context())

    assert state(cluster, left) is JobState.CANCELLED


def test_a_job_whose_end_is_not_settled_is_not_waited_for(
    submit: Callable[..., Submitted],
    make_context: Callable[..., dict[str, Any]],
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Slurm, where the accounting does not say how it ended: there is nothing left to end."""
    left = submit()
    asyncio.run(cluster.cancel(left.job.name))
    not_settled = JobStatus(state=JobState.RUNNING, reason="it has left the queue")

    async def poll(_: LocalCluster, names: Sequence[str]) -> dict[str, JobStatus]:
        return {
            name: not_settled if name == left.job.name else JobStatus(state=JobState.UNKNOWN)
            for name in names
        }

    monkeypatch.setattr(LocalCluster, "poll", poll)
    task_of("performance.end", submitted=left.model_dump(mode="json")).execute(make_context())
    ended = asyncio.run(end_job(cluster, left.job))
    assert (ended.state, ended.reason) == (JobState.UNKNOWN, "it has left the queue")


@pytest.mark.service
def test_a_worker_killed_after_the_job_started_is_retried_to_the_same_job(
    submit: Callable[..., Submitted], home: Path, staged: Staged, a_run: Callable[..., Run], tmp_path: Path
) -> None:
    """The worker is a process of its own, killed between the start of the job and the end of its task."""
    run, store = tmp_path / "run.json", tmp_path / "store.json"
    run.write_text(a_run(STAND_IN="hang").model_dump_json())
    worker = [sys.executable, str(Path(__file__).with_name("submitting_worker.py")), run, store]
    environment = os.environ | {"STAGED": staged.model_dump_json()}

    first = subprocess.Popen([*worker, "hang"], env=environment)
    started = home / "experiments"
    deadline = time.monotonic() + 240
    while not list(started.glob("*/*/*/started")):
        assert first.poll() is None, "the worker ended before its job had started"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL

    second = subprocess.run([*worker, "return"], env=environment, capture_output=True, text=True, check=True)

    job = Submitted.model_validate_json(second.stdout.splitlines()[-1]).job  # after Airflow's own lines
    processes = [line for path in started.glob("*/*/*/started") for line in path.read_text().splitlines()]
    assert len(processes) == 1
    assert Path(job.directory, "started").is_file()


def test_a_task_taken_away_while_it_submits_leaves_no_job(
    a_run: Callable[..., Run],
    staged: Staged,
    *,
    cluster: LocalCluster,
    make_context: Callable[..., dict[str, Any]],
    airflow_says: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    airflow_says(None, "failed")  # the task that is to wait; then this one
    operator = submit_task(a_run(STAND_IN="hang"), staged)
    submit, names = LocalCluster.submit, []

    async def killed_before_submitting(self: LocalCluster, spec: Any) -> Any:
        names.append(spec.name)
        await asyncio.to_thread(operator.on_kill)
        return await submit(self, spec)

    monkeypatch.setattr(LocalCluster, "submit", killed_before_submitting)
    with pytest.raises(Exception, match="taken away"):
        operator.execute(make_context())

    assert asyncio.run(cluster.poll(names))[names[0]].state is JobState.CANCELLED


def test_the_context_of_tests_is_that_of_airflow() -> None:
    """The parts that operators use exist in Airflow's own classes, under these names."""
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    assert {"get", "set"} <= set(dir(TaskStateStoreAccessor))
    used = {"xcom_push"}
    assert used <= set(dir(RuntimeTaskInstance)) & set(dir(TaskInstance))
    assert {"max_tries", "dag_id", "run_id", "map_index"} <= set(RuntimeTaskInstance.model_fields)


def test_a_new_default_changes_no_run_in_flight(a_run: Callable[..., Run]) -> None:
    class RunOfTheNextRelease(Run):
        seed: int = 4321

    run = a_run()
    assert RunOfTheNextRelease.model_validate(as_json(run)).seed == run.seed


ONE_RUN_GPU_HOURS = 600 / 3600


def refuse_at_a_limit(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Make the local cluster refuse so many submissions; return the names of those that it gets."""
    names: list[str] = []
    submit = LocalCluster.submit

    async def limited(self: LocalCluster, spec: JobSpec) -> Job:
        names.append(spec.name)
        if len(names) <= times:
            raise SubmitLimit(f"refused {spec.name}: QOSMaxSubmitJobPerUserLimit")
        return await submit(self, spec)

    monkeypatch.setattr(LocalCluster, "submit", limited)
    return names


def test_a_job_beyond_a_submit_limit_is_submitted_again_and_committed_once(
    submit: Callable[..., Submitted],
    cluster: LocalCluster,
    budget: Callable[[float], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget(1.5 * ONE_RUN_GPU_HOURS)
    names = refuse_at_a_limit(monkeypatch, times=2)

    with structlog.testing.capture_logs() as lines:
        submitted = submit()

    assert names == [submitted.job.name] * 3
    assert state(cluster, submitted).is_live
    assert open_commitments("local") == ({submitted.job.name}, set())
    assert ["QOSMaxSubmitJobPerUserLimit" in line["event"] for line in lines].count(True) == 1, lines


def test_a_job_that_is_refused_for_too_long_fails_for_good_and_takes_no_budget(
    submit: Callable[..., Submitted], budget: Callable[[float], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = budget(1.5 * ONE_RUN_GPU_HOURS)
    path.write_text(f"{path.read_text()}queue_patience_h: 0.0001\n")
    refuse_at_a_limit(monkeypatch, times=99)

    with pytest.raises(AirflowFailException, match="queue_patience_h of cluster 'local' allows"):
        submit()

    assert open_commitments("local") == (set(), set())
