"""A second installation of Airflow and steptime: own database and store, same cluster folder and account.

It has no services: as a program this file runs one DAG run whole, with the id that the first one's has.
Arguments: RUN_ID RUN_AFTER PARAMS.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from steptime.clusters.connections import Connection

_DAG = """
from steptime.airflow.dag_builder import training_dag

training_dag("llama31", workload="llama3.1")
"""


@dataclass
class SecondInstallation:
    """Made when it is first needed."""

    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(
        self,
        *,
        run_id: str,
        run_after: datetime,
        params: dict[str, Any],
        config: Path,
        work: Path,
        login: Connection,
    ) -> None:
        """Begin a run of the DAG `llama31`, on the cluster of `config`, whose `work_dir` is `work`."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW_", "STEPTIME_"))
        }
        environment |= self._environment(config, work, login)
        if not (self.folder / "airflow/airflow.db").exists():
            subprocess.run(
                [Path(sys.executable).with_name("airflow"), "db", "migrate"],
                env=environment,
                check=True,
                capture_output=True,
            )
        arguments = [run_id, run_after.isoformat(), json.dumps(params)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def succeeded(self) -> bool:
        """Whether its run has; fails where it has ended otherwise."""
        assert self.process is not None
        ended = self.process.poll()
        assert not ended, f"the second installation's run failed: {self.log.read_text()[-4000:]}"
        return ended == 0

    @property
    def log(self) -> Path:
        """What its latest run said."""
        return self.folder / "run.log"

    def stop(self) -> None:
        """End a run that is still under way."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _environment(self, config: Path, work: Path, login: Connection) -> dict[str, str]:
        mine = self.folder / "config"
        if not mine.exists():
            shutil.copytree(config, mine)
            for file in (mine / "clusters").iterdir():
                cluster = yaml.safe_load(file.read_text())
                cluster["work_dir"] = cluster["work_dir"].replace("{STEPTIME_HOME}/work", str(work))
                file.write_text(yaml.safe_dump(cluster))
            (self.folder / "dags").mkdir()
            (self.folder / "dags" / "llama31.py").write_text(_DAG)
        kept = {"conn_type": login.kind, "host": login.host, "port": login.port, "login": login.login}
        return {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__API__BASE_URL": "http://second.example",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_MINI_SLURM": json.dumps({**kept, "extra": dict(login.extra)}),
            "STEPTIME_HOME": str(self.folder / "home"),
            "STEPTIME_CONFIG_DIR": str(mine),
        }


def _run(run_id: str, run_after: str, params: str) -> bool:
    """Whether the DAG run succeeded."""
    from airflow.models.dagrun import DagRun

    from steptime.airflow.dag_builder import training_dag

    DagRun.generate_run_id = staticmethod(lambda **_: run_id)
    dag = training_dag("llama31", workload="llama3.1")
    dag_run = dag.test(
        run_after=datetime.fromisoformat(run_after), logical_date=None, run_conf=json.loads(params)
    )
    return bool(dag_run.run_id == run_id and dag_run.state == "success")


if __name__ == "__main__":
    sys.exit(0 if _run(*sys.argv[1:]) else 1)
