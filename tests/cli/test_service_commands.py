"""`steptime up`, `down` and `status` as commands; starting and stopping is in tests/service."""

import asyncio
import json
import webbrowser

import pytest
from typer.testing import CliRunner

from steptime.cli import app, service
from steptime.clusters.base import JobSpec
from steptime.clusters.config import load_cluster
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.errors import SystemFailure
from steptime.service import standalone
from steptime.service.standalone import AirflowStatus

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    return tmp_path


def test_status_where_nothing_runs():
    result = runner.invoke(app, ["status"])
    assert (result.exit_code, result.stdout) == (2, "Airflow is not running: start it with 'steptime up'\n")
    result = runner.invoke(app, ["status", "--format", "json"])
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert (told["running"], told["healthy"], told["url"]) == (False, False, None)
    assert runner.invoke(app, ["status", "--format", "csv"]).stdout == "component,health,restarts\n"


def test_down_where_nothing_runs():
    result = runner.invoke(app, ["down"])
    assert (result.exit_code, result.stdout) == (0, "Airflow was not running\n")


async def _submit(home):
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
def test_down_names_the_jobs_that_go_on_and_ends_them_when_asked(home):
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


RUNNING = AirflowStatus(
    running=True,
    healthy=False,
    url="http://127.0.0.1:8081",
    health={"metadatabase": "healthy", "dag_processor": "unhealthy"},
    restarts={"dag-processor": 3},
    dags=("steptime_a", "steptime_b"),
    import_errors={"mine.py": "no module"},
    running_dag_runs=("steptime_a/manual__1",),
)


def test_status_tells_all_of_a_running_airflow(monkeypatch):
    monkeypatch.setattr(standalone, "status", lambda: RUNNING)
    result = runner.invoke(app, ["status"])
    assert (result.exit_code, result.stderr) == (2, "steptime: Airflow cannot read mine.py: no module\n")
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "address: http://127.0.0.1:8081",
        "component health restarts",
        "metadatabase healthy",
        "dag_processor unhealthy 3",
        "DAGs: steptime_a, steptime_b",
        "running: steptime_a/manual__1",
    ]
    quiet = RUNNING.model_copy(
        update={"healthy": True, "import_errors": {}, "dags": (), "running_dag_runs": ()}
    )
    monkeypatch.setattr(standalone, "status", lambda: quiet)
    result = runner.invoke(app, ["status"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split()[1:] for line in result.stdout.splitlines()[-2:]] == [["none", "yet"], ["nothing"]]


@pytest.mark.parametrize(("ran_already", "how"), [(True, "runs already"), (False, "is ready after 0 s")])
def test_up_passes_its_options_on_and_tells_the_way_in(home, monkeypatch, ran_already, how):
    asked = {}

    def start(_announce, **options):
        asked.update(options)
        return RUNNING, ran_already

    monkeypatch.setattr(standalone, "up", start)
    monkeypatch.setattr(service, "password", lambda: "secret")
    result = runner.invoke(app, ["up", "--port", "8123", "--timeout", "77"])
    assert asked == {"port": 8123, "timeout_s": 77}
    assert result.stdout == (
        f"Airflow {how}\naddress:  http://127.0.0.1:8081\nuser:     admin\npassword: secret\n"
    )
    assert result.stderr == ""

    monkeypatch.setattr(standalone, "kept_settings", lambda: ["STEPTIME_CONFIG_DIR"])
    told = (
        "It was started with another STEPTIME_CONFIG_DIR than this shell has: 'steptime down' and 'steptime "
        "up' start it with this one.\n"
    )
    assert runner.invoke(app, ["up"]).stderr == (told if ran_already else "")


def test_open_without_airflow_fails_as_status_does():
    result = runner.invoke(app, ["open"])
    assert isinstance(result.exception, SystemFailure)
    assert str(result.exception).startswith("there is no page to open: Airflow is not running")


@pytest.mark.parametrize(
    ("screen", "opens", "said"), [(":0", True, ""), (":0", False, "no browser"), ("", True, "")]
)
def test_open_prints_the_page_and_opens_it_where_there_is_a_screen(monkeypatch, screen, opens, said):
    monkeypatch.setattr(standalone, "status", lambda: RUNNING)
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or opens)
    result = runner.invoke(app, ["open"])
    page = "http://127.0.0.1:8081/plugin/step-times"
    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    assert opened == ([page] if screen else [])
    assert said in result.stderr
    assert bool(said) is bool(result.stderr)
