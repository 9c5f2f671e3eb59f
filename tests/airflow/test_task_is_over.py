"""`on_kill` ends a job only if Airflow says, when asked, that no other process continues the task."""

import asyncio

import pytest
from airflow.jobs import triggerer_job_runner
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.utils.state import TaskInstanceState
from end_to_end.driving import wait_until

from steptime.airflow.task_state import DELETED, task_is_over
from steptime.clusters.base import JobState

from .conftest import (
    HANGS,
    TaskInstance,
    noted,
    state_of,
    trigger_of,
    wait_task,
)

TAKEN_AWAY = {DELETED, "failed", "success", "skipped", "removed", "upstream_failed"}
NO_ANSWER = AirflowRuntimeError(ErrorResponse(detail={"message": "connection refused"}))


def test_a_task_is_over_where_airflow_says_so_twice(airflow_says, monkeypatch):
    """A zombie is `up_for_retry`; the task of a trigger that another triggerer runs is `deferred`."""
    monkeypatch.setattr("steptime.airflow.task_state._ASKED_AGAIN_AFTER_S", 0)
    expected = {
        (state,): state in TAKEN_AWAY
        for state in (None, DELETED, *(str(state) for state in TaskInstanceState))
    }
    # A task that failed and runs again, and an Airflow that does not answer.
    expected |= {("failed", "deferred"): False, ("failed", NO_ANSWER): False, (NO_ANSWER,): False}

    states = {}
    for answers in expected:
        airflow_says(*answers)
        states[answers] = task_is_over(TaskInstance(), "a job", print)

    assert states == expected


@pytest.mark.parametrize("index", [0, 3])
def test_the_question_is_about_one_mapped_instance(airflow_says, index):
    states = airflow_says("deferred")
    said = []

    assert not task_is_over(TaskInstance(map_index=index), "a job", said.append)
    assert said == ["this task is deferred and will go on: job a job keeps running for it"]
    assert states.map_index == index


@pytest.mark.long
@pytest.mark.parametrize(("answer", "lives"), [("up_for_retry", True), (HANGS, True), ("failed", False)])
def test_a_worker_that_is_told_to_stop_ends_only_the_job_of_a_task_that_was_over(
    submission,
    cluster,
    make_context,
    airflow_says,
    answer,
    lives,
    monkeypatch,
):
    if answer == HANGS:
        monkeypatch.setattr("steptime.airflow.base._KILL_WITHIN_S", 0.5)
    submitted = submission(STAND_IN="hang")
    airflow_says(answer)
    task = wait_task(submitted)
    held = noted(submitted["job"]["name"])
    task.guard(held, make_context())

    task.on_kill()

    if not lives:  # on_kill waits only some seconds for the end
        wait_until("the job's end", lambda: not state_of(cluster, submitted["job"]["name"]).is_live)
    assert state_of(cluster, submitted["job"]["name"]).is_live is lives


@pytest.mark.long
@pytest.mark.parametrize(("answer", "lives"), [("deferred", True), ("failed", False)])
async def test_a_triggerer_that_drops_a_trigger_ends_only_the_job_of_a_task_that_was_over(
    submission,
    make_context,
    cluster,
    airflow_says,
    answer,
    lives,
):
    """Airflow's runner cancels a dropped trigger at every sync, until its `on_kill` is over."""
    submitted = await asyncio.to_thread(submission, STAND_IN="hang")
    trigger = await asyncio.to_thread(trigger_of, submitted, make_context())
    airflow_says(answer)
    trigger.task_instance = RuntimeTaskInstance.model_construct(
        id="1",
        dag_id="steptime_llama3.1-25.04",
        run_id="a run",
        task_id="performance.wait",
        map_index=0,
        try_number=1,
    )
    runner = triggerer_job_runner.TriggerRunner()
    details = {"task": None, "is_watcher": False, "name": "a trigger", "events": 0}
    runner.triggers[1] = details
    details["task"] = asyncio.create_task(runner.run_trigger(1, trigger))
    await asyncio.sleep(0.2)

    while not details["task"].done():
        runner.to_cancel.append(1)
        await runner.cancel_triggers()
        await asyncio.sleep(0.05)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    poll = await cluster.poll([submitted["job"]["name"]])
    (status,) = poll.values()
    assert status.state.is_live if lives else status.state is JobState.CANCELLED
