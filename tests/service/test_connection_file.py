"""Connections that steptime keeps for its Airflow: Airflow's own search finds them without a restart."""

import asyncio
import json
import stat
import subprocess
import sys

import pytest

from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure
from steptime.service import connection_file
from steptime.service.standalone_config import child_environment, write_config

LOGIN = Connection(
    name="mini_slurm",
    kind="ssh",
    host="127.0.0.1",
    port=2222,
    login="alice",
    password="hunter2%",
    extra={"key_file": "/keys/id", "host_key": "ssh-ed25519 AAAA", "no_host_key_check": "false"},
)

ASK = """
import asyncio, dataclasses, json, sys, warnings
warnings.simplefilter("ignore")
from steptime.airflow.connections import airflow_connection
from steptime.errors import UserError

for name in sys.stdin:
    try:
        answer = dataclasses.asdict(asyncio.run(airflow_connection(name.strip())))
    except UserError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.service
def test_a_running_airflow_finds_what_is_kept_and_what_has_changed(home):
    """The process searches for connections as the API server does, for every task and trigger."""
    write_config(8080)
    with subprocess.Popen(
        [sys.executable, "-c", ASK],
        env=child_environment()
        | {"_AIRFLOW_PROCESS_CONTEXT": "server", "AIRFLOW_CONN_ELSEWHERE": "ssh://bob@example.org"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as airflow:

        def ask(name):
            assert airflow.stdin
            assert airflow.stdout
            airflow.stdin.write(f"{name}\n")
            return json.loads(next(line for line in airflow.stdout if line.startswith(("{", '"'))))

        assert "has no connection 'mini_slurm'" in ask("mini_slurm")
        connection_file.keep(LOGIN)
        assert Connection(**ask("mini_slurm")) == LOGIN
        assert ask("elsewhere")["login"] == "bob", "connections of other places are found as before"
        connection_file.forget("mini_slurm")
        assert "has no connection 'mini_slurm'" in ask("mini_slurm")


def test_the_file_is_its_owners_alone(home):
    connection_file.keep(LOGIN)
    connection_file.forget("of another name")
    assert stat.S_IMODE(connection_file.path().stat().st_mode) == 0o600
    assert list(json.loads(connection_file.path().read_text())) == ["mini_slurm"]


def test_several_at_once_lose_nothing(home):
    async def keep_all():
        names = [f"cluster{number}" for number in range(8)]
        await asyncio.gather(
            *(
                asyncio.to_thread(connection_file.keep, Connection(name=name, kind="ssh", host="h"))
                for name in names
            )
        )

    asyncio.run(keep_all())
    assert len(json.loads(connection_file.path().read_text())) == 8


def test_a_damaged_file_is_not_overwritten(home):
    connection_file.ensure()
    connection_file.path().write_text("{")
    with pytest.raises(SystemFailure, match=r"connections.json is damaged: delete it"):
        connection_file.keep(LOGIN)
    assert connection_file.path().read_text() == "{"
