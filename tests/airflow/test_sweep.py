"""The operators and the trigger of a sweep, against a supervisor that keeps DAG runs as Airflow's does."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
    ErrorType,
    TaskAwaitingInput,
    TaskDeferred,
)
from airflow.sdk.execution_time.comms import (
    DagResult,
    DagRunStateResult,
    DRCount,
    ErrorResponse,
    GetDag,
    GetDagRunState,
    GetDRCount,
    OKResponse,
    TriggerDagRun,
)
from airflow.triggers.base import TaskSuccessEvent

from steptime.airflow import sweep_triggers
from steptime.airflow.pools import pool_of, pools, slots_for
from steptime.airflow.sweep_cells import all_groups
from steptime.airflow.sweep_operators import (
    ApproveSweepOperator,
    CellOutcomeOperator,
    CheckSweepOperator,
    ReportSweepOperator,
    RunCellOperator,
)
from steptime.airflow.sweep_triggers import DagRunTrigger
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.results.store import Store

from .conftest import TaskInstance

ONE, TWO = (("local_1_gpus.run", 0, "started_run_id"), ("local_2_gpus.run", 0, "started_run_id"))
"""Where the XComs of the two cells' runs are."""
GROUPS = ["local_1_gpus", "local_2_gpus", "local_4_gpus"]


@dataclass
class Supervisor:
    """Answers what tasks and triggers ask of Airflow about DAG runs."""

    runs: dict[tuple[str, str], str] = field(default_factory=dict)
    started: list[TriggerDagRun] = field(default_factory=list)
    paused: bool = False

    def send(self, msg: Any) -> Any:
        match msg:
            case TriggerDagRun():
                if (msg.dag_id, msg.run_id) in self.runs:
                    return ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
                self.runs[msg.dag_id, msg.run_id] = "queued"
                self.started.append(msg)
                return OKResponse(ok=True)
            case GetDRCount():
                return DRCount(count=sum((msg.dag_id, run_id) in self.runs for run_id in msg.run_ids or ()))
            case GetDagRunState():
                return DagRunStateResult(state=self.runs[msg.dag_id, msg.run_id])
            case GetDag():
                return DagResult.model_construct(dag_id=msg.dag_id, is_paused=self.paused)
        raise AssertionError(f"unexpected: {msg}")


