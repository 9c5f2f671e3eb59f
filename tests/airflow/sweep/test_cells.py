"""The cells of a sweep: grouped, each started once, and waited for to its end."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    ErrorType,
    TaskDeferred,
)
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.triggers.base import TaskSuccessEvent

from steptime.airflow import base
from steptime.airflow.base import Refused
from steptime.airflow.sweep import triggers as sweep_triggers
from steptime.airflow.sweep.runs import HELD_BY, HeldBy
from steptime.airflow.sweep.triggers import DagRunTrigger

from .conftest import Supervisor, SweepTask

ONE = ("cell.run", 0, "started_run")
"""Where the XCom of the first cell's run is."""


@pytest.fixture
def start(
    check: Callable[..., dict[str, Any]],
    task: Callable[..., Any],
    make_context: Callable[..., Any],
    airflow_runs: Supervisor,
) -> Callable[..., DagRunTrigger]:
    """One try of a mapped task `run`, for the cell of two ranks; gives the trigger that it waits with."""
    cell = check()["cells"][1]

    def start(stop_runs_when: str = "marked failed", **task_instance: Any) -> DagRunTrigger:
        context = make_context() | {"ti": SweepTask(**task_instance)}
        context["params"] = {"stop_runs_when": stop_runs_when}
        with pytest.raises(TaskDeferred) as deferred:
            task("cell.run", cell=cell).execute(context)
        trigger = deferred.value.trigger
        assert isinstance(trigger, DagRunTrigger)
        return trigger

    return start


async def fired(trigger: DagRunTrigger) -> Any:
    return await anext(trigger.run())


def test_a_mapped_task_is_made_with_its_cell(task: Callable[..., Any]) -> None:
    for group, mapped_over in (("cell", "cells"), ("fresh", "confirm")):
        made = [str(task(f"{group}.{task_id}").cell) for task_id in ("run", "outcome")]
        assert all(f"): {mapped_over}>" in one for one in made), made


def test_a_sweep_keeps_its_plan(check: Callable[..., dict[str, Any]]) -> None:
    checked = check(repeats=2)

    assert checked["sweep"] == "night"
    assert [cell["label"] for cell in checked["cells"]] == [
        "llama3.1·tiny·fp32·1",
        "llama3.1·tiny·fp32·1·repeat 2",
        "llama3.1·tiny·fp32·2",
        "llama3.1·tiny·fp32·2·repeat 2",
    ]
    assert json.loads(json.dumps(checked)) == checked


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"conf": {"sweep": "nigth"}}, "unknown sweep 'nigth': did you mean 'night'"),
        ({"conf": {"sweeps": "night"}}, "unknown parameter 'sweeps': did you mean 'sweep'"),
        ({"gpu_hours_max": 0.1}, "may cost 0.50 GPU-hours, more than its gpu_hours_max of 0.10"),
        (
            {"runs": [{"workload": "llama3.1", "gpus": [1], "environment": {"LD_PRELOAD": "/x.so"}}]},
            "sweep 'night', runs.0 (workload llama3.1, gpus 1, ",
        ),
        ({"exclude": [{"gpus": 4}]}, "exclude.0 (gpus 4) excludes nothing"),
    ],
)
def test_what_cannot_be_run_starts_nothing(
    check: Callable[..., dict[str, Any]], asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused, match=re.escape(sentence)) as refused:
        check(**asked)
    assert "\n" not in str(refused.value)


