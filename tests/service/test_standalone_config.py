"""What `airflow.cfg` of `steptime up` has."""

from configparser import ConfigParser
from pathlib import Path

from sqlalchemy import create_engine, text


def test_writers_of_airflows_database_wait_for_each_other(airflow_cfg: ConfigParser, tmp_path: Path) -> None:
    """A triggerer ends of "database is locked", after Python's five seconds."""
    engine = create_engine(airflow_cfg["database"]["sql_alchemy_conn"])
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 60_000
    engine.dispose()
    assert (tmp_path / "airflow/airflow.db").is_file(), "the patience is no part of its name"
