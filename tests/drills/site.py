"""The site of drills: a real Airflow, the mini Slurm, a login of their own to it, and a small disk."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import yaml
from called import captured
from clusters.login_node import LoginNode
from end_to_end.driving import Airflow, running_airflow, start_airflow, wait_until
from free_ports import free_port
from postgresql_service import PostgreSQL, started_postgresql
from slurm_service import MiniSlurm
from sqlalchemy import NullPool, create_engine, text
from stand_ins.trainer_python import python_of_stand_in

from steptime import settings
from steptime.mini_slurm import processes, service
from steptime.service import connection_file
from steptime.service.processes import Service
from steptime.store.run_queries import Store

CLUSTER = "mini-slurm"
IMPATIENT = "impatient"
"""The same cluster in another file, which lets it be out of reach for at most 18 s."""
TRAINING_DAG = "steptime_llama3.1-25.04"
STAND_IN = Path(__file__).with_name("gated_trainer.py")
DAGS = f"""
from steptime.airflow.dag_builder import training_dag

training_dag("{TRAINING_DAG}", workload="llama3.1")
"""
SWEEP_DAG = "drilled_sweep"
SWEEP = f"""
from steptime.airflow.sweep.dag import sweep_dag

dag = sweep_dag("{SWEEP_DAG}", sweep="drilled")
"""
TRIAL_DAG = "drilled_trial"
TRIAL = f"""
from steptime.airflow.sweep.trial_dag import trial_dag

dag = trial_dag("{TRIAL_DAG}")
"""
_DISK_BYTES = 16 << 20
_DAGS_WITHIN_S = 900


@dataclass(frozen=True)
class Gate:
    """A place where a command of the login node reports its arrival and waits until it may go on."""

    folder: Path
    name: str

    @property
    def wait(self):
        """Return shell commands that wait until the gate is open."""
        closed, arrived = shlex.quote(str(self._closed)), shlex.quote(str(self._arrived))
        return f"echo $$ >> {arrived}; while [ -e {closed} ]; do sleep 0.1; done"

    @property
    def environment(self):
        """Return variables that bring the stand-in trainer to this gate."""
        return {"STAND_IN_GATE": str(self.folder / self.name)}

    @property
    def arrived(self):
        """Return how many have arrived at the gate."""
        return len(self._arrived.read_text().split()) if self._arrived.exists() else 0

    def close(self):
        self._arrived.unlink(missing_ok=True)
        self._closed.touch()

    def open(self):
        self._closed.unlink(missing_ok=True)

    @property
    def _closed(self):
        return self.folder / f"{self.name}.closed"

    @property
    def _arrived(self):
        return self.folder / f"{self.name}.arrived"


@dataclass(frozen=True)
class Site:
    """The systems that a drill can strike."""

    airflow: Airflow
    slurm: MiniSlurm
    login: LoginNode
    gates: Path
    config: Path
    postgresql: PostgreSQL | None
    """The server of the metrics store; without one it is an SQLite file on the small disk."""
    impatient: bool
    """Whether its Airflow declares workers, schedulers and triggerers dead sooner than usual."""

    @property
    def work(self):
        """Return the cluster's `work_dir`."""
        return self.airflow.home / "work"

    @property
    def disk(self):
        """Return the small disk that an SQLite store is on."""
        return self.airflow.home / "store"

    @property
    def store_url(self):
        return self.postgresql.url if self.postgresql else f"sqlite:///{self.disk / 'steptime.db'}"

    @property
    def store(self):
        return Store(self.store_url)

    @property
    def filler(self):
        """Return the file that fills that disk."""
        return self.disk / "filler"

    @property
    def sweep_file(self):
        """Return the file of the sweep in drills."""
        return self.config / "sweeps/drilled.yaml"

    @property
    def dag_file(self):
        """Return the file of the two DAGs that train one run."""
        return self.config.with_name("dags") / "workloads.py"

    def keep_login(self, login):
        """Make this Airflow's connection to the cluster."""
        _keep(self.airflow.home, login)

    def gate(self, name):
        return Gate(self.gates, name)

    def component(self, name):
        """Wait for a living component of Airflow, as the supervisor restarts it; return its process."""

        def look():
            state = json.loads((self.airflow.home / "airflow/service/components.json").read_text())
            (pid,) = [one["pid"] for one in state["components"] if one["name"] == name]
            with suppress(psutil.NoSuchProcess):
                if pid and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                    return process
            return None

        return wait_until(f"the {name}", look)

    def service(self):
        """Return the state file's entry of Airflow's supervisor, which may be dead; None after `down`."""
        file = self.airflow.home / "airflow/service.json"
        return Service.model_validate_json(file.read_text()) if file.exists() else None

    def start_airflow(self, announce=lambda _: None):
        """Start Airflow as `steptime up` does; its address must not change."""
        dags = self.config.with_name("dags")
        port = urlsplit(self.airflow.url).port
        started = start_airflow(
            *(self.airflow.home, self.config, dags, announce, port),
            impatient=self.impatient,
            store_url=self.postgresql and self.postgresql.url,
        )
        assert started.url == self.airflow.url, "Airflow has moved"

    def strays(self):
        """Return the processes of Airflow that are not in the session that the state file names."""
        service = self.service()
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                # Jobs run in the cluster's folder, not in Airflow's.
                of_airflow = Path(process.cwd()) == self.airflow.home / "airflow"
                if of_airflow and (service is None or os.getsid(process.pid) != service.pid):
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found

    def require_dags(self):
        """Wait until the DAGs of drills can be triggered, which is later than when they are listed."""
        for dag_id in (TRAINING_DAG, SWEEP_DAG, TRIAL_DAG):
            wait_until(f"the DAG {dag_id}", partial(self._has_dag, dag_id), _DAGS_WITHIN_S)

    def _has_dag(self, dag_id):
        broken = self.airflow.client.import_errors()
        assert not broken, f"Airflow cannot read its DAGs: {broken}"
        return self.airflow.knows(dag_id)

    def airflow_rows(self, query, *values):
        """Return the rows of a query to Airflow's database."""
        database = self.airflow.home / "airflow" / "airflow.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
            return connection.execute(query, values).fetchall()

    def store_rows(self, query, **values):
        """Return the rows of a query to the metrics store; none if it has no tables yet."""
        engine = create_engine(self.store_url, poolclass=NullPool)
        with engine.connect() as connection:
            if not engine.dialect.has_table(connection, "runs"):
                return []
            return list(connection.execute(text(query), values))

    def restore(self):
        """Mend whatever a drill may have left broken."""
        for entry in self.gates.iterdir():  # keep the folder, as somebody may still write
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        for wrapper in self.login.bin.iterdir():
            wrapper.unlink()
        self.filler.unlink(missing_ok=True)
        if self.postgresql:
            self.postgresql.restart()
        self.login.stop()
        self.login.start()
        self.keep_login(self.login.login())
        daemons = processes.daemons(self.slurm.layout)
        for daemon in daemons.values():
            daemon.resume()
        service.up(self.slurm.home, print)
        self.slurm.command("scontrol", "update", "PartitionName=batch", "State=UP")
        self.start_airflow()
        for run in self.airflow.client.running_dag_runs():
            self.airflow.mark_run_failed(run)
            self.airflow.ended(run)
        service.cancel_jobs(self.slurm.layout, print)


