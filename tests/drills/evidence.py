"""The traces of a drill in Airflow's database, in Slurm's queue and accounting, and in the metrics store.

Nothing here asks steptime: both databases, squeue and sacct are read directly.
"""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from steptime.clusters.slurm.job_records import SACCT_FORMAT, JobRecord, read_records

_SETTLED_WITHIN_S = 120.0
"""How long the accounting may take to learn of a job's end, and the queue to become empty."""


class StoredRun(NamedTuple):
    """A row of the metrics store."""

    job_name: str
    dag_run_id: str
    state: str
    """`valid` or `rejected`."""
    reason: str | None
    job_state: str
    """The state in which the job ended, according to the store."""
    steps: int


class AirflowTask(NamedTuple):
    """A row of Airflow's `task_instance`."""

    run_id: str
    task_id: str
    state: str | None
    trigger_id: int | None


class Evidence(NamedTuple):
    """The data by which a drill is judged."""

    jobs: Sequence[JobRecord]
    """The drill's jobs in the accounting."""
    queued: Sequence[JobRecord]
    """The drill's jobs that wait or run, according to squeue."""
    trained: dict[str, int]
    """How often the stand-in trainer was started, by job name."""
    stored: Sequence[StoredRun]
    tasks: Sequence[AirflowTask]
    dag_runs: dict[str, str]
    """The states of the DAG runs by id, without those that were deleted."""
    trained_again: bool = False
    """Whether a cell that had its result was cleared."""


def collect(scene):
    """Return the evidence, once Slurm has had time to record it."""
    jobs = settled_jobs(scene)
    dag_runs = _dag_runs(scene)
    return Evidence(
        jobs=jobs,
        queued=[job for job in scene.queue() if job.in_queue],
        trained={job.name: _times_trained(job) for job in jobs},
        stored=_stored(scene),
        tasks=_tasks(scene, [*{run.dag_run_id: None for run in scene.runs} | dag_runs]),
        dag_runs=dag_runs,
        trained_again=bool(scene.kept.get("trained_again")),
    )


def accounted_jobs(scene):
    """Return the jobs of the drill that the accounting has by now."""
    # Relative, as sacct need not run in this process's time zone.
    since = f"--starttime=now-{math.ceil(time.time() - scene.began)}seconds"
    options = ["--duplicates", "--allocations", "--noheader", "--parsable2", since]
    listed = scene.site.slurm.command(
        "env", "SLURM_TIME_FORMAT=%s", "sacct", *options, f"--format={SACCT_FORMAT}"
    )
    return [job for job in read_records(listed) if scene.owns(job)]


def settled_jobs(scene):
    """Return all jobs of the drill once the accounting has the end of each, or the time for that is over."""
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    while True:
        jobs = accounted_jobs(scene)
        known = {job.job_id for job in jobs}
        settled = {job.job_id for job in scene.queue()} <= known and not any(job.in_queue for job in jobs)
        if settled or time.monotonic() > deadline:
            return _that_may_run(jobs)
        time.sleep(0.5)


def _that_may_run(jobs):
    """Return all jobs but those cancelled while held because another job of their name came first."""
    first = {}
    for job in sorted(jobs, key=lambda job: (job.submitted_at, int(job.job_id))):
        first.setdefault(job.name, job)
    return [job for job in jobs if job is first[job.name] or job.nodes]


def _times_trained(job):
    started = Path(job.directory, "started")
    return len(started.read_text().split()) if started.exists() else 0


def _stored(scene):
    query = """
        SELECT job_name, dag_run_id, state, reason,
               (SELECT content FROM records WHERE run_id = runs.id),
               (SELECT count(*) FROM steps WHERE run_id = runs.id)
        FROM runs WHERE submitted_at >= :began AND published_at IS NOT NULL
    """
    return [
        StoredRun(*run, json.loads(record)["status"]["state"] if record else None, steps)
        for *run, record, steps in scene.site.store_rows(query, began=scene.began)
    ]


def _tasks(scene, run_ids):
    query = f"""
        SELECT run_id, task_id, state, trigger_id FROM task_instance
        WHERE run_id IN ({",".join("?" * len(run_ids))})
    """  # noqa: S608 (only question marks)
    return [AirflowTask(*row) for row in scene.site.airflow_rows(query, *run_ids)]


def _dag_runs(scene):
    """Return the state of each of the drill's DAG runs."""
    ids = [run.dag_run_id for run in scene.runs]
    query = f"SELECT run_id, state FROM dag_run WHERE run_id IN ({','.join('?' * len(ids))})"  # noqa: S608
    return dict(scene.site.airflow_rows(query, *ids))
