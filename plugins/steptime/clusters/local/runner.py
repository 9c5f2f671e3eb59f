"""The process of one local job: it waits for slots, runs the job, limits its time and records its end.

`LocalCluster.submit` starts it as `python -I -m steptime.clusters.local.runner STATE NAME TICKET LOCK PLACE`.
LOCK and PLACE are descriptors of two locks that it inherits: of the job, and of its place in the queue. The
runner detaches from the process that started it (own session and process group, no parent), so it survives
the end of that process. As a child subreaper it adopts all orphans among the job's processes, so that it can
end those that left the job's session, too. It waits in the kernel, without using CPU time, so that waiting
jobs do not disturb a measurement.
"""

import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from steptime.clusters.base import JobState, described_exit
from steptime.clusters.local.state import (
    JOB_ID_VARIABLE,
    NEVER_STARTED,
    Ended,
    JobFolder,
    LocalJob,
    Runner,
    Started,
    ended_now,
    lock_if_free,
    open_lock,
    settle_abandoned,
)
from steptime.process_identity import start_tick

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""Variables that a job gets from its submitter; the rest (Airflow's secrets, PYTHONPATH) is left out."""
_UNKILLABLE_S = 30
_WATCHED = {signal.SIGCHLD, signal.SIGTERM}

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Detach from the calling process, then run the job to its end."""
    state, name, ticket = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    for descriptor in map(int, sys.argv[4:]):
        os.set_inheritable(descriptor, False)
    job = JobFolder(state, name)
    submitted = job.read(LocalJob)
    if submitted is None:
        raise FileNotFoundError(f"no job has been submitted in {job.path}")
    if os.fork():
        os._exit(0)  # the starter waits for this process only; the runner goes on as a child of init
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    job.write(Runner(pid=os.getpid(), start_tick=start_tick(os.getpid())))
    if job.cancel_wish.exists():
        job.write(ended_now(JobState.CANCELLED, NEVER_STARTED))
        return
    # While the job waits, SIGTERM simply ends this process: whoever cancels it writes down its end.
    place = state / "queue" / ticket
    _wait_for_turn(place)
    slots = _take_slots(state, submitted)
    place.unlink(missing_ok=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # from here on they are waited for, in _run_script
    job.write(_run_script(job, submitted))
    for slot in slots:
        os.ftruncate(slot, 0)  # an orderly end: the next holder need not look for what this job left behind


def _wait_for_turn(place: Path) -> None:
    """Wait until every job with an earlier ticket has its slots or has gone.

    Each runner waits for the lock of the one before it in the queue. A runner that dies releases its lock;
    the one behind it then waits for the next earlier one.
    """
    while True:
        earlier = [other for other in place.parent.iterdir() if other.name < place.name]
        if not earlier:
            return
        before = max(earlier)
        try:
            descriptor = os.open(before, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            before.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _take_slots(state: Path, submitted: LocalJob) -> list[int]:
    """Take the job's slots, waiting for them, and write its name into each; return their locks' descriptors.

    Only the first job in the queue calls this, so it may hold some slots while it waits for others without a
    deadlock. If the last holder of a slot died, this first records that holder's end and kills what it left.
    """
    wanted = [open_lock(state / "slots" / str(number)) for number in range(submitted.cluster_slots)]
    held: list[int] = []
    while len(held) < submitted.slots:
        for slot in wanted:
            if slot not in held and len(held) < submitted.slots and lock_if_free(slot):
                held.append(slot)
        missing = submitted.slots - len(held)
        others = [slot for slot in wanted if slot not in held]
        if missing and missing == len(others):  # all of them must come: any may be waited for
            fcntl.flock(others[0], fcntl.LOCK_EX)
            held.append(others[0])
        elif missing:
            time.sleep(0.05)
    for slot in held:
        holder = os.pread(slot, 1024, 0).decode()
        if holder:  # it did not come to its end: its processes may still be there
            settle_abandoned(JobFolder(state, holder))
        os.ftruncate(slot, 0)
        os.pwrite(slot, submitted.name.encode(), 0)
    return held


def _run_script(job: JobFolder, submitted: LocalJob) -> Ended:
    # Written before the start: a job without this record has certainly not started, and may be started again.
    job.write(Started(started_at=time.time(), node=platform.node()))
    try:
        process = _start(submitted)
    except (OSError, subprocess.SubprocessError) as error:
        return ended_now(JobState.FAILED, f"the script could not be started: {error}")
    ended = _watch(process, submitted.time_limit_s, job)
    ended_itself = process.returncode is not None
    reasons = [ended.reason]
    ended_count, unkillable = _end_tree(process, submitted.grace_s)
    if ended_itself and ended_count:
        reasons.append(f"processes that it left running were ended: {ended_count}")
    if unkillable:
        reasons.append(f"could not be killed: processes {', '.join(map(str, unkillable))}")
    return replace(
        ended,
        reason="; ".join(filter(None, reasons)),
        ended_at=ended.ended_at if ended_itself else time.time(),
    )


def _start(submitted: LocalJob) -> "subprocess.Popen[bytes]":
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment[JOB_ID_VARIABLE] = submitted.job_id
    runner = os.getpid()

    def enter_job() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != runner:  # it died before the line above
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    with Path(submitted.log_path).open("ab") as log:
        return subprocess.Popen(
            ["bash", submitted.script_path],  # noqa: S607 (the job's PATH decides, as on any cluster)
            cwd=submitted.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=enter_job,  # noqa: PLW1509 (this process has one thread)
        )


def _watch(process: "subprocess.Popen[bytes]", time_limit_s: int, job: JobFolder) -> Ended:
    """Wait until the script ends, reaches its time limit, or is cancelled; return which. It ends nothing."""
    time_is_up = time.monotonic() + time_limit_s
    while True:
        _reap(process)
        if process.returncode is not None:
            return _end_of_script(process.returncode)
        remaining_s = time_is_up - time.monotonic()
        woken = signal.sigtimedwait(_WATCHED, remaining_s) if remaining_s > 0 else None
        if woken is None:
            return ended_now(JobState.TIMED_OUT, f"the time limit of {time_limit_s} s was reached")
        if woken.si_signo == signal.SIGTERM:
            by = "cancelled" if job.cancel_wish.exists() else "cancelled: something else ended its runner"
            return ended_now(JobState.CANCELLED, by)


def _end_of_script(returncode: int) -> Ended:
    if returncode == 0:
        return ended_now(JobState.SUCCEEDED, "", 0)
    exit_code = returncode if returncode > 0 else 128 - returncode  # as a shell reports a death by signal
    return ended_now(JobState.FAILED, described_exit(exit_code), exit_code)


def _end_tree(process: "subprocess.Popen[bytes]", grace_s: float) -> tuple[int, list[int]]:
    """End all remaining processes of the job: SIGTERM, then SIGKILL after the grace period.

    Returns the number of processes that had to be ended, and the ids of those that cannot be killed.
    """
    asked: set[psutil.Process] = set()
    kill_at = time.monotonic() + grace_s
    while _reap(process):
        now = time.monotonic()
        left = psutil.Process().children(recursive=True)
        if now > kill_at + _UNKILLABLE_S:
            return len(asked), [child.pid for child in left]
        for child in left:
            try:
                if now >= kill_at:
                    child.kill()
                elif child not in asked:
                    child.terminate()
                asked.add(child)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # gone meanwhile, or become another user's
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
    return len(asked), []


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
