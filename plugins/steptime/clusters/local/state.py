"""The local cluster's state on disk: a folder for each job, and locks that the kernel releases.

    <work_dir>/clusters/<cluster>/
        submit.lock            held by a submission while it appends its job to the queue
        tickets                the number of the last ticket, which orders the queue
        queue/<ticket>         one file per waiting job, locked by its runner
        slots/<number>         one file per slot, locked by the runner that holds it; names the job
        jobs/<name>/
            job.json           what was submitted, and when
            runner.lock        locked by the job's runner as long as it lives
            runner.json        the runner's process
            cancel             exists if somebody wants the job to end
            started.json       written just before the script starts
            ended.json         how the job ended; overrides all other files
            runner.log         the runner's own output

Each file of a job is written once, atomically. A runner is alive if its lock is held; its process id would
not show that, because ids are reused.

This module imports little: each waiting job has a runner, and runners must use little memory.
"""

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from steptime.clusters.base import JobState, check_job_name
from steptime.files import write_whole
from steptime.process_identity import boot_id

JOB_ID_VARIABLE = "STEPTIME_JOB_ID"
"""Variable in every process of a job; by it, processes that outlive a killed runner are found."""

_CLEAN_PASSES = 2
"""Passes that must find no process: one that is starting a program shortly has no environment."""

NEVER_STARTED = "cancelled before it started"
"""The reason of jobs that were cancelled in the queue."""


@dataclass(frozen=True)
class LocalJob:
    """The content of `job.json`: the job and everything that its runner needs."""

    name: str
    job_id: str
    directory: str
    script_path: str
    log_path: str
    slots: int
    """Slots that the job holds: all of the cluster's slots if jobs are exclusive."""
    cluster_slots: int
    time_limit_s: int
    grace_s: float
    """Seconds between SIGTERM and SIGKILL."""
    submitted_at: float
    boot_id: str
    installation: dict[str, Any] | None = None
    """The `Installation` that submitted it; None for staging."""


@dataclass(frozen=True)
class Runner:
    """The content of `runner.json`: the process that runs the job, and its start (process ids are reused)."""

    pid: int
    start_tick: int
    """When the process started, as in `steptime.process_identity`."""


@dataclass(frozen=True)
class Started:
    """The content of `started.json`: when and where a job's script started, written just before it does."""

    started_at: float
    node: str


@dataclass(frozen=True)
class Ended:
    """The content of `ended.json`: how and when a job ended."""

    state: JobState
    reason: str
    exit_code: int | None
    ended_at: float


_FILE_OF: dict[type, str] = {
    LocalJob: "job.json",
    Runner: "runner.json",
    Started: "started.json",
    Ended: "ended.json",
}
Record = TypeVar("Record", LocalJob, Runner, Started, Ended)


class JobFolder:
    """The files of one job. Raises UserError if the job name is invalid."""

    def __init__(self, state: Path, name: str) -> None:
        check_job_name(name)
        self.name = name
        self.path = state / "jobs" / name
        self.runner_lock = self.path / "runner.lock"
        self.runner_log = self.path / "runner.log"
        self.cancel_wish = self.path / "cancel"

    def read(self, record: type[Record]) -> Record | None:
        """Read the job's record of this type; None if it has not been written."""
        try:
            text = (self.path / _FILE_OF[record]).read_bytes()
        except FileNotFoundError:
            return None
        return record(**json.loads(text))

    def write(self, record: LocalJob | Runner | Started | Ended) -> None:
        """Write one record of the job atomically, to the file of its type."""
        text = json.dumps(dataclasses.asdict(record), indent=1)
        write_whole(self.path / _FILE_OF[type(record)], text)

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


def settle_abandoned(job: JobFolder) -> Ended | None:
    """Record the end of a job whose runner is gone, and return it; None if the job can still be started.

    A job that had started is UNKNOWN, and its remaining processes are killed; one that had not started is
    CANCELLED if this was requested. Waits while another process settles the same job.
    """
    while True:
        ended, started = job.read(Ended), job.read(Started)
        if ended or not (started or job.cancel_wish.exists()):
            return ended
        descriptor = open_lock(job.runner_lock)
        try:
            if lock_if_free(descriptor):
                ended = job.read(Ended) or (
                    _unknown_end(job) if started else ended_now(JobState.CANCELLED, NEVER_STARTED)
                )
                job.write(ended)
                return ended
        finally:
            os.close(descriptor)
        if not started and job.runner_lives():
            return None  # it has a runner again; else somebody only asked whether it has
        time.sleep(0.02)


def _unknown_end(job: JobFolder) -> Ended:
    submitted, runner = job.read(LocalJob), job.read(Runner)
    count = kill_marked(submitted.job_id) if submitted else 0
    if submitted and submitted.boot_id != boot_id():
        return ended_now(JobState.UNKNOWN, "the machine was restarted while the job ran")
    reason = (
        f"its runner{f' (process {runner.pid})' if runner else ''} died, so how the job ended is not known"
    )
    return ended_now(
        JobState.UNKNOWN, f"{reason}; processes left of it were killed: {count}" if count else reason
    )


def kill_marked(job_id: str, patience_s: float = 10) -> int:
    """Kill all processes that have the job's id in their environment; return how many were killed.

    It looks again until none is left, for `patience_s` seconds at most; then some may be left.
    """
    marker = {JOB_ID_VARIABLE: job_id}.items()
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + patience_s
    clean_passes = 0
    while clean_passes < _CLEAN_PASSES and time.monotonic() < deadline:
        found = False
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and marker <= process.environ().items():
                    process.kill()
                    killed.add(process)
                    found = True
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # gone meanwhile, or another user's: none of ours
        clean_passes = 0 if found else clean_passes + 1
        time.sleep(0.02)
    return len(killed)


def ended_now(state: JobState, reason: str, exit_code: int | None = None) -> Ended:
    """Return the record of a job that ends now."""
    return Ended(state=state, reason=reason, exit_code=exit_code, ended_at=time.time())


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
