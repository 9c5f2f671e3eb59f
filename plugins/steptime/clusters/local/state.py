"""The local cluster's state on disk: a queue, and a folder for each job.

    <work_dir>/clusters/<cluster>/
        submit.lock                    held while a job is added to the queue
        queue/<number>-<slots>-<name>  an empty file for each job that waits or runs, in order of submission
        jobs/<name>/
            job.json                   what was submitted, and when
            runner.lock                locked by the job's runner as long as it lives; has its process id
            cancel                     exists if somebody wants the job to end
            status.json                the job's state, from just before its script starts
            runner.log                 the runner's own output

Each file is written atomically. A runner is alive if its lock is held: the kernel releases the lock when the
process ends, however it ends. A process id alone would not show it, because ids are reused.

This module imports little: each waiting job has a runner, and runners must use little memory.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from steptime.clusters.base import Job, JobState, JobStatus, check_job_name
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.process_identity import boot_id

JOB_ID_VARIABLE = "STEPTIME_JOB_ID"
"""Variable in every process of a job; by it, processes that outlive a killed runner are found."""

_KILLING_S = 10
_CLEAN_PASSES = 2
"""Passes that must find no process: one that is starting a program shortly has no environment."""

NEVER_STARTED = "cancelled before it started"
"""The reason of jobs that were cancelled in the queue."""


class LocalJob(Frozen):
    """The content of `job.json`: the job and everything that its runner needs."""

    job: Job
    script_path: str
    slots: int
    """Slots that the job holds: all of the cluster's slots if jobs are exclusive."""
    cluster_slots: int
    time_limit_s: int
    grace_s: float
    """Seconds between SIGTERM and SIGKILL."""
    boot_id: str
    """The boot of the machine in which it was submitted."""


class JobFolder:
    """The files of one job. Raises UserError if the job name is invalid."""

    def __init__(self, state: Path, name: str) -> None:
        check_job_name(name)
        self.name = name
        self.state = state
        self.path = state / "jobs" / name
        self.runner_lock = self.path / "runner.lock"
        self.runner_log = self.path / "runner.log"
        self.cancel_wish = self.path / "cancel"

    def submitted(self) -> LocalJob | None:
        """Return what was submitted; None if the cluster has no such job."""
        content = self._read("job.json")
        return LocalJob.model_validate_json(content) if content else None

    def status(self) -> JobStatus | None:
        """Return the state as written last, RUNNING or one of the end; None if the script has not started."""
        content = self._read("status.json")
        return JobStatus.model_validate_json(content) if content else None

    def end(self) -> JobStatus | None:
        """Return how the job ended; None if no end is recorded."""
        status = self.status()
        return None if status is None or status.state.is_live else status

    def write(self, record: LocalJob | JobStatus) -> None:
        """Write one of the job's records atomically."""
        file = "job.json" if isinstance(record, LocalJob) else "status.json"
        write_whole(self.path / file, record.model_dump_json(indent=1))

    def runner_pid(self) -> int | None:
        """Return the process id of the runner that was started last; None if it has not written it yet."""
        content = self._read(self.runner_lock.name)
        return int(content) if content else None

    def runner_lives(self) -> bool:
        """Return whether the job's runner is alive: a live runner holds an exclusive lock on a file.

        This method tries a shared lock, so that two simultaneous calls do not mistake each other for a
        runner.
        """
        try:
            descriptor = os.open(self.runner_lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _read(self, file: str) -> bytes | None:
        try:
            return (self.path / file).read_bytes()
        except FileNotFoundError:
            return None


class QueueEntry(NamedTuple):
    """A job in the queue: it waits or runs."""

    number: int
    """Orders the queue; smaller numbers were submitted earlier."""
    slots: int
    name: str


def list_queue(state: Path) -> list[QueueEntry]:
    """Return the queue in order of submission; a job whose runner was killed may still be in it."""
    folder = state / "queue"
    parts = [path.name.split("-", 2) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(QueueEntry(int(number), int(slots), name) for number, slots, name in parts)


def enter_queue(state: Path, name: str, slots: int) -> QueueEntry:
    """Put a job at the end of the queue, also one that is in it; return its entry.

    The caller holds `submit.lock`.
    """
    leave_queue(state, name)  # where a runner was killed before it started the job
    queue = list_queue(state)
    entry = QueueEntry(queue[-1].number + 1 if queue else 1, slots, name)
    path = _entry_path(state, entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return entry


def leave_queue(state: Path, name: str) -> None:
    """Remove a job from the queue, if it is there."""
    for entry in list_queue(state):
        if entry.name == name:
            _entry_path(state, entry).unlink(missing_ok=True)


def _entry_path(state: Path, entry: QueueEntry) -> Path:
    return state / "queue" / f"{entry.number}-{entry.slots}-{entry.name}"


def settle_abandoned(job: JobFolder) -> JobStatus | None:
    """Record the end of a job whose runner is gone, and return it; None if the job can still be started.

    A job that had started is UNKNOWN, and its remaining processes are killed; one that had not started is
    CANCELLED if this was requested. In both cases it leaves the queue. If the job has a runner (again), its
    last state is returned, and nothing is changed.
    """
    submitted = job.submitted()
    if submitted is None:
        leave_queue(job.state, job.name)
        return None
    descriptor = open_lock(job.runner_lock)
    try:
        while not lock_if_free(descriptor):
            if job.runner_lives():
                return job.status()
            time.sleep(0.02)  # another process only asked whether the runner lives
        status = job.status()
        if status is None and job.cancel_wish.exists():
            status = JobStatus(state=JobState.CANCELLED, reason=NEVER_STARTED, ended_at=time.time())
            job.write(status)
        elif status is not None and status.state.is_live:
            reason = _end_unknown(job, submitted)
            changes = {"state": JobState.UNKNOWN, "reason": reason, "ended_at": time.time()}
            status = status.model_copy(update=changes)
            job.write(status)
        leave_queue(job.state, job.name)
        return status
    finally:
        os.close(descriptor)


def _end_unknown(job: JobFolder, submitted: LocalJob) -> str:
    """Kill what is left of a job whose runner died; return the reason why its end is not known."""
    count = kill_marked(submitted.job.job_id)
    if submitted.boot_id != boot_id():
        return "the machine was restarted while the job ran"
    reason = f"its runner (process {job.runner_pid()}) died, so how the job ended is not known"
    return f"{reason}; processes left of it were killed: {count}" if count else reason


def kill_marked(job_id: str) -> int:
    """Kill all processes that have the job's id in their environment; return how many were killed.

    It looks again until none is left, for ten seconds at most; then some may be left.
    """
    marker = {JOB_ID_VARIABLE: job_id}.items()
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + _KILLING_S
    clean_passes = 0
    while clean_passes < _CLEAN_PASSES and time.monotonic() < deadline:
        is_clean = True
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and marker <= process.environ().items():
                    process.kill()
                    killed.add(process)
                    is_clean = False
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it has ended, or is another user's and so not of this job
        clean_passes = clean_passes + 1 if is_clean else 0
        time.sleep(0.02)
    return len(killed)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Wait for the exclusive lock on a file (created if missing) and hold it; yield its descriptor."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Open a lock file, created if missing. Its lock is released with the last copy of the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def lock_if_free(descriptor: int) -> bool:
    """Take the exclusive lock of a file unless another process holds it; return whether it was taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
