"""The process of one local job: it waits for its turn, runs the job, limits its time and records its end.

`LocalCluster.submit` starts it as `python -I -m steptime.clusters.local.runner STATE NAME NUMBER LOCK`.
NUMBER is that of the job's entry in the queue, LOCK an inherited descriptor that holds the job's lock. The
runner detaches from the process that started it (own session and process group, no parent), so it survives
the end of that process. As a child subreaper it adopts all orphans among the job's processes, so that it can
end those that left the job's session, too. Where jobs are exclusive it waits in the kernel, without using CPU
time, so that waiting jobs do not disturb a measurement.
"""

import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from steptime.clusters.base import JobState, JobStatus, described_exit
from steptime.clusters.local.state import (
    JOB_ID_VARIABLE,
    NEVER_STARTED,
    JobFolder,
    LocalJob,
    QueueEntry,
    leave_queue,
    list_queue,
    settle_abandoned,
)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""Variables that a job gets from its submitter; the rest (Airflow's secrets, PYTHONPATH) is left out."""
_UNKILLABLE_S = 30
_WATCHED = {signal.SIGCHLD, signal.SIGTERM}
_QUEUE_POLL_S = 0.1

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Detach from the calling process, then run the job to its end."""
    state, name, number, lock = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.set_inheritable(lock, False)
    job = JobFolder(state, name)
    submitted = job.submitted()
    if submitted is None:
        raise FileNotFoundError(f"no job has been submitted in {job.path}")
    if os.fork():
        os._exit(0)  # the starter waits for this process only; the runner goes on as a child of init
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    if job.cancel_wish.exists():
        job.write(JobStatus(state=JobState.CANCELLED, reason=NEVER_STARTED, ended_at=time.time()))
    else:
        # While the job waits, SIGTERM simply ends this process: whoever cancels it writes down its end.
        _wait_for_turn(state, QueueEntry(number, submitted.slots, name), submitted.cluster_slots)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # from here on they are waited for, in _watch
        job.write(_run_script(job, submitted))
    leave_queue(state, name)


def _wait_for_turn(state: Path, entry: QueueEntry, cluster_slots: int) -> None:
    """Wait until the job and all jobs before it in the queue fit into the cluster's slots together.

    So no job overtakes an earlier one. If the runner of an earlier job was killed, this first records that
    job's end and kills what it left.
    """
    while True:
        earlier = [other for other in list_queue(state) if other.number < entry.number]
        live = [other for other in earlier if _lives(JobFolder(state, other.name))]
        if sum(other.slots for other in live) + entry.slots <= cluster_slots:
            return
        must_end = [other for other in live if other.slots + entry.slots > cluster_slots]
        if must_end:
            _wait_for_runner(JobFolder(state, must_end[-1].name))
        else:  # the end of any of several small jobs makes room
            time.sleep(_QUEUE_POLL_S)


def _lives(job: JobFolder) -> bool:
    if job.runner_lives():
        return True
    settle_abandoned(job)
    return False


def _wait_for_runner(job: JobFolder) -> None:
    """Wait in the kernel until the job's runner has ended."""
    try:
        descriptor = os.open(job.runner_lock, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _run_script(job: JobFolder, submitted: LocalJob) -> JobStatus:
    """Run the job's script until it ends or is ended; return how."""
    running = JobStatus(state=JobState.RUNNING, started_at=time.time(), nodes=(platform.node(),))
    # Written before the start: a job without this record has certainly not started, and may be started again.
    job.write(running)
    try:
        process = _start(submitted)
    except (OSError, subprocess.SubprocessError) as error:
        return _ended(running, JobState.FAILED, f"the script could not be started: {error}")
    ended = _watch(process, submitted.time_limit_s, job, running)
    ended_itself = process.returncode is not None
    reasons = [ended.reason]
    ended_count, unkillable = _end_tree(process, submitted.grace_s)
    if ended_itself and ended_count:
        reasons.append(f"processes that it left running were ended: {ended_count}")
    if unkillable:
        reasons.append(f"could not be killed: processes {', '.join(map(str, unkillable))}")
    ended_at = ended.ended_at if ended_itself else time.time()
    return ended.model_copy(update={"reason": "; ".join(filter(None, reasons)), "ended_at": ended_at})


def _ended(running: JobStatus, state: JobState, reason: str, exit_code: int | None = None) -> JobStatus:
    """Return the status of a job that ends now."""
    changes = {"state": state, "reason": reason, "exit_code": exit_code, "ended_at": time.time()}
    return running.model_copy(update=changes)


def _start(submitted: LocalJob) -> "subprocess.Popen[bytes]":
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment[JOB_ID_VARIABLE] = submitted.job.job_id
    runner = os.getpid()

    def enter_job() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != runner:  # it died before the line above
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    with Path(submitted.job.log_path).open("ab") as log:
        return subprocess.Popen(
            ["bash", submitted.script_path],  # noqa: S607 (the job's PATH decides, as on any cluster)
            cwd=submitted.job.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=enter_job,  # noqa: PLW1509 (this process has one thread)
        )


def _watch(
    process: "subprocess.Popen[bytes]", time_limit_s: int, job: JobFolder, running: JobStatus
) -> JobStatus:
    """Wait until the script ends, reaches its time limit, or is cancelled; return which. It ends nothing."""
    time_is_up = time.monotonic() + time_limit_s
    while True:
        _reap(process)
        if process.returncode == 0:
            return _ended(running, JobState.SUCCEEDED, "", 0)
        if process.returncode is not None:
            code = process.returncode
            exit_code = code if code > 0 else 128 - code  # as a shell reports a death by signal
            return _ended(running, JobState.FAILED, described_exit(exit_code), exit_code)
        remaining_s = time_is_up - time.monotonic()
        woken = signal.sigtimedwait(_WATCHED, remaining_s) if remaining_s > 0 else None
        if woken is None:
            return _ended(running, JobState.TIMED_OUT, f"the time limit of {time_limit_s} s was reached")
        if woken.si_signo == signal.SIGTERM:
            by = "cancelled" if job.cancel_wish.exists() else "cancelled: something else ended its runner"
            return _ended(running, JobState.CANCELLED, by)


def _end_tree(process: "subprocess.Popen[bytes]", grace_s: float) -> tuple[int, list[int]]:
    """End all remaining processes of the job: SIGTERM, then SIGKILL after the grace period.

    Returns the number of processes that had to be ended, and the ids of those that cannot be killed.
    """
    ended: set[psutil.Process] = set()
    kill_at = time.monotonic() + grace_s
    while _reap(process):
        now = time.monotonic()
        left = psutil.Process().children(recursive=True)
        if now > kill_at + _UNKILLABLE_S:
            return len(ended), [child.pid for child in left]
        for child in left:
            try:
                if now >= kill_at:
                    child.kill()
                elif child not in ended:
                    child.terminate()
                ended.add(child)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it has ended, or has become another user's
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
    return len(ended), []


def _reap(process: "subprocess.Popen[bytes]") -> bool:
    """Reap every child that has ended; return whether any child is left."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if ended is None:
            return True
        if ended.si_pid == process.pid:
            process.wait()
        else:
            os.waitpid(ended.si_pid, 0)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    main()