@pytest.fixture
def airflow_runs(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    supervisor = Supervisor()
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


@dataclass
class SweepTask(TaskInstance):
    """A task of a sweep's DAG run, with its XComs and what it may ask of Airflow."""

    dag_id: str = "weekly_scaling_sweep"
    xcoms: dict[Any, Any] = field(default_factory=dict)

    def get_dag(self, dag_id: str) -> Any:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        return RuntimeTaskInstance.get_dag(dag_id)

    def xcom_pull(self, *, key: str, task_ids: str | None = None, map_indexes: int | None = None) -> Any:
        return self.xcoms.get((task_ids, map_indexes, key), self.pushed.get(key))


@pytest.fixture
def write_sweep(home: Path) -> Callable[..., None]:
    """Writes the sweep `night` into the test's config, the only one; keywords are its fields."""
    folder = Path(home).parent / "config" / "sweeps"
    folder.unlink()
    folder.mkdir()

    def write(**fields: Any) -> None:
        runs = [{"workload": "llama3.1", "gpus": [1, 2]}]
        content = {"name": "night", "gpu_hours_max": 10, "runs": runs, **fields}
        (folder / "night.yaml").write_text(json.dumps(content))

    write()
    return write


@pytest.fixture
def check(
    write_sweep: Callable[..., None], make_context: Callable[..., Any]
) -> Callable[..., dict[str, Any]]:
    """Checks a sweep `night` with these fields, as the DAG's first task."""

    def check(
        *, conf: dict[str, Any] | None = None, groups: list[str] = GROUPS, **fields: Any
    ) -> dict[str, Any]:
        write_sweep(**fields)
        context = make_context()
        context["params"] = {"sweep": "night"}
        context["dag_run"].conf = conf
        return CheckSweepOperator(task_id="check_sweep", groups=groups).execute(context)

    return check


@pytest.fixture
def start(
    check: Callable[..., dict[str, Any]], make_context: Callable[..., Any], airflow_runs: Supervisor
) -> Callable[..., DagRunTrigger]:
    """One try of a mapped task `run`, for the cell of two ranks; gives the trigger that it waits with."""
    cell = check()["local_2_gpus"][0]

    def start(**task_instance: Any) -> DagRunTrigger:
        context = make_context() | {"ti": SweepTask(**task_instance)}
        with pytest.raises(TaskDeferred) as deferred:
            RunCellOperator(task_id="run", cell=cell).execute(context)
        trigger = deferred.value.trigger
        assert isinstance(trigger, DagRunTrigger)
        return trigger

    return start


async def fired(trigger: DagRunTrigger) -> Any:
    return await anext(trigger.run())


def test_the_cells_are_grouped_by_cluster_and_slots(check: Callable[..., dict[str, Any]]) -> None:
    checked = check(repeats=2)

    assert checked["plan"]["sweep"] == "night"
    assert {
        group: [cell["label"] for cell in cells] for group, cells in checked.items() if group != "plan"
    } == {
        "local_1_gpus": ["llama3.1·tiny·fp32·1", "llama3.1·tiny·fp32·1·repeat 2"],
        "local_2_gpus": ["llama3.1·tiny·fp32·2", "llama3.1·tiny·fp32·2·repeat 2"],
    }
    assert json.loads(json.dumps(checked)) == checked


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"conf": {"sweep": "nigth"}}, "unknown sweep 'nigth': did you mean 'night'"),
        ({"conf": {"sweeps": "night"}}, "unknown parameter 'sweeps': did you mean 'sweep'"),
        ({"groups": ["local_1_gpus"]}, "sweep 'night' needs tasks for 2 GPUs of cluster 'local'"),
        ({"gpu_hours_max": 0.1}, "may cost 0.50 GPU-hours, more than its gpu_hours_max of 0.10"),
        ({"exclude": [{"gpus": 4}]}, "exclude.0 (gpus 4) excludes nothing"),
    ],
)
def test_what_cannot_be_run_starts_nothing(
    check: Callable[..., dict[str, Any]], asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(AirflowFailException, match=re.escape(sentence)) as refused:
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


def test_a_cleared_task_starts_a_run_that_was_deleted_again(
    start: Callable[..., DagRunTrigger], airflow_runs: Supervisor
) -> None:
    first = start(max_tries=2)
    airflow_runs.runs.clear()

    assert start(max_tries=3).run_id == first.run_id
    assert len(airflow_runs.started) == 2


def test_a_paused_dag_is_told_at_once(
    check: Callable[..., dict[str, Any]], make_context: Callable[..., Any], airflow_runs: Supervisor
) -> None:
    airflow_runs.paused = True
    cell = check()["local_1_gpus"][0]

    with pytest.raises(AirflowFailException, match="the DAG 'llama31' is paused"):
        RunCellOperator(task_id="run", cell=cell).execute(make_context() | {"ti": SweepTask()})
    assert not airflow_runs.started


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_triggers, "SETTLING_S", 0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("state", ["success", "failed", None])
async def test_waiting_is_over_with_the_run_however_it_ended(
    airflow_runs: Supervisor, state: str | None
) -> None:
    if state is not None:
        airflow_runs.runs["llama31", "r"] = state

    event = await fired(DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=1))
    assert isinstance(event, TaskSuccessEvent)


@pytest.mark.usefixtures("at_once")
async def test_an_airflow_that_does_not_answer_is_asked_again(
    check: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))

    monkeypatch.setattr(sweep_triggers, "state_of_dag_run", no_answer)
    event = await fired(DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=1))
    operator = RunCellOperator(task_id="run", cell=check()["local_1_gpus"][0])

    with pytest.raises(AirflowException, match="nothing is heard of the run: API_SERVER_ERROR") as failed:
        operator.execute_complete({}, event.payload)
    assert not isinstance(failed.value, AirflowFailException)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [("failed", "run r of llama31 is failed, and its tasks say why"), (None, "run r of llama31 was deleted")],
)
def test_the_outcome_is_that_of_the_run(
    check: Callable[..., dict[str, Any]], airflow_runs: Supervisor, state: str | None, sentence: str
) -> None:
    operator = CellOutcomeOperator(
        task_id="outcome", cell=check()["local_1_gpus"][0], started_in="local_1_gpus.run"
    )
    context: Any = {"ti": SweepTask(xcoms={ONE: "r"})}
    airflow_runs.runs["llama31", "r"] = "success"
    operator.execute(context)

    airflow_runs.runs = {} if state is None else {("llama31", "r"): state}
    with pytest.raises(AirflowFailException, match=f"llama3.1·tiny·fp32·1: {sentence}"):
        operator.execute(context)


def test_a_trigger_comes_back_from_what_airflow_stores() -> None:
    trigger = DagRunTrigger(dag_id="llama31", run_id="r", poll_interval_s=3)
    path, arguments = trigger.serialize()

    assert path == "steptime.airflow.sweep_triggers.DagRunTrigger"
    assert DagRunTrigger(**arguments).serialize() == (path, arguments)


def test_nobody_is_asked_below_the_limit(check: Callable[..., dict[str, Any]]) -> None:
    for fields in ({}, {"approval_above_gpu_hours": 1}):
        operator = ApproveSweepOperator(task_id="approve", checked=check(**fields))
        with pytest.raises(AirflowSkipException, match=r"at most 0\.50 GPU-hours"):
            operator.execute({})


