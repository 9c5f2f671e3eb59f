"""The executor of `steptime up`: what tasks need is there before the forks, and ends are seen at once."""

import shutil
import threading
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.executors.local_executor import LocalExecutor
from airflow.models.taskinstancekey import TaskInstanceKey

from steptime.airflow import executor
from steptime.airflow.dag_builder import build_each_once, training_dag
from steptime.airflow.executor import PreloadedExecutor
from steptime.recipes import workloads
from steptime.results import row_checks
from steptime.settings import config_dir


def test_workers_are_forked_after_the_import_of_great_expectations(
    airflow_cfg: ConfigParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = airflow_cfg["core"]["executor"].rpartition(".")
    done: list[str] = []
    monkeypatch.setattr(row_checks, "load_library", lambda: done.append("imported"))
    monkeypatch.setattr(LocalExecutor, "start", lambda _: done.append("forked"))

    getattr(import_module(module), name)().start()

    assert done == ["imported", "forked"]


@pytest.mark.long
def test_a_task_reads_no_workload_that_was_read_before_the_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each task of a DAG run reads and checks it, 0.1 s of CPU; one that has changed is read again."""
    shutil.copytree(config_dir(), tmp_path / "config")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    for workload in (tmp_path / "config" / "workloads").iterdir():
        append(workload, f"# of {tmp_path}, so that no other test has read it")
    build_each_once()
    read: list[str] = []
    document = workloads.read_document

    def count(path: Path) -> Any:
        read.append(path.stem)
        return document(path)

    monkeypatch.setattr(workloads, "read_document", count)
    training_dag("llama31", workload="llama3.1")
    assert read == []

    append(tmp_path / "config" / "workloads" / "llama3.1-25.04.yaml", "# changed")
    training_dag("llama31", workload="llama3.1")
    assert set(read) == {"llama3.1-25.04"}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[PreloadedExecutor]:
    """An executor with one worker, and a scheduler's patience without end."""
    monkeypatch.setattr(row_checks, "load_library", lambda: None)
    monkeypatch.setattr(executor, "_IDLE_S", None)
    started = PreloadedExecutor(parallelism=1)
    started.start()
    yield started
    started.end()


def test_a_scheduler_that_waits_sees_the_end_of_a_task_at_once(running: PreloadedExecutor) -> None:
    ended = TaskInstanceKey("llama31", "run", "report")
    threading.Timer(0.2, running.result_queue.put, [(ended, "success", None)]).start()
    running.heartbeat()
    assert ended in running.event_buffer


@pytest.fixture
def started(running: PreloadedExecutor, monkeypatch: pytest.MonkeyPatch) -> list[TaskInstanceKey]:
    """What the executor starts: nothing runs, but it counts as begun."""
    begun: list[TaskInstanceKey] = []

    def start(_: PreloadedExecutor, open_slots: int) -> None:
        begun.extend([*running.queued_tasks][:open_slots])
        for task in begun:
            running.queued_tasks.pop(task, None)

    monkeypatch.setattr(PreloadedExecutor, "trigger_tasks", start)
    return begun


def test_a_task_that_can_be_started_waits_for_no_end(
    running: PreloadedExecutor, started: list[TaskInstanceKey]
) -> None:
    task: Any = TaskInstanceKey("llama31", "run", "check_params")
    running.queued_tasks[task] = task
    running.heartbeat()
    assert started == [task]


def test_while_all_workers_are_busy_the_scheduler_waits_for_one(
    running: PreloadedExecutor, started: list[TaskInstanceKey]
) -> None:
    """It would ask again and again else, on a core that trainings need."""
    busy, task = (TaskInstanceKey("llama31", "run", name) for name in ("stage", "performance_runs"))
    running.running.add(busy)
    queued: Any = task
    running.queued_tasks[queued] = queued
    threading.Timer(0.2, running.result_queue.put, [(busy, "success", None)]).start()
    running.heartbeat()
    assert busy in running.event_buffer
    assert started == []


def append(file: Path, line: str) -> None:
    file.write_text(f"{file.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
