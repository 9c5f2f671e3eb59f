"""What tasks of `steptime up` need is imported and read before the forks that they come from."""

import shutil
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.executors.local_executor import LocalExecutor

from steptime.airflow.dag_builder import build_each_once, training_dag
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


def append(file: Path, line: str) -> None:
    file.write_text(f"{file.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
