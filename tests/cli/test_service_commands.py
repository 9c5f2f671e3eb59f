"""`steptime up`, `down` and `status` as commands; starting and stopping is in tests/service."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.base import Job, JobSpec
from steptime.clusters.config import load_cluster
from steptime.clusters.local.cluster import LocalCluster, LocalConfig

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    return tmp_path


def test_status_where_nothing_runs() -> None:
    result = runner.invoke(app, ["status"])
    assert (result.exit_code, result.stdout) == (2, "Airflow is not running: start it with 'steptime up'\n")
    result = runner.invoke(app, ["status", "--format", "json"])
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert (told["running"], told["healthy"], told["url"]) == (False, False, None)
    assert runner.invoke(app, ["status", "--format", "csv"]).stdout == "component,health,restarts\n"


def test_down_where_nothing_runs() -> None:
    result = runner.invoke(app, ["down"])
    assert (result.exit_code, result.stdout) == (0, "Airflow was not running\n")


async def _submit(home: Path) -> tuple[LocalCluster, Job]:
    config = load_cluster("local")
    assert isinstance(config, LocalConfig)
    cluster = LocalCluster(config)
    folder = home / "experiments" / "sleeper"
    spec = JobSpec(
        name="sleeper",
        script="#!/bin/bash\nsleep 300\n",
        directory=str(folder),
        log_path=str(folder / "log.out"),
        slots=1,
        time_limit_s=300,
    )
    return cluster, await cluster.submit(spec)


@pytest.mark.long
def test_down_names_the_jobs_that_go_on_and_ends_them_when_asked(home: Path) -> None:
    cluster, job = asyncio.run(_submit(home))
    try:
        said = runner.invoke(app, ["down"]).stdout
        assert "1 training job keeps running" in said
        assert job.name in said
        assert [live.name for live in asyncio.run(cluster.live_jobs())] == [job.name]

        said = runner.invoke(app, ["down", "--cancel-jobs"]).stdout
        assert "1 training job was ended" in said
        assert asyncio.run(cluster.live_jobs()) == []
    finally:
        asyncio.run(cluster.cancel(job.name))
    assert job.name not in runner.invoke(app, ["down"]).stdout
