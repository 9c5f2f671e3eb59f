"""Tries of `wait` that are lost because their workers die: however many there are, none ends the job."""

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from steptime.clusters.base import JobState
from steptime.clusters.local.cluster import LocalCluster
from steptime.store.run_queries import Store

from .conftest import AirflowSays, MakeContext, Submit, logged, noted, state_of, task_of, wait_task

LAST_TRY = {"try_number": 3, "max_tries": 2}


def begin(submitted: dict[str, Any], context: dict[str, Any]) -> None:
    with pytest.raises(TaskDeferred):
        wait_task(submitted).execute(context)


def event(submitted: dict[str, Any], **told: Any) -> dict[str, Any]:
    return {"job": submitted["job"]["name"], **told}


def test_a_wait_outlives_the_loss_of_very_many_workers() -> None:
    for group in ("performance", "checkpoint.save", "checkpoint.load"):
        assert task_of(f"{group}.wait").retries >= 100


def test_what_waits_behind_a_last_try_that_was_lost_leaves_the_job_alone(
    submission: Submit, cluster: LocalCluster, make_context: MakeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted, context = submission(STAND_IN="hang"), make_context(**LAST_TRY)
    left = f"this is the last try: if its worker dies, job {submitted['job']['name']} keeps running"
    assert left in logged(lambda: begin(submitted, context))

    task_of("performance.end").execute(context)
    with pytest.raises(AirflowSkipException):
        task_of("performance.parse").execute(context)

    assert state_of(cluster, submitted["job"]["name"]).is_live
    assert f"or end it by hand: end {submitted['job']['name']}" in capsys.readouterr().out


@pytest.mark.long
def test_a_job_that_took_too_long_is_ended_after_the_last_try_too(
    submission: Submit, cluster: LocalCluster, make_context: MakeContext
) -> None:
    submitted, context = submission(STAND_IN="hang"), make_context(**LAST_TRY)
    begin(submitted, context)
    wait = wait_task(submitted)
    with pytest.raises(AirflowFailException, match="too long"):
        wait.execute_complete(context, event(submitted, overdue="too long"))

    task_of("performance.end").execute(context)

    assert state_of(cluster, submitted["job"]["name"]) is JobState.CANCELLED


@pytest.mark.long
def test_the_log_of_a_training_is_read_after_the_last_try_too(
    submission: Submit, make_context: MakeContext
) -> None:
    submitted, context = submission(), make_context(**LAST_TRY)
    wait = wait_task(submitted, deferrable=False)

    assert wait.execute(context)["job"] == submitted["job"]["name"]
    handle = task_of("performance.parse").execute(context)
    assert Store().measured(handle["job"]).measurement is not None


@pytest.mark.long
@pytest.mark.parametrize(("try_number", "lives"), [(2, False), (3, True)])
def test_a_worker_that_is_cut_off_in_its_last_try_leaves_the_job_alone(
    submission: Submit,
    cluster: LocalCluster,
    make_context: MakeContext,
    airflow_says: AirflowSays,
    try_number: int,
    lives: bool,
) -> None:
    """Airflow reports `failed` both for a task that a person failed and for one that has no tries left."""
    submitted = submission(STAND_IN="hang")
    airflow_says("failed")
    task = wait_task(submitted, deferrable=False)
    held = noted(submitted["job"]["name"])
    task.guard(held, make_context(try_number=try_number))

    task.on_kill()

    assert state_of(cluster, submitted["job"]["name"]).is_live is lives
