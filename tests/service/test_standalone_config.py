"""The `airflow.cfg` of `steptime up`."""

import configparser
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kept import assert_kept
from sqlalchemy import create_engine, text

from steptime.errors import SystemFailure
from steptime.service import standalone
from steptime.service.standalone_config import child_environment, write_config
from steptime.service.supervisor import LONGEST_PAUSE_S
from steptime.settings import dags_dir


def test_writers_of_airflows_database_wait_for_each_other(airflow_cfg, tmp_path):
    """With Python's default of five seconds, a triggerer exits with "database is locked"."""
    engine = create_engine(airflow_cfg["database"]["sql_alchemy_conn"])
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 20_000
    engine.dispose()
    assert (tmp_path / "airflow/airflow.db").is_file(), "the time limit is not part of the file's name"


def test_airflow_cfg_is_as_reviewed(tmp_path, monkeypatch):
    """After an intended change, rewrite it with STEPTIME_UPDATE_GOLDEN=1 and review `git diff`."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    path = write_config(8123)
    text = path.read_text()
    for secret in json.loads((tmp_path / "airflow" / "keys.json").read_text()).values():
        assert secret in text
        text = text.replace(secret, "SECRET")
    assert_kept("airflow.cfg", text.replace(str(dags_dir()), "DAGS").replace(str(tmp_path), "HOME"))
    private = ("airflow.cfg", "keys.json", "passwords.json")
    assert [(path.parent / name).stat().st_mode & 0o777 for name in private] == [0o600] * 3


def test_tasks_ask_for_longer_than_a_dead_api_server_may_be_away(airflow_cfg):
    """This is the shortest case, as each pause is a random time between two limits."""
    retries = airflow_cfg.getint("workers", "execution_api_retries")
    least_s = airflow_cfg.getfloat("workers", "execution_api_retry_wait_min")
    assert (retries - 1) * least_s > LONGEST_PAUSE_S + 30, "the pause and the start"


def test_a_folder_with_a_percent_sign_is_read_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(home := tmp_path / "100%(sure)s"))
    config = configparser.ConfigParser()
    config.read(write_config(8080))
    assert config["core"]["plugins_folder"] == str(home / "airflow/plugins")


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "a.example"}, "a.example,127.0.0.1,localhost"),
        ({"NO_PROXY": "b.example"}, "b.example,127.0.0.1,localhost"),
    ],
)
def test_airflow_runs_this_pythons_programs_and_calls_itself_directly(monkeypatch, given, direct):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**given, "PATH": "/opt/other/bin", "AIRFLOW__CORE__FERNET_KEY": "theirs"}.items():
        monkeypatch.setenv(name, value)
    environment = child_environment()
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/opt/other/bin"
    assert environment["no_proxy"] == environment["NO_PROXY"] == direct
    assert "AIRFLOW__CORE__FERNET_KEY" not in environment


@pytest.mark.parametrize(
    ("wanted", "last", "busy", "found", "said"),
    [
        (None, None, (), standalone.DEFAULT_PORT, []),
        (None, 9000, (), 9000, []),
        (7000, 9000, (), 7000, []),
        (7000, None, range(7000, 7003), 7003, ["port 7000 is busy; taking 7003"]),
        (7000, None, range(7000, 7049), 7049, ["port 7000 is busy; taking 7049"]),
        (7000, None, range(7000, 7050), "no port from 7000 to 7049 is free", []),
        (65530, None, range(65530, 65536), "no port from 65530 to 65535 is free", []),
    ],
)
def test_the_port_is_the_first_free_one_from_the_wanted_one_on(
    monkeypatch,
    wanted,
    last,
    busy,
    found,
    said,
):
    monkeypatch.setattr(standalone, "is_free", lambda port: port not in busy)
    told = []

    def port():
        before = SimpleNamespace(port=last) if last else None
        return standalone._free_port(wanted, before, told.append)

    if isinstance(found, str):
        with pytest.raises(SystemFailure, match=found):
            port()
    else:
        assert port() == found
    assert told == said
