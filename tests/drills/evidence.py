"""What a drill left in Airflow's database, in Slurm's queue and accounting, and in the metrics store.

Nothing here asks steptime how it went: both databases, squeue and sacct are read as they are.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from drills.scene import Scene
from drills.site import selected
from steptime.clusters.slurm.job_records import SACCT_FORMAT, JobRecord, read_sacct

_SETTLED_WITHIN_S = 120.0
"""What the accounting is given to hear of a job's end, and the queue to be empty."""


class StoredRun(NamedTuple):
    """A row of the metrics store."""

    job_name: str
    dag_run_id: str
    state: str
    """`valid` or `rejected`."""
    reason: str | None
    job_state: str
    """What the store says of the job's end."""
    steps: int


class AirflowTask(NamedTuple):
    """A row of Airflow's `task_instance`."""

    run_id: str
    task_id: str
    state: str | None
    trigger_id: int | None


class Evidence(NamedTuple):
    """All that a drill is judged by."""

    jobs: Sequence[JobRecord]
    """Of this drill, as the accounting has them."""
    queued: Sequence[JobRecord]
    """Those that squeue says wait or run."""
    trained: dict[str, int]
    """By job name, how often the stand-in trainer was started for it."""
    stored: Sequence[StoredRun]
    tasks: Sequence[AirflowTask]
    dag_runs: dict[str, str]
    """By id, the state; those that were deleted are not there."""
    trained_again: bool = False
    """Whether somebody has cleared a cell that had its result."""


def collect(scene: Scene) -> Evidence:
    """What there is, once Slurm has had time to write it down."""
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


def settled_jobs(scene: Scene) -> list[JobRecord]:
    """All jobs of the drill, once the accounting knows how each has ended, or has had its time."""
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(scene.began))
    options = ["--duplicates", "--allocations", "--noheader", "--parsable2", f"--starttime={since}"]
    while True:
        listed = scene.site.slurm.command(
            "env", "SLURM_TIME_FORMAT=%s", "sacct", *options, f"--format={SACCT_FORMAT}"
        )
        jobs = [job for job in read_sacct(listed) if scene.owns(job)]
        known = {job.job_id for job in jobs}
        settled = {job.job_id for job in scene.queue()} <= known and not any(job.in_queue for job in jobs)
        if settled or time.monotonic() > deadline:
            return _that_may_run(jobs)
        time.sleep(0.5)


def _that_may_run(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """All jobs but those that were cancelled while held, because another job of their name came first."""
    first: dict[str, JobRecord] = {}
    for job in sorted(jobs, key=lambda job: (job.submitted_at, int(job.job_id))):
        first.setdefault(job.name, job)
    return [job for job in jobs if job is first[job.name] or job.nodes]


def _times_trained(job: JobRecord) -> int:
    started = Path(job.directory, "started")
    return len(started.read_text().split()) if started.exists() else 0


def _stored(scene: Scene) -> list[StoredRun]:
    query = """
        SELECT job_name, dag_run_id, state, reason,
               (SELECT json_extract(content, '$.status.state') FROM records WHERE run_id = runs.id),
               (SELECT count(*) FROM steps WHERE run_id = runs.id)
        FROM runs WHERE submitted_at >= ? AND published_at IS NOT NULL
    """
    return [StoredRun(*row) for row in selected(scene.site.disk / "steptime.db", query, scene.began)]


def _tasks(scene: Scene, run_ids: Sequence[str]) -> list[AirflowTask]:
    query = f"""
        SELECT run_id, task_id, state, trigger_id FROM task_instance
        WHERE run_id IN ({",".join("?" * len(run_ids))})
    """  # noqa: S608 (only question marks)
    return [AirflowTask(*row) for row in scene.site.airflow_rows(query, *run_ids)]


def _dag_runs(scene: Scene) -> dict[str, str]:
    """The drill's DAG runs, with their states."""
    ids = [run.dag_run_id for run in scene.runs]
    query = f"SELECT run_id, state FROM dag_run WHERE run_id IN ({','.join('?' * len(ids))})"  # noqa: S608
    return dict(scene.site.airflow_rows(query, *ids))
