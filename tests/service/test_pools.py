"""Pools that an Airflow does not set at once."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steptime.errors import SystemFailure
from steptime.service import pools
from steptime.settings import config_dir


def test_pools_are_asked_for_again_and_people_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(config_dir(), tmp_path / "config")
    (tmp_path / "config/clusters/broken.yaml").write_text("name: broken\n")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(pools, "_POLL_S", 0)
    asked: list[Any] = []

    def set_at_the_fourth(wanted: list[Any]) -> None:
        asked.append(wanted)
        if len(asked) < 4:
            raise SystemFailure("no Airflow answers")

    announced: list[str] = []
    client: Any = SimpleNamespace(set_pools=set_at_the_fourth)
    pools.set_pools(client, announced.append)

    assert asked == [asked[0]] * 4
    broken, again = announced
    assert "no pool of a cluster" in broken
    assert "again" in again