def test_a_run_is_started_with_every_default_filled_in(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    trigger = start()

    [started] = airflow_runs.started
    assert (trigger.dag_id, trigger.run_id) == (started.dag_id, started.run_id) == ("llama31", started.run_id)
    assert re.fullmatch(r"sweep__tiny-fp32-2__[0-9a-f]{12}", started.run_id)
    assert started.logical_date is None
    assert started.conf is not None
    asked = {"gpus": "2", "size": "tiny", "repeats": 1, "checkpoint": False, "cluster": "local"}
    assert asked.items() <= started.conf.items()
    assert "workload" not in started.conf
    assert HeldBy.model_validate(started.conf[HELD_BY]).sweep == "night"


def test_a_cell_outlives_the_loss_of_very_many_workers(task: Callable[..., Any]) -> None:
    assert task("cell.run").retries >= 100, "its slots would be let go while its run goes on"


def test_a_retry_finds_the_run_of_the_try_before(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    first, second = start(), start()

    assert second.run_id == first.run_id
    assert len(airflow_runs.started) == 1


def test_other_sweep_runs_and_other_repeats_have_runs_of_their_own(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    runs = [start(run_id=run_id).run_id for run_id in ("scheduled__2026-11-23", "scheduled__2026-11-30")]

    assert len(set(runs)) == len(airflow_runs.started) == 2


def test_a_cleared_task_waits_for_the_run_that_still_runs(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    first, cleared = start(max_tries=2), start(max_tries=3)

    assert cleared.run_id == first.run_id
    assert len(airflow_runs.started) == 1


@pytest.mark.parametrize("ended", ["failed", "success"])
def test_a_cleared_task_runs_anew_where_its_run_has_ended(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor, ended: str
) -> None:
    first = start(max_tries=2)
    airflow_runs.runs["llama31", first.run_id] = ended
    cleared, retried = start(max_tries=3), start(max_tries=3)

    assert cleared.run_id == retried.run_id == f"{first.run_id}__attempt2"
    assert len(airflow_runs.started) == 2


def test_a_cleared_task_clears_the_run_that_still_runs_where_that_was_asked_for(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    asked = {"stop_runs_when": "marked failed or cleared"}
    first = start(max_tries=2, **asked)
    assert not airflow_runs.cleared
    cleared, retried = start(max_tries=3, **asked), start(max_tries=3, **asked)

    assert cleared.run_id == retried.run_id == first.run_id
    assert airflow_runs.cleared == [("llama31", first.run_id)]


def test_a_cleared_task_starts_a_run_that_was_deleted_again(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    first = start(max_tries=2)
    airflow_runs.runs.clear()

    assert start(max_tries=3).run_id == first.run_id
    assert len(airflow_runs.started) == 2


def test_a_paused_dag_is_told_at_once(
    check: Callable[..., dict[str, Any]],
    task: Callable[..., Any],
    make_context: Callable[..., Any],
    airflow_runs: Supervisor,
) -> None:
    airflow_runs.paused = True
    cell = check()["cells"][0]

    with pytest.raises(AirflowFailException, match="the DAG 'llama31' is paused"):
        task("cell.run", cell=cell).execute(make_context() | {"ti": SweepTask()})
    assert not airflow_runs.started


@pytest.mark.parametrize("state", ["success", "failed", None])
async def test_waiting_is_over_with_the_run_however_it_ended(
    airflow_runs: Supervisor, state: str | None
) -> None:
    if state is not None:
        airflow_runs.runs["llama31", "r"] = state

    with structlog.testing.capture_logs() as lines:
        event = await fired(DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=1))
    assert isinstance(event, TaskSuccessEvent)
    assert [line["event"] for line in lines] == [f"run r of llama31: {state or 'deleted'}"]


@pytest.mark.usefixtures("airflow_runs")
async def test_a_run_is_looked_at_every_so_often_and_each_state_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states, pauses = ["queued", "running", "running", "success"], []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(sweep_triggers, "state_of_dag_run", lambda *_: states.pop(0))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with structlog.testing.capture_logs() as lines:
        await fired(DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=7))
    assert pauses == [base.SETTLING_S, 7, 7, 7]
    assert [line["event"].rpartition(" ")[2] for line in lines] == ["queued", "running", "success"]


async def test_an_airflow_that_does_not_answer_is_asked_again(
    check: Callable[..., dict[str, Any]], task: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))

    monkeypatch.setattr(sweep_triggers, "state_of_dag_run", no_answer)
    event = await fired(DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=1))
    operator = task("cell.run", cell=check()["cells"][0])

    with pytest.raises(
        AirflowException, match="Airflow gives no state of the run: API_SERVER_ERROR"
    ) as failed:
        operator.execute_complete({}, event.payload)
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [("failed", "run r of llama31 is failed, see its tasks"), (None, "run r of llama31 was deleted")],
)
def test_the_outcome_is_that_of_the_run(
    check: Callable[..., dict[str, Any]],
    task: Callable[..., Any],
    airflow_runs: Supervisor,
    state: str | None,
    sentence: str,
) -> None:
    operator = task("cell.outcome", cell=check()["cells"][0])
    context: Any = {"ti": SweepTask(xcoms={ONE: {"dag_id": "llama31", "run_id": "r"}})}
    airflow_runs.runs["llama31", "r"] = "success"
    operator.execute(context)

    airflow_runs.runs = {} if state is None else {("llama31", "r"): state}
    with pytest.raises(AirflowFailException, match=f"llama3.1·tiny·fp32·1: {sentence}"):
        operator.execute(context)


def test_a_trigger_comes_back_from_what_airflow_stores() -> None:
    trigger = DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=3)
    path, arguments = trigger.serialize()

    assert path == "steptime.airflow.sweep.triggers.DagRunTrigger"
    assert DagRunTrigger(**arguments).serialize() == (path, arguments)
