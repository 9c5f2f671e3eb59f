"""One drill in progress: its DAG runs, their jobs, and what was done to them."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from end_to_end.driving import wait_until

from drills.schedule import Schedule
from drills.site import CLUSTER, TRAINING_DAG, Site
from steptime.clusters.slurm.job_records import SQUEUE_FORMAT, read_records
from steptime.service.rest import DagRun

if TYPE_CHECKING:
    from drills.catalogue import Drill
    from drills.points import Point

WAIT = "performance.wait"
SUBMIT = "performance.submit"
PARSE = "performance.parse"
VALIDATE = "performance.validate"
PUBLISH = "performance.publish"


@dataclass
class Scene:
    """The state of a drill, on which points and faults work."""

    site: Site
    schedule: Schedule
    drill: "Drill"
    point: "Point"
    began: int = field(default_factory=lambda: int(time.time()))
    runs: list[DagRun] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """What was done at which time, for the report of a red drill."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Values that a strike leaves for its mending."""

    @property
    def run(self):
        """Return the first DAG run; most drills have one."""
        return self.runs[0]

    @property
    def training(self):
        """Return the gate at which the stand-in trainer stops in the middle of its steps."""
        return self.site.gate("training")

    def note(self, what):
        self.done.append(f"{time.time() - self.began:6.1f} s  {what}")

    @property
    def params(self):
        """Return the params of the DAG: by default one run on one rank."""
        environment = {"STAND_IN_STEP_S": str(self.schedule.step_s), **self.training.environment}
        params = {"gpus": "1", "checkpoint": False, "cluster": CLUSTER, "environment": environment}
        return {**(params if self.drill.dag_id == TRAINING_DAG else {}), **self.drill.params}

    def start_run(self):
        """Trigger the DAG."""
        self.site.require_dags()
        self.runs.append(self.site.airflow.client.trigger(self.drill.dag_id, self.params))
        self.note(f"triggered {self.runs[-1].dag_run_id}")

    @property
    def cells(self):
        """Return the map indexes of the runs that train; most drills have one."""
        return range(self.drill.params.get("repeats", 1))

    def state(self, task_id, cell=0):
        task = self.task(task_id, cell)
        return task.state if task else None

    def task(self, task_id, cell=0):
        return self.site.airflow.task(self.run, task_id, cell)

    def known_task(self, task_id, cell=0):
        task = self.task(task_id, cell)
        assert task is not None, f"{self.run.dag_run_id} has no task {task_id}"
        return task

    def wrap(self, command, script):
        """Put a script in front of one of Slurm's commands on the login node; `$real` is the command."""
        self.site.login.command(command, script)

    def queue(self):
        """Return this drill's jobs in squeue, with those that have ended."""
        listed = self.site.slurm.command(
            "env", "SLURM_TIME_FORMAT=%s", "squeue", "--states=all", "--noheader", f"--Format={SQUEUE_FORMAT}"
        )
        return [job for job in read_records(listed) if self.owns(job)]

    def owns(self, job):
        """Return whether a job belongs to this drill."""
        return job.submitted_at >= self.began and Path(job.directory).is_relative_to(self.site.work)

    def live_job(self):
        """Wait for this drill's only job in the queue and return it."""

        def look():
            live = [job for job in self.queue() if job.in_queue]
            assert len(live) <= 1, f"more than one job lives: {live}"
            return live[0] if live else None

        return wait_until("a job in the queue", look, 300)

    def worker(self, task_id):
        """Return the executor's process that works on a task of the point's cell, then those below it."""

        def look():
            with suppress(psutil.NoSuchProcess):
                found = self.site.airflow.worker_of(self.run, self.known_task(task_id, self.point.cell))
                if len(found) > 1:  # the worker, and the process of the task
                    return found
            return []

        return wait_until(f"a process that works on {task_id}", look, 300)

    def ended(self, deadline_s=1800):
        """Wait for the end of every DAG run that is still there."""
        if self.kept.get("deleted"):
            return
        for number, run in enumerate(self.runs):
            self.runs[number] = self.site.airflow.ended(run, deadline_s)
        self.note(f"ended: {', '.join(run.state for run in self.runs)}")
