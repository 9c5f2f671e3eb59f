import json
import os
import pty
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.utils.state import TaskInstanceState

from steptime import pages
from steptime.cli import following
from steptime.cli.following import follow, progress, run_lines
from steptime.errors import SystemFailure
from steptime.service.rest import AirflowClient, DagRun, TaskInstance

RUN = DagRun(dag_id="steptime_llama3.1-25.04", dag_run_id="r1", state="running")
PATH = "GET /api/v2/dags/steptime_llama3.1-25.04/dagRuns/r1"
_MOST_POLLS = 3000
"""Polls in which a line has to be drawn: many seconds, as a busy machine may need some."""
AGAIN = Path(pages.__file__).parent / "static" / "again.js"


def task(task_id, state, map_index=-1, label=None, second=None):
    start = datetime(2026, 11, 21, 3, 0, second, tzinfo=UTC).isoformat() if second is not None else None
    return {
        "task_id": task_id,
        "state": state,
        "map_index": map_index,
        "rendered_map_index": label,
        "try_number": 1,
        "start_date": start,
    }


def told(*tasks):
    lines = run_lines(TaskInstance.model_validate(instance) for instance in tasks)
    return [(line.label, line.state) for line in lines]


def test_one_line_for_each_run_and_each_single_task():
    assert told(
        task("plan", "success", second=0),
        task("train.submit", "success", 0, "tiny·fp32·1", second=1),
        task("train.wait", "deferred", 0, "tiny·fp32·1", second=2),
        task("train.collect", None, 0),
        task("train.submit", "queued", 1),
        task("train.wait", None, 1),
        task("train.collect", None, 1),
        task("summary", None),
    ) == [("plan", "success"), ("summary", "waiting"), ("tiny·fp32·1", "running"), ("train [1]", "waiting")]


def test_every_state_that_airflow_has_is_known():
    """An unknown one would count as the end of a run, and its task could be cleared while it is at work."""
    ended = {"success", "failed", *following._NEVER_RUN}
    under_way = {*following._WAITING, *following._AT_WORK} - {None}
    assert {state.value for state in TaskInstanceState} == ended | under_way
    tasks = [TaskInstance.model_validate(task("wait", state.value)) for state in TaskInstanceState]
    assert {instance.state for instance in tasks if instance.is_under_way} == under_way
    [listed] = re.findall(r"UNFINISHED = (\[.*\]);", AGAIN.read_text(encoding="utf-8"))
    assert set(json.loads(listed)) == under_way


def test_the_failed_task_decides():
    assert told(
        task("train.submit", "success", 0, "tiny·fp32·1", second=1),
        task("train.wait", "failed", 0, "tiny·fp32·1", second=2),
        task("train.collect", "upstream_failed", 0, second=None),
    ) == [("tiny·fp32·1", "failed")]


