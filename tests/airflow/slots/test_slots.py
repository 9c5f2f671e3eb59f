"""A DAG run asks for slots of its cluster's pool, and another one holds them for as long as it goes on."""

import asyncio
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow import settings
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    ErrorType,
    TaskDeferred,
)
from airflow.sdk.execution_time.comms import ErrorResponse, GetTaskStates, TaskStatesResult
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms
from airflow.triggers.base import TaskSuccessEvent

from steptime.airflow import base
from steptime.airflow.base import Refused
from steptime.airflow.slots import triggers
from steptime.airflow.slots.dag import slots_dag
from steptime.airflow.slots.names import (
    ASK_OPERATOR,
    ASK_TASK,
    CHECK_OPERATORS,
    HELD_BY,
    HOLD_OPERATOR,
    HOLD_TASK,
    POOLS_KEY,
    SLOTS_DAG,
)
from steptime.airflow.slots.triggers import GrantTrigger, NeedTrigger
from steptime.airflow.sweep import hooks
from steptime.airflow.sweep.dag import sweep_dag
from steptime.recipes.planning import Plan
from tests.airflow.conftest import StateStore, logged, task_of
from tests.airflow.sweep.conftest import Supervisor, SweepTask

RUN = ("llama31", "manual__2026-11-21")
CELL = {"dag_id": "weekly_scaling_sweep", "run_id": "sunday", "task_id": "cell.run", "map_index": 3}
POOL = {"name": "gpus_local", "slots": 4, "include_deferred": True}


class Airflow(Supervisor):
    """One that also answers for the states of tasks, by DAG, run and task."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[tuple[str, str, str], str] = {}

    def send(self, msg: Any) -> Any:
        if not isinstance(msg, GetTaskStates):
            return super().send(msg)
        (task_id,), (run_id,) = msg.task_ids or (), msg.run_ids or ()
        assert msg.map_index == (CELL["map_index"] if task_id == CELL["task_id"] else -1)
        state = self.tasks.get((msg.dag_id, run_id, task_id))
        return TaskStatesResult(task_states={run_id: {task_id: state}} if state else {})


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    fake = Airflow()
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", fake, raising=False)
    monkeypatch.setattr(triggers, "_POLL_S", 0.01)
    fake.runs[RUN] = "running"
    return fake


@pytest.fixture
def bounded(home: Any) -> None:
    """The test's cluster has four GPUs."""
    file = home.parent / "config" / "clusters" / "local.yaml"
    file.write_text(f"{file.read_text()}gpus: 4\n")


@pytest.fixture
def context(make_context: Callable[..., Any]) -> Callable[..., Any]:
    """Of a task of the training DAG; keywords are its conf."""

    def make(**conf: Any) -> Any:
        made = make_context()
        made["ti"] = SweepTask(dag_id=RUN[0], run_id=RUN[1], task_id=ASK_TASK, map_index=-1)
        made["dag_run"].conf = conf
        return made

    return make


def ask(planned: Plan, context: Any) -> GrantTrigger:
    """Ask for slots; gives what the task waits with."""
    with pytest.raises(TaskDeferred) as deferred:
        task_of(ASK_TASK, plan=planned.model_dump(mode="json")).execute(context)
    assert isinstance(deferred.value.trigger, GrantTrigger)
    return deferred.value.trigger


def test_the_names_are_those_of_the_tasks() -> None:
    asks = task_of(ASK_TASK)
    assert (asks.task_type, slots_dag().get_task(HOLD_TASK).task_type) == (ASK_OPERATOR, HOLD_OPERATOR)
    first = [task_of("check_params"), sweep_dag("any", sweep="weekly").get_task("check_sweep")]
    assert tuple(task.task_type for task in first) == CHECK_OPERATORS


def test_nothing_is_submitted_before_the_slots_are_held() -> None:
    before = (
        task_of("performance.submit").upstream_task_ids,
        task_of("checkpoint.save.submit").upstream_task_ids,
    )
    assert all(ASK_TASK in tasks for tasks in before)


