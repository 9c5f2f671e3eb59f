"""What `airflow.cfg` of `steptime up` has."""

import configparser
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from steptime.service.standalone_config import write_config


def test_writers_of_airflows_database_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A triggerer ends of "database is locked", after Python's five seconds."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    config = configparser.ConfigParser()
    config.read(write_config(8080))
    engine = create_engine(config["database"]["sql_alchemy_conn"])
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 60_000
    engine.dispose()
    assert (tmp_path / "airflow/airflow.db").is_file(), "the patience is no part of its name"
