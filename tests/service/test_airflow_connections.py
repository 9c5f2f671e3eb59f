"""Connections that this machine's Airflow has are read by Airflow's own command."""

import json
import sys

import psutil
import pytest

from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure, UserError
from steptime.service import airflow_connections
from steptime.service.airflow_connections import airflow_connection

KEPT = {
    "conn_type": "ssh",
    "host": "login.example.org",
    "port": "2222",
    "login": "ada",
    "password": "hunter2",
    "extra_dejson": {"host_key": "ssh-ed25519 AAAA"},
}
EMPTY = dict.fromkeys(KEPT)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that replaces `airflow connections get NAME --output json` by a program."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow/__init__.py").touch()
    return lambda text: (tmp_path / "airflow/__main__.py").write_text(f"import sys\n{text}\n") and None


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (
            KEPT,
            Connection(
                name="mine",
                kind="ssh",
                host="login.example.org",
                port=2222,
                login="ada",
                password="hunter2",
                extra={"host_key": "ssh-ed25519 AAAA"},
            ),
        ),
        (EMPTY, Connection(name="mine", kind="", host="", port=None, login="", password="", extra={})),
    ],
    ids=["whole", "empty"],
)
async def test_what_airflow_prints_is_read(program, kept, found):
    """Airflow may log to its standard output, before and after."""
    asked = ["connections", "get", "mine", "--output", "json"]
    log = "2026-11-28T13:09:22.813822Z [warning  ] sql_alchemy_conn has moved [py.warnings] lineno=69"
    program(f"assert sys.argv[1:] == {asked}\nprint({log!r})\nprint({json.dumps([kept])!r})\nprint({log!r})")
    assert await airflow_connection("mine") == found


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("sys.exit('x\\nConnection not found.')", UserError, "no connection 'mine': .* AIRFLOW_CONN_MINE"),
        ("print('said here'); sys.exit(1)", SystemFailure, "get mine' failed: said here"),
        ("print('x'); sys.exit('first\\nlast')", SystemFailure, "failed: last"),
        ("sys.exit(3)", SystemFailure, "failed: no output"),
    ],
)  # fmt: skip
async def test_what_it_refuses_is_told(program, text, error, sentence):
    program(text)
    with pytest.raises(error, match=sentence):
        await airflow_connection("mine")


async def test_one_that_does_not_answer_is_ended(program, monkeypatch):
    program("import time; time.sleep(600)")
    monkeypatch.setattr(airflow_connections, "_TIMEOUT_S", 0.1)
    before = psutil.Process().children()
    with pytest.raises(SystemFailure, match=r"did not answer within 0.1 s"):
        await airflow_connection("mine")
    assert psutil.Process().children() == before


async def test_without_an_airflow_nothing_is_started(program, monkeypatch):
    monkeypatch.delenv("AIRFLOW_HOME")
    monkeypatch.setattr(sys, "executable", "/gone")
    with pytest.raises(
        UserError, match="there is no Airflow on this machine to look up the connection 'mine'"
    ):
        await airflow_connection("mine")