def test_a_cluster_that_says_no_gpus_is_not_bounded(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    task = task_of(ASK_TASK, plan=planned().model_dump(mode="json"))
    assert logged(lambda: task.execute(context())) == [
        "the cluster's file has no gpus: no pool bounds what runs there"
    ]
    assert not airflow.started


@pytest.mark.usefixtures("bounded")
def test_a_dag_run_without_a_scheduler_takes_no_slots(
    planned: Callable[..., Plan], context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of `airflow dags test`, in whose process its tasks run."""
    comms = InProcessSupervisorComms.__new__(InProcessSupervisorComms)
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", comms, raising=False)
    task = task_of(ASK_TASK, plan=planned().model_dump(mode="json"))
    [said] = logged(lambda: task.execute(context()))
    assert said.endswith("has no scheduler that gives slots: none are taken")
    assert task_of("check_params").execute(context(gpus="2"))["runs"], "nor has it left a list of pools"


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("asked", "number"),
    [({"gpus": "1"}, 1), ({"gpus": "1,2"}, 3), ({"gpus": "1", "checkpoint": True}, 2), ({"gpus": "4,2"}, 4)],
)
def test_a_run_asks_for_what_its_jobs_take_together_and_at_most_for_all(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any], asked: Any, number: int
) -> None:
    ask(planned(**asked), context())

    [started] = airflow.started
    expected = {"pool": "gpus_local", "number": number, "dag_id": RUN[0], "run_id": RUN[1]}
    assert (started.dag_id, started.conf) == (SLOTS_DAG, expected)


@pytest.mark.usefixtures("bounded")
async def test_who_asks_waits_until_the_slots_are_held_and_needs_no_worker_then(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    trigger = ask(planned(), context())
    holder = airflow.started[0].run_id
    airflow.tasks[SLOTS_DAG, str(holder), HOLD_TASK] = "scheduled"
    waiting = anext(trigger.run())
    airflow.tasks[SLOTS_DAG, str(holder), HOLD_TASK] = "deferred"

    assert isinstance(await waiting, TaskSuccessEvent)
    path, arguments = trigger.serialize()
    assert path == "steptime.airflow.slots.triggers.GrantTrigger"
    assert GrantTrigger(**arguments).serialize() == (path, arguments)


@pytest.mark.usefixtures("bounded")
def test_a_retry_finds_the_holder_and_a_cleared_run_gets_one_again(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    first = ask(planned(), context()).holder
    assert ask(planned(), context()).holder == first
    airflow.tasks[SLOTS_DAG, first, HOLD_TASK] = "deferred"
    task = task_of(ASK_TASK, plan=planned().model_dump(mode="json"))
    assert logged(lambda: task.execute(context())) == [f"{first} holds 1 slots of gpus_local"]
    assert len(airflow.started) == 1

    airflow.runs[SLOTS_DAG, first] = "success"
    second = ask(planned(), context()).holder
    assert (first[:-1], first[-1], second[-1]) == (second[:-1], "1", "2")


@pytest.mark.usefixtures("bounded")
async def test_who_waits_asks_again_where_the_holder_has_ended_before(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    trigger = ask(planned(), context())
    airflow.runs[SLOTS_DAG, trigger.holder] = "failed"
    event = await anext(trigger.run())
    assert event.payload == {"ended": trigger.holder}

    task, deferred = task_of(ASK_TASK, plan=planned().model_dump(mode="json")), []

    def resume() -> None:
        with pytest.raises(TaskDeferred) as told:
            task.execute_complete(context(), event.payload)
        deferred.append(told.value)

    said = logged(resume)
    holder = deferred[0].trigger.holder
    assert holder != trigger.holder
    assert deferred[0].method_name == "execute_complete"
    assert said == [
        f"{trigger.holder} has ended before it held the slots",
        f"waiting for 1 slots of gpus_local, which {holder} is to hold",
    ]


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(("status", "for_good"), [(404, True), (503, False)])
def test_a_missing_holders_dag_is_told_at_once_and_an_airflow_that_is_away_is_asked_again(
    planned: Callable[..., Plan],
    airflow: Airflow,
    context: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    status: int,
    for_good: bool,
) -> None:
    def no_dag(*_: object) -> None:
        answer = ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status})
        raise AirflowRuntimeError(answer)

    monkeypatch.setattr(SweepTask, "get_dag", no_dag)
    with pytest.raises(AirflowException, match="DAG 'gpu_slots'") as told:
        task_of(ASK_TASK, plan=planned().model_dump(mode="json")).execute(context())
    assert isinstance(told.value, AirflowFailException) is for_good


@pytest.mark.usefixtures("bounded")
def test_a_paused_holder_is_told_at_once(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    airflow.paused = True
    with pytest.raises(AirflowFailException, match="the DAG 'gpu_slots' is paused"):
        task_of(ASK_TASK, plan=planned().model_dump(mode="json")).execute(context())


@pytest.mark.usefixtures("bounded")
async def test_a_sweeps_cell_has_its_slots_already(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    started_by = context(**{HELD_BY: CELL})
    place = ("cell.run", CELL["map_index"], "started_run")
    started_by["ti"].xcoms[place] = {"dag_id": RUN[0], "run_id": RUN[1]}
    airflow.tasks["weekly_scaling_sweep", "sunday", "cell.run"] = "deferred"
    task = task_of(ASK_TASK, plan=planned().model_dump(mode="json"))
    assert logged(lambda: task.execute(started_by)) == ["sunday holds 1 slots of gpus_local for this run"]
    assert not airflow.started

    # The cell was over, and a person has cleared its run; then the cell was cleared, too.
    airflow.tasks["weekly_scaling_sweep", "sunday", "cell.run"] = "success"
    trigger = ask(planned(), started_by)
    assert trigger.held_by == CELL
    assert GrantTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()
    waiting = anext(trigger.run())
    airflow.tasks["weekly_scaling_sweep", "sunday", "cell.run"] = "deferred"
    assert isinstance(await waiting, TaskSuccessEvent), "it would wait for slots that its own cell holds"


@pytest.mark.usefixtures("bounded")
def test_the_cell_of_another_run_gives_no_slots(
    planned: Callable[..., Plan], airflow: Airflow, context: Callable[..., Any]
) -> None:
    copied = context(**{HELD_BY: CELL})
    copied["ti"].xcoms["cell.run", 3, "started_run"] = {"dag_id": RUN[0], "run_id": "another"}
    airflow.tasks["weekly_scaling_sweep", "sunday", "cell.run"] = "deferred"

    assert ask(planned(), copied).held_by is None


@pytest.mark.usefixtures("bounded", "airflow")
@pytest.mark.parametrize(
    ("pools", "gpus", "sentence"),
    [
        ([], "1", "this Airflow has no pool 'gpus_local': 'steptime sweep pools > pools.json' and there"),
        (
            [POOL | {"slots": 1}],
            "2",
            "the pool 'gpus_local' of this Airflow has 1 slots, and this run takes 2",
        ),
        ([POOL | {"include_deferred": False}], "1", "'gpus_local' of this Airflow leaves out deferred tasks"),
        (None, "1", "Airflow's scheduler has left no list of pools"),
        ([POOL], "1", None),
    ],
)
def test_slots_that_no_pool_can_give_are_refused_by_the_first_task(
    context: Callable[..., Any], pools: Any, gpus: str, sentence: str | None
) -> None:
    asking = context(gpus=gpus)
    asking["task_state_store"] = StateStore({} if pools is None else {POOLS_KEY: pools})
    check = task_of("check_params")
    if sentence is None:
        assert check.execute(asking)["runs"]
        return
    with pytest.raises(Refused) as refused:
        check.execute(asking)
    assert sentence in str(refused.value)


@pytest.mark.usefixtures("airflow")
def test_a_run_that_exceeds_its_cluster_is_refused(home: Any, context: Callable[..., Any]) -> None:
    file = home.parent / "config" / "clusters" / "local.yaml"
    file.write_text(f"{file.read_text()}gpus: 1\n")
    with pytest.raises(Refused, match="this run needs 2 GPUs at once and cluster 'local' has 1"):
        task_of("check_params").execute(context(gpus="2"))


def test_a_sweep_whose_pool_is_missing_is_refused_in_the_ui_too(check: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match="has no pool 'gpus_local': 'steptime sweep pools"):
        check(pools=[])


# Who holds them


def holder_context(number: int = 1, conf: Any = None) -> Any:
    asked = {"pool": "gpus_local", "number": 2, "dag_id": RUN[0], "run_id": RUN[1]}
    ti = SweepTask(dag_id=SLOTS_DAG, run_id=f"llama31__0123__{number}", map_index=-1)
    return {"ti": ti, "dag_run": SimpleNamespace(conf=asked if conf is None else conf)}


def test_a_holder_takes_its_slots_from_its_conf_and_never_stops_the_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def instance(conf: Any) -> Any:
        dag_run = SimpleNamespace(conf=conf)
        task = SimpleNamespace(
            operator=HOLD_OPERATOR,
            task_id=HOLD_TASK,
            map_index=-1,
            pool="default_pool",
            pool_slots=1,
            priority_weight=1,
        )
        hooks.task_instance_mutation_hook(task, dag_run)
        return task.pool, task.pool_slots, task.priority_weight

    asked = holder_context()["dag_run"].conf
    assert instance(asked) == ("gpus_local", 2, 2)
    with caplog.at_level(logging.ERROR):
        assert instance({}) == ("default_pool", 1, 1)
    assert "no pool slots for hold" in caplog.text


def test_airflow_asks_the_policy_for_tasks_that_are_not_mapped_too() -> None:
    assert settings.task_instance_mutation_hook.is_noop is False


@pytest.mark.parametrize("ended", ["success", "failed", None])
async def test_slots_are_held_until_the_run_has_ended_however(airflow: Airflow, ended: str | None) -> None:
    hold = slots_dag().get_task(HOLD_TASK)
    with structlog.testing.capture_logs() as lines, pytest.raises(TaskDeferred) as deferred:
        hold.execute(holder_context())
    assert lines[-1]["event"] == "holding 2 slots of gpus_local for manual__2026-11-21 of llama31"
    with pytest.raises(AirflowException, match="an event that nobody sends"):
        getattr(hold, deferred.value.method_name)({}, "anything")
    trigger = deferred.value.trigger
    waiting = anext(trigger.run())
    if ended is None:
        del airflow.runs[RUN]
    else:
        airflow.runs[RUN] = ended

    assert isinstance(await waiting, TaskSuccessEvent)
    assert NeedTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()


async def test_slots_are_held_while_airflow_does_not_answer(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), True, False]

    def look(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(triggers, "is_needed", look)
    pauses = paused(monkeypatch)
    with structlog.testing.capture_logs() as lines:
        assert isinstance(await anext(NeedTrigger(dag_id=RUN[0], run_id=RUN[1]).run()), TaskSuccessEvent)
    assert not answers
    assert pauses == [base.SETTLING_S, triggers._POLL_S, triggers._POLL_S]
    away, over = (line["event"] for line in lines)
    assert away.startswith("Airflow gives no state of manual__2026-11-21 of llama31: ")
    assert over == "manual__2026-11-21 of llama31 needs its slots no more"


@pytest.mark.usefixtures("airflow")
async def test_who_waits_for_slots_asks_often_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), False, False, True]

    def look(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(triggers, "is_held", look)
    monkeypatch.setattr(triggers, "state_of_dag_run", lambda *_: "running")
    monkeypatch.setattr(triggers, "_POLL_S", 5)
    monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=iter([100, 100, 120, 150]).__next__))
    pauses = paused(monkeypatch)
    with structlog.testing.capture_logs() as lines:
        assert isinstance(await anext(GrantTrigger(holder="holder").run()), TaskSuccessEvent)
    assert pauses == [base.SETTLING_S, 1, 3, 5]
    away, held = (line["event"] for line in lines)
    assert away.startswith("Airflow gives no state of holder: ")
    assert held == "the slots are held"


def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long triggers pause, which then takes no time."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(base, "SETTLING_S", 0.125)
    return pauses


@pytest.mark.parametrize(
    ("run", "asks", "again"),
    [
        ("running", "success", True),
        ("queued", None, True),
        ("running", "failed", False),
        ("failed", "success", False),
    ],
)
def test_slots_that_were_let_go_too_early_are_held_again(
    airflow: Airflow, run: str, asks: str | None, again: bool
) -> None:
    airflow.runs[RUN] = run
    if asks is not None:
        airflow.tasks[(*RUN, ASK_TASK)] = asks
    context = holder_context(number=9)
    [said] = logged(lambda: slots_dag().get_task("hold_again").execute(context))

    assert said.startswith(
        "manual__2026-11-21 of llama31 goes on, and its 2 slots of gpus_local were let go: until "
        "llama31__0123__10 holds them"
        if again
        else "manual__2026-11-21 of llama31 needs no slots any more"
    )
    assert [(one.run_id, one.conf) for one in airflow.started] == [
        ("llama31__0123__10", context["dag_run"].conf)
    ] * again


def test_holding_again_comes_also_where_the_run_of_the_holder_is_failed() -> None:
    again = slots_dag().get_task("hold_again")
    assert again.is_teardown
    assert min(task.retries for task in slots_dag().tasks) >= 100


def test_what_a_person_starts_holds_nothing(airflow: Airflow) -> None:
    for task_id in (HOLD_TASK, "hold_again"):
        with pytest.raises(AirflowFailException, match="are started by the runs that need the slots"):
            slots_dag().get_task(task_id).execute(holder_context(conf={"pool": "gpus_local"}))


@pytest.mark.parametrize(("previous", "ended"), [(None, ["holder"]), ("running", [])])
def test_a_person_who_fails_what_waits_for_slots_ends_the_holder(
    monkeypatch: pytest.MonkeyPatch, previous: Any, ended: list[str]
) -> None:
    ids: list[str] = []
    told = {"dag_id": SLOTS_DAG, "run_id": "holder"}
    monkeypatch.setattr(hooks, "xcom_of", lambda _, *place: told if place[0] == ASK_TASK else None)
    monkeypatch.setattr(hooks, "session_of", lambda _: None)
    monkeypatch.setattr(hooks, "_mark_failed", lambda started, _: ids.append(started.run_id))
    task = SimpleNamespace(
        operator=ASK_OPERATOR, task_id=ASK_TASK, map_index=-1, dag_run=SimpleNamespace(conf={})
    )

    hooks.on_task_instance_failed(previous, task)

    assert ids == ended


@pytest.mark.usefixtures("airflow")
def test_a_dag_run_without_a_conf_has_its_params(context: Callable[..., Any]) -> None:
    asking = context() | {"params": {"gpus": "2"}}
    asking["dag_run"].conf = None
    assert task_of("check_params").execute(asking)["request"]["gpus"] == "2"


def test_what_a_cell_says_of_its_slots_is_no_option_of_its_run(
    planned: Callable[..., Plan], context: Callable[..., Any]
) -> None:
    asking = context(gpus="1", **{HELD_BY: CELL})
    checked = task_of("check_params").execute(asking)
    assert json.dumps(checked["request"]).find(HELD_BY) < 0
