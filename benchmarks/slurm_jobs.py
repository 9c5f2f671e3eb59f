"""A mini Slurm of a benchmark's own, with short jobs on it, and what reaches it from this process."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from steptime import settings
from steptime.clusters.base import Job
from steptime.mini_slurm import daemons, login, service
from steptime.mini_slurm.layout import SlurmLayout

CLUSTER = "polled"
_CLUSTER_FILE = f"""
name: {CLUSTER}
kind: slurm
gpu_type: cpu
connection: mini_slurm
work_dir: "{{STEPTIME_HOME}}/work"
"""


@contextmanager
def mini_slurm(home: Path, interval_s: float) -> Iterator[SlurmLayout]:
    """A Slurm in a state folder, for so long, polled at this interval; and settings that lead to it.

    They are of steptime and Airflow for this process and its children: import neither before.
    """
    config = home / "config"
    (config / "clusters").mkdir(parents=True)
    for entry in settings.shipped("config").iterdir():
        if entry.name != "clusters":
            (config / entry.name).symlink_to(entry)
    (config / f"clusters/{CLUSTER}.yaml").write_text(f"{_CLUSTER_FILE}poll_interval_s: {interval_s}\n")
    os.environ |= {
        "STEPTIME_HOME": str(home),
        "STEPTIME_CONFIG_DIR": str(config),
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    try:
        layout, _ = service.up(home, lambda _: None)
        _keep_logins(layout)
        yield layout
    finally:
        service.down(home, lambda _: None)


def submit(
    layout: SlurmLayout, work: Path, script: str, jobs: Iterable[tuple[str, list[str]]], *options: str
) -> list[Job]:
    """Submit a script for each name, with its arguments, in a folder of that name; `options` are sbatch's."""
    submitted = []
    for name, arguments in jobs:
        folder = work / name
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text(script)
        places = [f"--job-name={name}", f"--chdir={folder}", f"--output={folder}/log", "--parsable"]
        job_id = daemons.command(layout, "sbatch", *places, *options, f"{folder}/job.sh", *arguments)
        submitted.append(
            Job(
                cluster=CLUSTER,
                name=name,
                job_id=job_id.strip(),
                directory=str(folder),
                log_path=f"{folder}/log",
                submitted_at=time.time(),
            )
        )
    return submitted


def ended_at(job: Job) -> float:
    """When the last command of a job's script ran, which writes that down as `ended`; unix seconds."""
    return float(Path(job.directory, "ended").read_text())


def _keep_logins(layout: SlurmLayout) -> None:
    """The login as two connections of Airflow: the provider's hook takes the host's key from a file."""
    ours = login.connection(layout)
    in_file = {"key_file": ours.extra["key_file"], "known_hosts": f"{layout.root}/ssh/known_hosts"}
    kept = {"conn_type": "ssh", "host": ours.host, "port": ours.port, "login": ours.login}
    os.environ["AIRFLOW_CONN_MINI_SLURM"] = json.dumps({**kept, "extra": dict(ours.extra)})
    os.environ["AIRFLOW_CONN_STOCK"] = json.dumps({**kept, "extra": in_file})