def at(second, *tasks):
    now = datetime(2026, 11, 21, 3, second // 60, second % 60, tzinfo=UTC).timestamp()
    return progress(run_lines(TaskInstance.model_validate(instance) for instance in tasks), 4, now)


def test_progress_is_how_many_are_done_and_about_how_long_the_others_take():
    planned = task("plan", "success", second=0)
    first = [
        task("performance.submit", "success", 0, "one", 20),
        task("performance.wait", "success", 0, "one", 21),
    ]
    second = [task("performance.submit", "success", 1, "two", 20)]
    waiting = task("performance.wait", "deferred", 1, "two", second=22)
    save = task("checkpoint.save.wait", "success", 0, "save", second=30)
    load = task("checkpoint.load.wait", "success", 0, "load", second=40)

    assert at(5) == "0 of 4 done"
    assert at(5, planned, task("stage", "running", second=3)) == "0 of 4 done · stage"
    assert at(30, planned, *second, waiting) == "0 of 4 done · two"
    assert at(34, planned, *first, *second, waiting) == "1 of 4 done · about 40 s left"
    assert at(62, planned, *first, *second, waiting, save) == "2 of 4 done · about 40 s left"
    assert at(21, planned, *first) == "1 of 4 done · about 10 s left"
    assert at(90, planned, *first) == "1 of 4 done · about 4 min left"
    assert at(80, planned, *first, *second, save, load) == "4 of 4 done"
    failed = task("performance.wait", "failed", 1, "two", second=22)
    assert at(62, planned, *first, failed) == "1 of 4 done, 1 failed"


def test_runs_that_a_trial_does_not_need_are_not_counted_as_done():
    planned = task("performance_runs", "success", second=0)
    first, second = (task("performance.submit", "deferred", index, str(index), second=2) for index in (0, 1))
    assert at(5, planned, first, second) == "0 of 4 done · performance [0]"
    ran = [task(f"performance.{name}", "success", 0, "round 1 · a", second=9) for name in ("submit", "end")]
    not_needed = [
        task("performance.submit", "skipped", 1, "round 2 · a", second=9),
        task("performance.wait", "skipped", 1),
        task("performance.end", "success", 1, second=10),
    ]
    assert told(*ran, *not_needed) == [("round 1 · a", "success"), ("round 2 · a", "skipped")]
    assert at(19, planned, *ran, *not_needed) == "1 of 3 done · about 20 s left"


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(following, "_TASKS_EVERY", 1)


def answer(api, polls):
    """Let each request for the DAG run return the next state and tasks."""
    now = {}

    def dag_run(_):
        now["state"], now["tasks"] = next(polls)
        return 200, {"dag_id": "steptime_llama3.1-25.04", "dag_run_id": "r1", "state": now["state"]}

    api.answers[PATH] = dag_run
    api.answers[f"{PATH}/taskInstances"] = lambda _: (
        200,
        {"task_instances": now["tasks"], "total_entries": len(now["tasks"])},
    )


@pytest.mark.usefixtures("fast")
def test_follow_says_each_change_once(api, capsys):
    deferred = task("train.wait", "deferred", 0, "tiny·fp32·1", second=1)
    staging = task("stage", "running", second=0)
    polls = [("running", [staging])] * 2 + [("running", [deferred])] * 3
    answer(api, iter([*polls, ("success", [deferred | {"state": "success"}])]))
    with AirflowClient(api.url, "ada", "x") as client:
        assert follow(client, RUN, of=1).state == "success"
    assert capsys.readouterr().err.splitlines() == [
        "0 of 1 done · stage",
        "0 of 1 done · tiny·fp32·1",
        "1 of 1 done",
    ]


@pytest.mark.usefixtures("fast")
def test_in_a_terminal_it_is_one_line_that_is_redrawn(api, monkeypatch):
    first = task("performance.wait", "deferred", 0, "tiny·fp32·1", second=1)
    second = task("performance.wait", "deferred", 1, "tiny·fp32·2", second=1)
    done = {"state": "success"}
    ours, terminal = pty.openpty()
    os.set_blocking(ours, False)
    drawn = bytearray()

    def shown():
        with suppress(BlockingIOError):
            drawn.extend(os.read(ours, 1 << 16))
        return drawn.decode(errors="ignore")

    def polls():
        for said, tasks in (
            ("0 of 2 done · tiny·fp32·1: step 3 of 0-19", [first, second]),
            ("1 of 2 done · about ", [first | done, second]),
        ):
            for _ in range(_MOST_POLLS):
                if said in shown():
                    break
                yield "running", tasks
            else:
                yield "failed", tasks  # ends what would be followed forever
        yield "success", [first | done, second | done]

    answer(api, polls())
    log = {"event": "step 3 of 0-19", "logger": "steptime.airflow.triggers.TrainingTrigger"}
    api.answers[f"{PATH}/taskInstances/performance.wait/logs/1"] = (200, {"content": [log]})
    with os.fdopen(terminal, "w") as stderr, AirflowClient(api.url, "ada", "x") as client:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        assert follow(client, RUN, of=2).state == "success"
        assert shown().count("\n") <= 1, "that of its end, where it is erased"
    os.close(ours)


@pytest.mark.usefixtures("fast")
def test_an_airflow_that_restarts_is_waited_for(api):
    answers = iter(
        [
            (500, {}),
            (503, {}),
            (200, {"dag_id": "steptime_llama3.1-25.04", "dag_run_id": "r1", "state": "failed"}),
        ]
    )
    api.answers[PATH] = lambda _: next(answers)
    api.answers[f"{PATH}/taskInstances"] = (200, {"task_instances": [], "total_entries": 0})
    with AirflowClient(api.url, "ada", "x") as client:
        assert follow(client, RUN, of=1).state == "failed"


@pytest.mark.usefixtures("fast")
def test_an_airflow_that_is_gone_ends_the_following(api, monkeypatch):
    monkeypatch.setattr(following, "_PATIENCE_S", 0.05)
    api.answers[PATH] = (500, {})
    with AirflowClient(api.url, "ada", "x") as client, pytest.raises(SystemFailure, match="500"):
        follow(client, RUN, of=1)


def test_an_answer_that_is_lost_long_after_the_start_is_waited_for(api, monkeypatch):
    """The patience of two minutes counts from the last answer; a minute passes between polls here."""
    clock = SimpleNamespace(now=0.0)

    def sleep(_seconds):
        clock.now += 60

    patched = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(following, "time", patched)
    running, ended = (
        {"dag_id": "steptime_llama3.1-25.04", "dag_run_id": "r1", "state": s} for s in ("running", "success")
    )
    answers = iter([*[(200, running)] * 5, (500, {}), (200, ended)])
    api.answers[PATH] = lambda _: next(answers)
    api.answers[f"{PATH}/taskInstances"] = (200, {"task_instances": [], "total_entries": 0})
    with AirflowClient(api.url, "ada", "x") as client:
        assert follow(client, RUN, of=1).state == "success"
