"""`steptime slurm up`, `down` and `status` as commands; the cluster is in tests/mini_slurm."""

import json
from pathlib import Path

import pytest
from called import steptime
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.connections import Connection
from steptime.mini_slurm import daemons, layout, service
from steptime.mini_slurm.service import SlurmStatus
from steptime.service import connection_file

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    return tmp_path


def test_status_where_nothing_runs():
    result = runner.invoke(app, ["slurm", "status"])
    assert (result.exit_code, result.stdout) == (
        2,
        "Slurm is not running: start it with 'steptime slurm up'\n",
    )
    result = runner.invoke(app, ["slurm", "status", "--format", "json"])
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert (told["running"], told["healthy"], told["ssh"]) == (False, False, None)
    assert runner.invoke(app, ["slurm", "status", "--format", "csv"]).stdout == "daemon,state,port\n"


def test_status_tells_all_of_a_slurm_that_runs(monkeypatch):
    running = SlurmStatus(
        running=True,
        healthy=False,
        daemons={"slurmctld": True, "sshd": False},
        nodes={"IDLE": 6, "DOWN": 2},
        jobs={},
        ports={"slurmctld": 6817},
        ssh="ssh -p 2222 localhost",
        slurm_conf="/home/slurm.conf",
        problem="sshd is stopped",
    )
    monkeypatch.setattr(service, "status", lambda _: running)
    result = runner.invoke(app, ["slurm", "status"])
    assert (result.exit_code, result.stderr) == (2, "steptime: sshd is stopped\n")
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "daemon state port",
        "slurmctld running 6817",
        "sshd stopped",
        "nodes: 2 down, 6 idle",
        "jobs: none",
        "log in: ssh -p 2222 localhost",
        "SLURM_CONF: /home/slurm.conf",
    ]


def test_down_where_nothing_runs(home):
    result = runner.invoke(app, ["slurm", "down", "--purge"])
    assert (result.exit_code, result.stdout) == (0, "Slurm was not running\n")
    assert list(home.iterdir()) == [], "nothing was made in order to be stopped"

    connection_file.keep(Connection(name=layout.CONNECTION, kind="ssh", host="127.0.0.1"))
    runner.invoke(app, ["slurm", "down"])
    assert json.loads(connection_file.path().read_text()) == {}, "Airflow has no way to it any more"


def test_missing_packages_are_a_matter_of_the_system(home, monkeypatch, capsys):
    monkeypatch.setattr(layout, "search_path", lambda: str(home / "empty"))
    assert steptime("slurm", "up") == 2
    said = capsys.readouterr().err
    assert "apt-get install --no-install-recommends mariadb-server munge openssh-client" in said
    assert list(home.iterdir()) == []


@pytest.mark.slurm
def test_up_tells_how_to_log_in_and_lets_airflow_know(mini_slurm, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(mini_slurm.home))
    result = runner.invoke(app, ["slurm", "up"])
    assert result.exit_code == 0, result.stderr
    assert "Slurm runs already" in result.stdout
    assert f"SLURM_CONF: {mini_slurm.layout.slurm_conf}" in result.stdout
    kept = json.loads(connection_file.path().read_text())["mini_slurm"]
    assert kept["port"] == mini_slurm.layout.ports.sshd
    assert Path(kept["extra_dejson"]["key_file"]).is_file()

    result = runner.invoke(app, ["slurm", "status", "--format", "json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["daemons"] == dict.fromkeys(daemons.ALL, True)
    assert "8 idle" in runner.invoke(app, ["slurm", "status"]).stdout