def test_above_the_limit_somebody_sees_what_it_costs(
    check: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **said: asked.update(said)
    )
    operator = ApproveSweepOperator(task_id="approve", checked=check(approval_above_gpu_hours=0.2))

    with pytest.raises(TaskAwaitingInput):
        operator.execute({"task_instance": TaskInstanceWithId()})
    assert asked["subject"] == "Start sweep night: 2 jobs, at most 0.50 GPU-hours?"
    assert "| llama3.1·tiny·fp32·2 | local | 1 | 2 | 0.33 | llama31 |" in asked["body"].splitlines()
    assert asked["options"] == ["Approve", "Reject"]


@dataclass
class TaskInstanceWithId:
    id: str = "01"


@pytest.fixture
def report(check: Callable[..., dict[str, Any]], home: Path) -> Callable[..., None]:
    """Reports on a sweep of one and two ranks; the XComs are those of its tasks."""
    checked = check()

    def report(xcoms: dict[Any, Any], checked: Any = checked) -> None:
        context: Any = {"ti": SweepTask(task_id="report", map_index=-1, xcoms=xcoms)}
        ReportSweepOperator(task_id="report", checked=checked).execute(context)

    return report


def test_the_report_shows_the_step_times_of_each_cell(
    report: Callable[..., None],
    airflow_runs: Supervisor,
    make_result: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Store() as store:
        for gpus in (1, 2):
            store.publish(
                make_result(f"job-{gpus}", gpus=gpus, dag_run_id=f"r{gpus}", step_times=[gpus / 8] * 20)
            )
    airflow_runs.runs = {("llama31", "r1"): "success", ("llama31", "r2"): "success"}

    report({ONE: "r1", TWO: "r2"})
    told = capsys.readouterr().out
    assert re.search(r"llama3\.1·tiny·fp32·1 +success +0\.125 ", told)
    assert re.search(r"llama3\.1·tiny·fp32·2 +success +0\.25 ", told)
    assert "all 2 cells have valid results" in told


def test_the_report_fails_for_a_cell_that_failed_and_one_that_never_began(
    report: Callable[..., None], airflow_runs: Supervisor
) -> None:
    airflow_runs.runs = {("llama31", "r1"): "failed"}

    with pytest.raises(AirflowFailException, match=r"2 of 2 cells have no valid result: .*·1, .*·2"):
        report({ONE: "r1"})


def test_a_rejected_sweep_is_no_failure(
    report: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    report({("approve", None, "rejected_by"): "ada"})
    assert "rejected by ada: nothing was started" in capsys.readouterr().out


def test_a_sweep_that_was_refused_has_failed(report: Callable[..., None]) -> None:
    with pytest.raises(AirflowFailException, match="nothing was started: the task check_sweep says why"):
        report({}, None)


def test_a_rejection_is_kept_for_the_report(check: Callable[..., dict[str, Any]]) -> None:
    operator = ApproveSweepOperator(task_id="approve", checked=check())
    ti = SweepTask()
    event = {
        "chosen_options": [ApprovalOperator.REJECT],
        "params_input": {},
        "responded_by_user": {"id": "1", "name": "ada"},
        "responded_at": datetime.now(UTC),
    }
    operator.execute_complete({"ti": ti}, event)  # type: ignore[arg-type]
    assert ti.pushed == {"rejected_by": "ada"}


def test_a_sweep_that_cannot_be_run_has_no_tasks_and_breaks_no_dag(write_sweep: Callable[..., None]) -> None:
    assert [group.group_id for group in all_groups()] == ["local_2_gpus", "local_1_gpus"]
    write_sweep(cluster="moon")
    assert all_groups() == []


def test_a_pool_has_as_many_slots_as_its_cluster_has_gpus(home: Path) -> None:
    [local] = pools()

    assert (local.name, local.slots, local.include_deferred) == ("gpus_local", 16, True)
    config = load_cluster("local")
    assert pool_of(config.model_copy(update={"gpus": 3})).slots == 3


def test_a_cluster_that_does_not_say_its_gpus_bounds_nothing(home: Path) -> None:
    from steptime.clusters.config import ClusterConfig

    config = ClusterConfig(name="far", kind="local", gpu_type="h100", work_dir="/scratch")
    assert pool_of(config).slots == -1
    assert slots_for(512, 1024, config, "x") == 1024


def test_what_takes_more_than_the_cluster_has_takes_all_of_it_or_is_refused(home: Path) -> None:
    cluster = load_cluster("local")

    assert slots_for(8, 16, cluster, "x") == 16
    assert slots_for(16, 32, cluster, "x") == 16
    with pytest.raises(UserError, match="x needs 17 GPUs at once and cluster 'local' has 16: ask for fewer"):
        slots_for(17, 17, cluster, "x")
