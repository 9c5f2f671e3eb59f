"""The commands of the pages for backup, restore and uninstalling, as they stand there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy
from postgresql_service import started_postgresql

from steptime.airflow.installation import KEY_PREFIX
from steptime.airflow.versions import ListedVariable
from steptime.dag_ids import SWEEP
from steptime.store.run_queries import Store

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"


def commands(page, section):
    """Return the first block of commands below a heading of a page."""
    text = (PAGES / page).read_text(encoding="utf-8").partition(f"\n{section}\n")[2]
    block = re.search(r"^( *)```bash\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    assert block, (page, section)
    return block[2]


@pytest.fixture(scope="module")
def postgresql():
    with started_postgresql() as server:
        yield server


@pytest.mark.service
def test_a_backup_is_restored_over_a_newer_store(postgresql, tmp_path):
    [dump] = re.findall(
        r"exec -T store-db (pg_dump .*) > ", commands("team-deployment.md", "## Look after it")
    )
    [restore] = re.findall(
        r"exec -T store-db (pg_restore .*) < ", commands("team-deployment.md", "### Restore")
    )
    admin = sqlalchemy.create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE DATABASE steptime"))
    admin.dispose()
    url = postgresql.url.replace("/postgres?", "/steptime?")
    environment = os.environ | {"PGHOST": str(postgresql.folder)}
    store = sqlalchemy.create_engine(url)

    def tables():
        return set(sqlalchemy.inspect(store).get_table_names())

    assert Store(url).results() == []  # makes the tables
    with store.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE of_the_backup (x integer)"))
    backed_up = tables()
    with (tmp_path / "store.dump").open("wb") as file:
        subprocess.run(shlex.split(dump), stdout=file, env=environment, check=True)
    with store.begin() as connection:
        connection.execute(sqlalchemy.text("DROP TABLE of_the_backup"))
        connection.execute(sqlalchemy.text("ALTER TABLE runs DROP COLUMN label CASCADE"))
    with (tmp_path / "store.dump").open("rb") as file:
        subprocess.run(shlex.split(restore), stdin=file, env=environment, check=True)

    assert tables() == backed_up
    assert Store(url).results() == []
    store.dispose()


@pytest.mark.exhaustive
def test_uninstalling_leaves_nothing_of_steptime_in_airflow(tmp_path):
    (tmp_path / "dags").mkdir()
    # Two are enough, as the command starts a program for each.
    ours = {SWEEP, "steptime_llama3.1-25.04"}
    make = f"from airflow.sdk import DAG\nfor name in {sorted(ours)}:\n    with DAG(name):\n        pass\n"
    (tmp_path / "dags" / "steptime_dags.py").write_text(make)
    (tmp_path / "dags" / "steptime_config_files.py").write_text("")
    (tmp_path / "dags" / "theirs.py").write_text(
        'from airflow.sdk import DAG\ndag = DAG("theirs_steptime_x")\n'
    )
    programs = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }

    def bash(script):
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    variables = {f"{KEY_PREFIX}0123abc": "x", ListedVariable.INDEX: "x", "theirs": "x"}
    (tmp_path / "variables.json").write_text(json.dumps(variables))
    bash("airflow db migrate; airflow dags reserialize")
    bash('airflow variables import "$AIRFLOW_HOME/variables.json"')
    database = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'airflow.db'}")

    def listed():
        query = "SELECT dag_id FROM dag UNION SELECT key FROM variable"
        with database.connect() as connection:
            return set(connection.scalars(sqlalchemy.text(query)))

    assert listed() == {*ours, *variables, "theirs_steptime_x"}

    bash(commands("install.md", "## Uninstall"))
    assert listed() == {"theirs_steptime_x", "theirs"}
    database.dispose()
