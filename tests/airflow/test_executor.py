"""The executor of `steptime up` imports for its tasks, before it forks their workers."""

from configparser import ConfigParser
from importlib import import_module

import pytest
from airflow.executors.local_executor import LocalExecutor

from steptime.results import row_checks


def test_workers_are_forked_after_the_import_of_great_expectations(
    airflow_cfg: ConfigParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = airflow_cfg["core"]["executor"].rpartition(".")
    done: list[str] = []
    monkeypatch.setattr(row_checks, "load_library", lambda: done.append("imported"))
    monkeypatch.setattr(LocalExecutor, "start", lambda _: done.append("forked"))

    getattr(import_module(module), name)().start()

    assert done == ["imported", "forked"]
