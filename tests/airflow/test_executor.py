"""The executor of `steptime up` imports for its tasks, before it forks their workers."""

import configparser
from importlib import import_module
from pathlib import Path

import pytest
from airflow.executors.local_executor import LocalExecutor

from steptime.results import row_checks
from steptime.service.standalone_config import write_config


def test_workers_are_forked_after_the_import_of_great_expectations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    config = configparser.ConfigParser()
    config.read(write_config(8080))
    module, _, name = config["core"]["executor"].rpartition(".")
    done: list[str] = []
    monkeypatch.setattr(row_checks, "load_library", lambda: done.append("imported"))
    monkeypatch.setattr(LocalExecutor, "start", lambda _: done.append("forked"))

    getattr(import_module(module), name)().start()

    assert done == ["imported", "forked"]
