"""Sensor and trigger, on real jobs of the local cluster."""

import asyncio
from types import SimpleNamespace

import pytest
import structlog
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.triggers.base import TriggerEvent

from steptime.airflow import sensors, triggers
from steptime.airflow.sweep.trial_operators import RoundTrigger
from steptime.airflow.triggers import GpuLimitTrigger, TrainingTrigger
from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster

from .conftest import event_of, noted, task_of, trigger_of, wait_task


async def state(cluster, submission):
    name = submission["job"]["name"]
    return (await cluster.poll([name]))[name].state


def test_the_sensor_defers_for_the_job_of_the_ledger(submission, make_context):
    submitted, context = submission(STAND_IN="hang"), make_context()

    with structlog.testing.capture_logs() as lines, pytest.raises(TaskDeferred) as deferred:
        wait_task(submitted).execute(context)

    job = submitted["job"]
    waiting, log = (line["event"] for line in lines[-2:])
    assert waiting == f"waiting for job {job['name']} (id {job['job_id']}) on cluster 'local'"
    assert log == f"its log: {job['log_path']}"
    assert context["ti"].pushed == {}
    path, arguments = deferred.value.trigger.serialize()
    assert path == "steptime.airflow.triggers.TrainingTrigger"
    assert TrainingTrigger(**arguments).serialize() == (path, arguments)
    assert (arguments["cluster"], arguments["job"]) == ("local", job["name"])


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (TrainingTrigger, {"cluster": "local", "job": "j"}),
        (GpuLimitTrigger, {"job": "j"}),
        (RoundTrigger, {"dag_id": "d", "run_id": "r", "task_id": "t", "count": 1, "variants": 2}),
    ],
)
def test_a_task_that_waited_during_an_upgrade_or_a_rollback_goes_on_waiting(kind, arguments):
    """Airflow makes its trigger from what the other version has stored."""
    assert kind(**arguments, patience_h=None).serialize()[1] == arguments


@pytest.mark.parametrize(("took_s", "pause_s"), [(3.0, 5.0), (20.0, 0.0)])
def test_no_event_comes_before_airflow_has_settled(
    submission,
    make_context,
    monkeypatch,
    took_s,
    pause_s,
):
    trigger, pauses, sleep = trigger_of(submission(), make_context()), [], asyncio.sleep
    monkeypatch.setattr(triggers, "SETTLING_S", 8.0)
    clock = SimpleNamespace(now=100.0)

    async def slept(seconds):
        pauses.append(seconds)
        await sleep(0)

    async def end():
        clock.now += took_s
        return TriggerEvent({})

    monkeypatch.setattr(asyncio, "sleep", slept)
    monkeypatch.setattr(trigger, "event", end)
    monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    assert asyncio.run(event_of(trigger)) == {}
    assert pauses == [pause_s]


@pytest.mark.long
def test_a_job_that_succeeded_is_noted_and_a_cleared_wait_asks_no_cluster(
    submission, make_context, monkeypatch
):
    """Airflow 3.1 clears the `wait` of all mapped instances together with the `submit` of one."""
    submitted = submission()
    event = asyncio.run(event_of(trigger_of(submitted, make_context())))
    assert event["status"]["state"] == "succeeded"
    handle = {"cluster": "local", "job": submitted["job"]["name"]}
    assert wait_task(submitted).execute_complete(make_context(), event) == handle
    in_ledger = noted(handle["job"])
    assert in_ledger.state is JobState.SUCCEEDED
    assert in_ledger.started_at is not None
    assert in_ledger.ended_at is not None
    monkeypatch.delattr("steptime.runs.patience.open_cluster")

    again = make_context(max_tries=5, try_number=4)
    assert wait_task(submitted).execute(again) == handle


def test_a_cleared_wait_goes_on_with_its_job_and_needs_no_xcom(submission, make_context):
    submitted = submission(STAND_IN="hang")
    task = task_of("performance.wait", submitted=None)

    with pytest.raises(TaskDeferred) as deferred:
        task.execute(make_context(max_tries=5))

    assert isinstance(deferred.value.trigger, TrainingTrigger)
    assert deferred.value.trigger.job == submitted["job"]["name"]


