"""Fixtures for commands: a working folder of their own, and a configuration."""

import io
import json
import sys

import pytest

from steptime.settings import config_dir


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return the folder that commands run in, with the state folder `home` in it. Questions get no answer."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("CONFIG_DIR", "STORE_URL", "AIRFLOW_URL", "AIRFLOW_USER", "AIRFLOW_PASSWORD"):
        monkeypatch.delenv(f"STEPTIME_{name}", raising=False)
    monkeypatch.setenv("STEPTIME_HOME", str(folder / "home"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return folder


@pytest.fixture
def configure(here, monkeypatch):
    """Return a function that writes a config with a sweep `night` and a changed `local.yaml`: its path."""

    def configure(change):
        shipped, config = config_dir(), here / "config"
        (config / "clusters").mkdir(parents=True)
        (config / "sweeps").mkdir()
        for name in ("workloads", "gpus.yaml"):
            (config / name).symlink_to(shipped / name)
        path = config / "clusters" / "local.yaml"
        path.write_text(change((shipped / "clusters" / "local.yaml").read_text()))
        sweep = {"name": "night", "gpu_hours_max": 10, "runs": [{"workload": "llama3.1", "gpus": [1, 2]}]}
        (config / "sweeps" / "night.yaml").write_text(json.dumps(sweep))
        monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
        return path

    return configure
