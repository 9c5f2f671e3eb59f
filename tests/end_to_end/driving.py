"""Driving a real Airflow as its users do: through the command line, the REST API and processes."""

import asyncio
import json
import os
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
import psutil
import pytest
from called import CLI, ended_if_killed
from stand_ins.trainer_python import STAND_IN

from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.clusters.local.state import JobFolder
from steptime.errors import SystemFailure
from steptime.service import standalone, standalone_config
from steptime.service.rest import AirflowClient

Found = TypeVar("Found")
_HEARTBEAT_TIMEOUT_S = 20
"""Seconds after which a worker counts as dead: a third of what `steptime up` sets."""
_SCHEDULER_TIMEOUT_S = 30
"""Seconds after which a scheduler counts as dead and loses its tasks: a quarter of the usual."""
_STARTS_WITHIN_S = 2700
"""Nine times what `steptime up` allows, as no test here is about the time that a start takes."""
_TRIGGERER_TIMEOUT_S = 10
"""Seconds after which a triggerer counts as dead and loses its triggers: a third of Airflow's default."""


@dataclass(frozen=True)
class Airflow:
    """A running Airflow and the commands that drive it, as a user's shell would."""

    home: Path
    config: Path
    dags: Path
    url: str
    user: str
    password: str
    client: AirflowClient

    def results(self):
        """Return the valid results in the store."""
        listing = self.steptime("results", "--format", "json")
        assert listing.returncode == 0, listing.stderr
        return json.loads(listing.stdout)["results"]

    def steptime(self, *arguments, timeout_s=600):
        return steptime(self.home, *arguments, timeout_s=timeout_s, STEPTIME_CONFIG_DIR=str(self.config))

    def trigger(self, dag_id="steptime_llama3.1-25.04", **params):
        """Start a DAG of Llama 3.1: by default one short run on one rank and no checkpoint."""
        return self.client.trigger(dag_id, {"gpus": "1", "checkpoint": False, **params}, patience_s=60)

    def trigger_as(self, dag_run_id, dag_id="steptime_llama3.1-25.04"):
        """Start a DAG under a given id; return the status of Airflow's answer."""
        body = {"dag_run_id": dag_run_id, "logical_date": None, "conf": {"gpus": "1"}}
        return self.answer("POST", f"/api/v2/dags/{dag_id}/dagRuns", body).status_code

    def task(self, run, task_id, map_index=0):
        for task in self.client.task_instances(run.dag_id, run.dag_run_id):
            if task.task_id == task_id and task.map_index in (map_index, -1):
                return task
        return None

    def log_text(self, run, task):
        lines = self.client.log(run.dag_id, run.dag_run_id, task)
        return "\n".join(f"{line.event} {line.error or ''}" for line in lines)

    def ended(self, run, deadline_s=600):
        """Wait until the DAG run has ended; return it."""

        def look():
            now = self.client.dag_run(run.dag_id, run.dag_run_id)
            return now if now.has_ended else None

        return wait_until(f"the end of {run.dag_run_id}", look, deadline_s)

    def params(self, run):
        """Return the params with which a DAG run was triggered."""
        return self._send("GET", _path(run))["conf"]

    def asset_event(self, uri, dag_id, run=None):
        """Return the extra of an asset's newest event that a DAG, or one run of it, has emitted."""
        of_run = "" if run is None else f"&source_run_id={quote(run.dag_run_id, safe='')}"
        query = f"source_dag_id={dag_id}{of_run}&order_by=-timestamp&limit=100"
        events = self._send("GET", f"/api/v2/assets/events?{query}")["asset_events"]
        return next(event["extra"] for event in events if event["uri"] == uri)

    def run_after(self, run):
        """Return the time from which a DAG run may run; a scheduled one's is equal in every Airflow."""
        return datetime.fromisoformat(self._send("GET", _path(run))["run_after"])

    def mark_failed(self, run, task):
        """Mark a task as failed, as the button *Mark as failed* does."""
        tasks = f"{_path(run)}/taskInstances"
        mapped = "" if task.map_index < 0 else f"/{task.map_index}"
        self._send("PATCH", f"{tasks}/{task.task_id}{mapped}", {"new_state": "failed"})

    def mark_run_failed(self, run):
        """Mark a DAG run as failed, as its button *Mark as failed* does."""
        self._send("PATCH", _path(run), {"state": "failed"})

    def delete(self, run):
        """Delete a DAG run, as its button *Delete* does."""
        self._send("DELETE", _path(run))

    def delete_dag(self, run):
        """Delete a DAG, as its button *Delete* does, until Airflow reads its file again."""
        self._send("DELETE", f"/api/v2/dags/{run.dag_id}")

    def clear(self, run, task):
        """Clear one task and those after it, as the button *Clear* does."""
        task_ids = [task.task_id if task.map_index < 0 else [task.task_id, task.map_index]]
        body = {
            "dag_run_id": run.dag_run_id,
            "task_ids": task_ids,
            "dry_run": False,
            "only_failed": False,
            "include_downstream": True,
            "reset_dag_runs": True,
        }
        self._send("POST", f"/api/v2/dags/{run.dag_id}/clearTaskInstances", body)

    def knows(self, dag_id):
        """Return whether a DAG can be triggered, which is later than when it is listed."""
        return self.answer("GET", f"/api/v2/dags/{dag_id}/details").is_success

    def parse_again(self, dag_id):
        """Let Airflow parse a DAG's file again, as the button *Reparse Dag* does, and wait for that."""

        def dag():
            return self._send("GET", f"/api/v2/dags/{dag_id}/details")

        before = dag()
        parsed = before["last_parsed_time"]
        self._send("PUT", f"/api/v2/parseDagFile/{before['file_token']}")
        wait_until(f"{dag_id} to be read again", lambda: dag()["last_parsed_time"] != parsed)

    def _send(self, method, path, body=None):
        answer = self.answer(method, path, body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def answer(self, method, path, body=None):
        """Return Airflow's answer to the logged-in user."""
        with httpx.Client(base_url=self.url, timeout=30) as http:
            login = http.post("/auth/token", json={"username": self.user, "password": self.password})
            token = login.json()["access_token"]
            return http.request(method, path, json=body, headers={"Authorization": f"Bearer {token}"})

    def worker_of(self, run, task):
        """Return the executor's process that works on a task now, and the processes below it."""
        path = f"{_path(run)}/taskInstances"
        found = self._send("GET", f"{path}/{task.task_id}/{task.map_index}")["id"]
        # LocalExecutor names its worker processes after the task instance.
        members = {}
        for worker in processes_of(self.home):
            if found in command_of(worker):
                with suppress(psutil.NoSuchProcess):
                    members |= {one.pid: one for one in (worker, *worker.children(recursive=True))}
        # By age and not by process id: ids start again at some point, and a worker outlives its tasks.
        return sorted(members.values(), key=psutil.Process.create_time)

    def jobs(self):
        """Return all jobs that the stand-in's cluster has ever had, by name."""
        state = self.home / STAND_IN / "clusters" / STAND_IN
        names = [path.parent.name for path in state.glob("jobs/*/job.json")]
        submitted = {name: JobFolder(state, name).submitted() for name in names}
        return {name: record.job for name, record in submitted.items() if record is not None}

    def cancel_jobs(self):
        """End every live job of the stand-in's cluster, and wait for the ends."""

        config = LocalConfig(name=STAND_IN, kind="local", gpu_type="cpu", work_dir=str(self.home / STAND_IN))

        async def cancel():
            async with LocalCluster(config) as cluster:
                for job in await cluster.live_jobs():
                    await cluster.cancel(job.name)

        asyncio.run(cancel())

    def ended_job(self, job_name):
        """Return how a job ended, or None while it lives."""
        return JobFolder(self.home / STAND_IN / "clusters" / STAND_IN, job_name).end()


def start_airflow(
    home,
    config,
    dags,
    announce=lambda _: None,
    port=None,
    *,
    impatient=True,
    store_url=None,
):
    """Start Airflow as `steptime up` does; if `impatient`, it notices dead processes sooner.

    Without `store_url` the metrics store is in `home`.
    """
    options = standalone_config._options

    def shorter(root, port):
        usual = options(root, port)
        usual["scheduler"] |= {
            "task_instance_heartbeat_timeout": str(_HEARTBEAT_TIMEOUT_S),
            "task_instance_heartbeat_timeout_detection_interval": "2",
            "scheduler_health_check_threshold": str(_SCHEDULER_TIMEOUT_S),
        }
        usual["triggerer"] = {"triggerer_health_check_threshold": str(_TRIGGERER_TIMEOUT_S)}
        return usual

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STEPTIME_HOME", str(home))
        patched.setenv("STEPTIME_CONFIG_DIR", str(config))
        patched.setenv("STEPTIME_DAGS_DIR", str(dags))
        patched.delenv("STEPTIME_STORE_URL", raising=False)
        if store_url is not None:
            patched.setenv("STEPTIME_STORE_URL", store_url)
        if impatient:
            patched.setattr(standalone_config, "_options", shorter)
        started, _ = standalone.up(announce, port=port, timeout_s=_STARTS_WITHIN_S)
    return started


@contextmanager
def running_airflow(
    home,
    config,
    dags,
    port=None,
    *,
    impatient=True,
    store_url=None,
):
    """Yield an Airflow, started by `start_airflow`; `steptime down` must leave nothing behind at the end."""
    down = ["down", "--cancel-jobs"]
    with ended_if_killed([CLI, *down], env=os.environ | {"STEPTIME_HOME": str(home)}):
        started = start_airflow(home, config, dags, port=port, impatient=impatient, store_url=store_url)
        passwords = json.loads((home / "airflow/passwords.json").read_text())
        password = passwords[standalone_config.ADMIN]
        try:
            with AirflowClient(started.url, standalone_config.ADMIN, password) as client:
                yield Airflow(home, config, dags, started.url, standalone_config.ADMIN, password, client)
        finally:
            ended = steptime(home, *down)
    assert ended.returncode == 0, ended.stderr
    assert_nothing_lives(home)
    assert "Exiting gracefully" in (home / "airflow/service/scheduler.log").read_text()


def _path(run):
    return f"/api/v2/dags/{run.dag_id}/dagRuns/{quote(run.dag_run_id, safe='')}"


def steptime(home, *arguments, timeout_s=600, **environment):
    """Run the command line with its state in `home`."""
    return subprocess.run(
        [CLI, *arguments],
        env=os.environ | {"STEPTIME_HOME": str(home)} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def wait_until(what, look, deadline_s=300):
    """Return the first true answer of `look`; fail the test, naming `what`, after `deadline_s` seconds.

    If Airflow cannot answer for the moment, it is asked again.
    """
    end = time.monotonic() + deadline_s
    failure = None
    while time.monotonic() < end:
        try:
            if found := look():
                return found
        except SystemFailure as error:
            failure = error
        time.sleep(0.3)
    pytest.fail(f"{what}: not within {deadline_s:.0f} s; last failure: {failure}")


def kill(processes):
    """SIGKILL each process that still lives."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def assert_nothing_lives(home):
    """Assert that no process of `home` is left after 30 s."""
    deadline = time.monotonic() + 30
    while (left := [command_of(process) for process in processes_of(home)]) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert not left, f"left behind after steptime down: {left}"


def processes_of(home):
    """Return every living process that belongs to `home`, whatever its name.

    Airflow's name it in their environment or are below one that does (some write their title over their
    environment); training jobs run in a folder of it.
    """
    found = {}
    for process in psutil.process_iter():
        try:
            named = process.environ().get("STEPTIME_HOME") == str(home)
            if named or Path(process.cwd()).is_relative_to(home):
                found |= {member.pid: member for member in (process, *process.children(recursive=True))}
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return [process for process in found.values() if command_of(process)]


def command_of(process):
    """Return a process's command line; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