def test_a_cleared_wait_for_a_job_that_its_cluster_does_not_know_now_goes_on_waiting(
    submission, make_context, monkeypatch
):
    """The accounting may be behind: only the trigger, which waits for it, calls the end of a job unknown."""
    submitted = submission(STAND_IN="hang")
    name = submitted["job"]["name"]

    async def unknown(_, names):
        return dict.fromkeys(names, JobStatus(state=JobState.UNKNOWN, reason="not in the accounting"))

    monkeypatch.setattr(sensors, "_JUST_SUBMITTED_S", 0)
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "poll", unknown)
        with pytest.raises(TaskDeferred) as deferred:
            wait_task(submitted).execute(make_context(max_tries=5))
    assert isinstance(deferred.value.trigger, TrainingTrigger)
    assert (deferred.value.trigger.job, noted(name).ended_at) == (name, None)


def test_an_event_of_a_job_from_before_a_clear_is_passed_over(submission, make_context):
    """A real Airflow on SQLite did this: the cleared task's trigger and the next one's had the same id."""
    submitted, context = submission(STAND_IN="hang"), make_context()
    event = {"job": "an-earlier-job", "status": {"state": "cancelled", "reason": "cancelled"}}

    with structlog.testing.capture_logs() as lines, pytest.raises(TaskDeferred) as deferred:
        wait_task(submitted).execute_complete(context, event)

    assert isinstance(deferred.value.trigger, TrainingTrigger)
    assert deferred.value.trigger.job == submitted["job"]["name"]
    assert any("an-earlier-job has been replaced by a newer job" in line["event"] for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("in_reach", [True, False])
def test_a_failed_training_fails_for_good_and_says_why(submission, make_context, monkeypatch, in_reach):
    """This holds as well where this machine cannot open the cluster's files by path."""
    if not in_reach:
        monkeypatch.setattr(LocalCluster, "local_path", lambda self, path: None)
    submitted = submission(STAND_IN="out_of_memory")
    event = asyncio.run(event_of(trigger_of(submitted, make_context())))

    with structlog.testing.capture_logs() as lines, pytest.raises(AirflowFailException) as failed:
        wait_task(submitted).execute_complete(make_context(), event)

    [last_lines] = [line["event"] for line in lines if line["log_level"] == "error"]
    assert last_lines.startswith(f"the last lines of {submitted['job']['log_path']}:\n")
    assert "torch.OutOfMemoryError" in last_lines
    sentence = str(failed.value)
    assert "failed" in sentence
    assert "exit code 1" in sentence
    assert "out of memory" in sentence
    assert submitted["job"]["log_path"] in sentence


@pytest.mark.parametrize(
    ("state", "words"),
    [(JobState.CANCELLED, "was cancelled"), (JobState.TIMED_OUT, "timed out")],
)
def test_other_ends_are_told_apart(submission, make_context, state, words):
    submitted = submission()
    status = JobStatus(state=state, reason="by somebody").model_dump(mode="json")

    with pytest.raises(AirflowFailException, match=rf"{words} \(by somebody\)"):
        wait_task(submitted).execute_complete(
            make_context(), {"job": submitted["job"]["name"], "status": status}
        )


def test_a_cluster_out_of_reach_for_too_long_leaves_its_job(submission, make_context, home, monkeypatch):
    submitted, context = submission(), make_context()
    file = home.parent / "config" / "clusters" / "local.yaml"
    file.write_text(f"{file.read_text()}patience_h: 0.0001\n")
    trigger = trigger_of(submitted, make_context())

    async def unreachable(*_):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(LocalCluster, "poll", unreachable)
    event = asyncio.run(event_of(trigger))

    with pytest.raises(AirflowFailException, match="patience_h in its file allows 0 s: no route to host"):
        wait_task(submitted).execute_complete(context, event)
    in_ledger = noted(submitted["job"]["name"])
    assert in_ledger.abandoned, "`end` and `parse` read it"
    with pytest.raises(TaskDeferred):
        wait_task(submitted).execute(context)
    taken_up = noted(submitted["job"]["name"])
    assert not taken_up.abandoned


async def test_a_triggerer_that_shuts_down_leaves_the_job_alone(
    submission, make_context, cluster, monkeypatch
):
    submitted = await asyncio.to_thread(submission, STAND_IN="hang")
    trigger = await asyncio.to_thread(trigger_of, submitted, make_context())
    polled, poll = asyncio.Event(), LocalCluster.poll

    async def note_and_poll(self, names):
        polled.set()
        return await poll(self, names)

    monkeypatch.setattr(LocalCluster, "poll", note_and_poll)
    waiting = asyncio.create_task(event_of(trigger))
    await asyncio.wait_for(polled.wait(), 60)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await trigger.cleanup()
    assert (await state(cluster, submitted)).is_live
