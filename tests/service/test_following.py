from datetime import UTC, datetime
from typing import Any

import pytest

from steptime.cli import following
from steptime.cli.following import follow, run_lines
from steptime.errors import SystemFailure
from steptime.service.rest import AirflowClient, DagRun, TaskInstance

RUN = DagRun(dag_id="llama31", dag_run_id="r1", state="running")
PATH = "GET /api/v2/dags/llama31/dagRuns/r1"


def task(
    task_id: str, state: str | None, map_index: int = -1, label: str | None = None, second: int | None = None
) -> dict[str, Any]:
    start = datetime(2026, 11, 21, 3, 0, second, tzinfo=UTC).isoformat() if second is not None else None
    return {
        "task_id": task_id,
        "state": state,
        "map_index": map_index,
        "rendered_map_index": label,
        "try_number": 1,
        "start_date": start,
    }


def told(*tasks: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = run_lines(TaskInstance.model_validate(one) for one in tasks)
    return [(line.label, line.state, line.doing) for line in found]


def test_one_line_for_each_run_and_each_single_task() -> None:
    assert told(
        task("plan", "success", second=0),
        task("train.submit", "success", 0, "tiny·fp32·1", second=1),
        task("train.wait", "deferred", 0, "tiny·fp32·1", second=2),
        task("train.collect", None, 0),
        task("train.submit", "queued", 1),
        task("train.wait", None, 1),
        task("train.collect", None, 1),
        task("summary", None),
    ) == [
        ("plan", "success", "done"),
        ("summary", "waiting", "waiting"),
        ("tiny·fp32·1", "running", "wait: deferred"),
        ("train [1]", "waiting", "submit: queued"),
    ]


def test_a_run_is_not_called_by_the_number_that_airflow_gives_it_at_first() -> None:
    assert told(task("train.submit", "running", 3, "3", second=1)) == [("train [3]", "running", "submit")]


def test_what_is_never_to_run_has_no_line() -> None:
    assert told(
        task("stage", "failed", second=1),
        task("train.submit", "upstream_failed"),
        task("checkpoint.submit", "skipped"),
    ) == [("stage", "failed", "failed")]


def test_the_failed_task_decides() -> None:
    assert told(
        task("train.submit", "success", 0, "tiny·fp32·1", second=1),
        task("train.wait", "failed", 0, "tiny·fp32·1", second=2),
        task("train.collect", "upstream_failed", 0, second=None),
    ) == [("tiny·fp32·1", "failed", "wait: failed")]


def test_between_two_tasks_a_run_is_under_way() -> None:
    assert told(
        task("train.submit", "success", 0, "tiny·fp32·1", second=1), task("train.wait", "scheduled", 0)
    ) == [("tiny·fp32·1", "running", "wait: scheduled")]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)


@pytest.mark.usefixtures("fast")
def test_follow_says_each_change_once(api: Any, capsys: pytest.CaptureFixture[str]) -> None:
    deferred = task("train.wait", "deferred", 0, "tiny·fp32·1", second=1)
    polls = iter([("running", deferred)] * 3 + [("success", deferred | {"state": "success"})])
    now: dict[str, Any] = {}

    def dag_run(_: Any) -> tuple[int, Any]:
        now["state"], now["task"] = next(polls)
        return 200, {"dag_id": "llama31", "dag_run_id": "r1", "state": now["state"]}

    api.answers[PATH] = dag_run
    api.answers[f"{PATH}/taskInstances"] = lambda _: (
        200,
        {"task_instances": [now["task"]], "total_entries": 1},
    )
    log = [
        {"event": "Filling up the DagBag", "logger": "airflow.dag"},
        {"event": "step 3 of 0-19", "logger": "steptime.airflow.triggers.TrainingTrigger"},
    ]
    api.answers[f"{PATH}/taskInstances/train.wait/logs/1"] = (200, {"content": log})
    with AirflowClient(api.url, "ada", "x") as client:
        assert follow(client, RUN).state == "success"
    said = [line.split("s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["tiny·fp32·1: wait: deferred: step 3 of 0-19", "tiny·fp32·1: done"]


@pytest.mark.usefixtures("fast")
def test_an_airflow_that_restarts_is_waited_for(api: Any) -> None:
    answers = iter(
        [(500, {}), (503, {}), (200, {"dag_id": "llama31", "dag_run_id": "r1", "state": "failed"})]
    )
    api.answers[PATH] = lambda _: next(answers)
    api.answers[f"{PATH}/taskInstances"] = (200, {"task_instances": [], "total_entries": 0})
    with AirflowClient(api.url, "ada", "x") as client:
        assert follow(client, RUN).state == "failed"


@pytest.mark.usefixtures("fast")
def test_an_airflow_that_is_gone_ends_the_following(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_PATIENCE_S", 0.05)
    api.answers[PATH] = (500, {})
    with AirflowClient(api.url, "ada", "x") as client, pytest.raises(SystemFailure, match="500"):
        follow(client, RUN)
