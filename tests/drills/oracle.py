"""The judgement of a drill: what must hold after every one, and the outcome of each DAG run."""

import itertools
from collections import defaultdict

STEPS = 20
"""The steps of a whole training."""
_UNFINISHED = (
    "running",
    "queued",
    "scheduled",
    "deferred",
    "restarting",
    "up_for_retry",
    "up_for_reschedule",
)


def check(found):
    """Check what must hold after every drill. Raises AssertionError with a plain sentence otherwise."""
    assert not found.queued, f"orphans are left in the queue: {_told(found.queued)}"
    check_jobs(found.jobs)
    for name, times in found.trained.items():
        assert times <= 1, f"job {name} trained {times} times"
    _check_airflow(found)
    _check_stored(found)


def outcomes(found):
    """Return `valid`, `cancelled` or `failed` for each DAG run, by id; the id is '' if all were deleted."""
    valid = {row.dag_run_id for row in found.stored if row.state == "valid"}
    last = max(found.jobs, key=lambda job: job.submitted_at, default=None)
    without = "cancelled" if last is not None and last.state == "CANCELLED" else "failed"
    ids = dict.fromkeys([*found.dag_runs, *valid]) or {"": None}
    return {run_id: "valid" if run_id in valid else without for run_id in ids}


def check_jobs(jobs):
    """Check that each cell and attempt has one job, that no cell has two at once, and that all have ended."""
    names = defaultdict(list)
    cells = defaultdict(list)
    for job in jobs:
        assert job.ended_at is not None, f"the accounting has a job that never ends: {_told([job])}"
        assert not job.in_queue, f"the accounting has a job that never ends: {_told([job])}"
        names[job.name].append(job)
        cells[_cell(job.name)].append(job)
    for of_name in names.values():
        assert len(of_name) == 1, f"submitted twice: {_told(of_name)}"
    for of_cell in cells.values():
        for before, after in itertools.pairwise(sorted(of_cell, key=lambda job: job.submitted_at)):
            ended_at = before.ended_at or 0
            assert ended_at <= after.submitted_at, f"two lived at once: {_told([before, after])}"


def _check_airflow(found):
    """Check that every task and trigger has ended, and that the waits agree with the accounting."""
    unfinished = [f"{task.task_id} is {task.state}" for task in found.tasks if task.state in _UNFINISHED]
    assert not unfinished, f"the DAG run has ended, but {', '.join(unfinished)}"
    removed = [task.task_id for task in found.tasks if task.state == "removed"]
    assert not removed, f"tasks were taken from a DAG run under way: {removed}"
    left = [task.task_id for task in found.tasks if task.trigger_id is not None]
    assert not left, f"triggers are left of {left}"
    valid = {row.dag_run_id for row in found.stored if row.state == "valid"}
    for run_id, state in found.dag_runs.items():
        told = f"{run_id} is {state}, and has {'a' if run_id in valid else 'no'} valid result"
        assert (state == "success") == (run_id in valid), told
    last = {_cell(job.name): job for job in sorted(found.jobs, key=lambda job: job.submitted_at)}
    waited = [task for task in found.tasks if _is_wait(task)]
    succeeded = [task for task in waited if task.state == "success"]
    completed = [job for job in last.values() if job.state == "COMPLETED"]
    told = f"{len(succeeded)} that waited say success, and the accounting says {_told(list(last.values()))}"
    assert len(succeeded) <= len(completed), told
    if completed and len(waited) == len(last):
        assert len(succeeded) == len(completed), told


def _check_stored(found):
    """Check that every result has a job and agrees with the accounting, and that no cell has too many."""
    jobs = {job.name: job for job in found.jobs}
    valid = defaultdict(list)
    for row in found.stored:
        job = jobs.get(row.job_name)
        assert job is not None, f"a result of job {row.job_name}, which the accounting does not have"
        agree = (row.job_state == "succeeded") == (job.state == "COMPLETED")
        assert agree, f"job {job.name} is '{row.job_state}' in the store, and {job.state} in the accounting"
        if row.state == "valid":
            valid[_cell(job.name)].append(row)
            assert job.state == "COMPLETED", f"a valid result of job {job.name}, which is {job.state}"
            assert row.steps == STEPS, f"{row.steps} steps are stored of {STEPS}"
    most = 2 if found.trained_again else 1
    for rows in valid.values():
        assert len(rows) <= most, f"a cell has several valid results: {[row.job_name for row in rows]}"


def _cell(job_name):
    """Return a job's name without the number of the attempt."""
    return job_name.rpartition("-")[0]


def _is_wait(task):
    return task.task_id.endswith(".wait") and task.state not in (
        None,
        "skipped",
        "upstream_failed",
        "removed",
    )


def _told(jobs):
    return "; ".join(
        f"{job.name} ({job.job_id}) {job.state}, submitted {job.submitted_at:.0f}, ended {job.ended_at}"
        for job in jobs
    )
