"""A folder of its own for commands that may leave nothing behind."""

import io
import sys
from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in; its `home` is where the state would be. Nobody answers questions."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("CONFIG_DIR", "STORE_URL", "AIRFLOW_URL", "AIRFLOW_USER", "AIRFLOW_PASSWORD"):
        monkeypatch.delenv(f"STEPTIME_{name}", raising=False)
    monkeypatch.setenv("STEPTIME_HOME", str(folder / "home"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return folder