def _write_config(folder, python, environment):
    """Write the shipped config, with the mini Slurm polled every second, a sweep of one run, and a trial."""
    shipped = settings.shipped("config")
    for path in shipped.rglob("*.yaml"):
        copy = folder / path.relative_to(shipped)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    file = folder / "clusters" / f"{CLUSTER}.yaml"
    cluster = yaml.safe_load(file.read_text())
    cluster |= {"work_dir": "{STEPTIME_HOME}/work", "python": str(python), "poll_interval_s": 1}
    file.write_text(yaml.safe_dump(cluster))
    file.with_stem(IMPATIENT).write_text(yaml.safe_dump(cluster | {"name": IMPATIENT, "patience_h": 0.005}))
    sweep = {
        "name": "drilled",
        "description": "One run, for drills",
        "cluster": CLUSTER,
        "gpu_hours_max": 10,
        "runs": [{"workload": "llama3.1", "size": "tiny", "gpus": "1", "environment": environment}],
    }
    (folder / "sweeps" / "drilled.yaml").write_text(yaml.safe_dump(sweep))
    trial = {
        "name": "drilled",
        "cluster": CLUSTER,
        "gpu_hours_max": 10,
        "run": {"workload": "llama3.1", "size": "tiny", "gpus": 1, "environment": environment},
        "variants": {"a": {}, "b": {}},
        "rounds_max": 2,
    }
    (folder / "trials" / "drilled.yaml").write_text(yaml.safe_dump(trial))


@contextmanager
def open_site(slurm, environment, *, impatient=True, on_postgresql=False):
    """Yield a site with one Airflow and one login; `environment` is what the login's profile sets."""
    # Not in pytest's folder, which a later session may delete: a disk is mounted here.
    with tempfile.TemporaryDirectory(prefix="steptime-drills-") as folder, ExitStack() as open_things:
        home, gates = Path(folder, "home"), Path(folder, "gates")
        gates.mkdir()
        login = LoginNode(slurm, Path(folder, "login"), environment=environment)
        open_things.callback(login.stop)
        open_things.enter_context(_small_disk(home / "store"))
        postgresql = open_things.enter_context(started_postgresql()) if on_postgresql else None
        store_url = postgresql.url if postgresql else None
        if store_url:
            patched = open_things.enter_context(pytest.MonkeyPatch.context())
            patched.setenv("STEPTIME_STORE_URL", store_url)  # for the command
        training = Gate(gates, "training")
        airflow = open_things.enter_context(
            _drilled_airflow(home, Path(folder), login, training, impatient=impatient, store_url=store_url)
        )
        yield Site(airflow, slurm, login, gates, Path(folder, "config"), postgresql, impatient)


@contextmanager
def _small_disk(folder):
    """Mount a file system on `folder` that is small enough to be filled."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    folder.mkdir(parents=True)
    size = f"size={_DISK_BYTES},uid={os.getuid()},mode=700"
    mounted = captured([*sudo, "mount", "-t", "tmpfs", "-o", size, "drill-disk", folder])
    assert mounted.returncode == 0, f"drills need a small disk, which only root can mount: {mounted.stderr}"
    try:
        yield
    finally:
        subprocess.run([*sudo, "umount", "--lazy", folder], check=True)


@contextmanager
def _drilled_airflow(home, folder, login, training, *, impatient, store_url):
    """Yield a running Airflow with the DAGs of drills and a connection to the login node."""
    dags, config = folder / "dags", folder / "config"
    dags.mkdir()
    (dags / "workloads.py").write_text(DAGS)
    (dags / f"{SWEEP_DAG}.py").write_text(SWEEP)
    (dags / f"{TRIAL_DAG}.py").write_text(TRIAL)
    _write_config(config, python_of_stand_in(folder, STAND_IN), training.environment)
    _keep(home, login.login())
    # A port of its own: another Airflow could take one near the default while this one is down.
    port = free_port()
    with running_airflow(home, config, dags, port, impatient=impatient, store_url=store_url) as airflow:
        yield airflow


def _keep(home, login):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STEPTIME_HOME", str(home))
        connection_file.keep(login)
