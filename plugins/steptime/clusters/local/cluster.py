"""The local cluster, whose jobs are processes on this machine; the reference for every other backend.

All state is on disk (see `state`), and each job has one small process, its `runner`, that waits for it. So
any process may submit, find, poll and cancel jobs, and may exit while they run.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import psutil

from steptime.clusters.base import (
    SCRIPT_FILE,
    CommandResult,
    Job,
    JobSpec,
    JobState,
    JobStatus,
)
from steptime.clusters.checks import CheckFailedError, ClusterCheck, NotApplicableError, not_applicable
from steptime.clusters.command_output import collect
from steptime.clusters.connections import Connections, no_connections
from steptime.clusters.local.config import LocalConfig
from steptime.clusters.local.state import (
    JobFolder,
    LocalJob,
    enter_queue,
    list_queue,
    locked,
    settle_abandoned,
)
from steptime.errors import SystemFailure
from steptime.files import open_regular, write_whole
from steptime.process_identity import boot_id
from steptime.recipes.gpus import load_gpu_type
from steptime.waiting import poll_until_async

_CANCEL_MARGIN_S = 60
"""How long a cancelled job may take to end after its grace period: the machine may be busy."""
_NOT_PASSED_ON = {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
"""Variables of steptime's own Python that commands must not see, as they may start another Python."""


def connect(config: LocalConfig, connections: Connections = no_connections) -> "LocalCluster":  # noqa: ARG001
    """Return the local cluster for a configuration; it needs no login."""
    return LocalCluster(config)


class LocalCluster:
    """A `Cluster` whose jobs are processes on this machine."""

    def __init__(self, config: LocalConfig) -> None:
        self.name = config.name
        self._config = config
        self._state = Path(config.root) / "clusters" / config.name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    async def submit(self, spec: JobSpec) -> Job:
        """Start the job of `spec`, or return the job that already has its name.

        A job whose submitter or runner died before it started is started now. Raises UserError for an invalid
        name or too many slots, SystemFailure if the job cannot be started.
        """
        try:
            return await asyncio.to_thread(self._submit, spec)
        except OSError as error:
            raise SystemFailure(f"job {spec.name} could not be submitted on {self.name}: {error}") from error

    async def find(self, name: str) -> Job | None:
        """Return the job of that unique name, live or ended, or None if the cluster never had it."""
        submitted = await asyncio.to_thread(self._job(name).submitted)
        return submitted.job if submitted else None

    async def live_jobs(self) -> list[Job]:
        """Return the running and waiting jobs of this cluster, whoever submitted them, oldest first."""
        names = [entry.name for entry in await asyncio.to_thread(list_queue, self._state)]
        statuses = await self.poll(names)
        jobs = [await self.find(name) for name, status in statuses.items() if status.state.is_live]
        return [job for job in jobs if job is not None]

    async def poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        """Return the states of many jobs.

        If a job's runner was killed, what is left of the job is ended, and its state is UNKNOWN.
        """
        return await asyncio.to_thread(self._poll, names)

    async def cancel(self, name: str) -> None:
        """End the job with its whole process tree and return when it is gone; no error if it has ended.

        Raises SystemFailure if it does not end in time.
        """
        job = self._job(name)
        request = partial(asyncio.to_thread, _request_end, job)
        timeout_s = self._config.grace_s + _CANCEL_MARGIN_S
        if not await poll_until_async(request, every_s=0.02, timeout_s=timeout_s):
            raise SystemFailure(
                f"job {name} on {self.name} was asked to end and still runs: see {job.runner_log}"
            )

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Read up to `limit` bytes of a file from `offset`; b"" if there is none (yet)."""
        return await asyncio.to_thread(_read, Path(path), offset, limit)

    def local_path(self, path: str) -> Path:
        """Return the path itself: the cluster is this machine."""
        return Path(path)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file atomically and create its folder. Raises SystemFailure if it cannot be written."""
        try:
            await asyncio.to_thread(write_whole, Path(path), data)
        except OSError as error:
            raise SystemFailure(f"{path} could not be written on {self.name}: {error}") from error

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 600,
        on_output: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Run a command on this machine. Raises SystemFailure if it takes longer than `timeout_s`."""
        return await run_command(argv, timeout_s=timeout_s, on_output=on_output)

    def checks(self) -> tuple[ClusterCheck, ...]:
        """Return the checks of `steptime cluster check` for this machine."""
        here = ("login", "accounting", "submit limits", "clock")
        return (
            ClusterCheck("slots", self._check_slots),
            ClusterCheck("GPUs", self._check_gpus),
            *not_applicable(here, "the cluster is this machine"),
        )

    async def _check_slots(self) -> str:
        return f"{self._config.slot_count} ranks may run at once"

    async def _check_gpus(self) -> str:
        gpu_type = self._config.gpu_type
        if gpu_type == "cpu":
            raise NotApplicableError("gpu_type is cpu: jobs use no GPUs")
        completed = await self.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout_s=60)
        names = sorted(set(completed.stdout.split("\n")) - {""})
        product = load_gpu_type(gpu_type).product or gpu_type
        if completed.exit_code or not any(product.lower() in name.lower() for name in names):
            there = ", ".join(names) or "no GPU that nvidia-smi shows"
            raise CheckFailedError(
                f"gpu_type is {gpu_type}, and this machine has {there}",
                f"change gpu_type in config/clusters/{self.name}.yaml, or install the driver",
            )
        return f"{', '.join(names)}, as expected ({gpu_type})"

    def _job(self, name: str) -> JobFolder:
        return JobFolder(self._state, name)

    def _submit(self, spec: JobSpec) -> Job:
        job = self._job(spec.name)
        self._config.check_slots(f"job {spec.name}", spec.slots)
        job.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            with locked(self._state / "submit.lock"):
                submitted = job.submitted()
                if submitted and (job.status() or job.runner_lives()):
                    return submitted.job
                lock = stack.enter_context(locked(job.runner_lock))  # until the runner has it
                os.ftruncate(lock, 0)  # the process id of a runner that died
                submitted = submitted or self._write_job(job, spec)
                entry = enter_queue(self._state, job.name, submitted.slots)
            self._start_runner(job, entry.number, lock)
        return submitted.job

    def _write_job(self, job: JobFolder, spec: JobSpec) -> LocalJob:
        for name, text in spec.all_files.items():
            write_whole(Path(spec.directory, name), text)
        Path(spec.log_path).parent.mkdir(parents=True, exist_ok=True)
        submitted = LocalJob(
            job=Job(
                cluster=self.name,
                name=spec.name,
                job_id=uuid.uuid4().hex,
                directory=spec.directory,
                log_path=spec.log_path,
                submitted_at=time.time(),
                installation=spec.installation,
            ),
            script_path=str(Path(spec.directory, SCRIPT_FILE)),
            slots=self._config.slot_count if self._config.exclusive else spec.slots,
            cluster_slots=self._config.slot_count,
            time_limit_s=spec.time_limit_s,
            grace_s=self._config.grace_s,
            boot_id=boot_id(),
        )
        job.write(submitted)
        return submitted

    def _start_runner(self, job: JobFolder, number: int, lock: int) -> None:
        """Start the runner and wait until it has detached itself. Raises SystemFailure if it cannot start.

        `number` is that of the job's entry in the queue; the descriptor `lock` holds the job's lock.
        """
        runner = [sys.executable, "-I", "-m", "steptime.clusters.local.runner"]
        with job.runner_log.open("ab") as log:
            starter = subprocess.run(
                [*runner, str(self._state), job.name, str(number), str(lock)],
                cwd=self._state,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
                check=False,
            )
        if starter.returncode:
            raise SystemFailure(f"the runner of job {job.name} could not start: {_last_words(job)}")

    def _poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        return {name: self._status(name) for name in dict.fromkeys(names)}

    def _status(self, name: str) -> JobStatus:
        job = self._job(name)
        submitted = job.submitted()
        if submitted is None:
            return JobStatus.unknown_job(self.name, name)
        lives = job.runner_lives()  # before the state is read: a runner writes the end before it dies
        status = job.end() or (job.status() if lives else settle_abandoned(job))
        if status is not None:
            return status
        if lives:
            slots, cluster_slots = submitted.slots, submitted.cluster_slots
            return JobStatus(state=JobState.QUEUED, reason=f"waits for {slots} of {cluster_slots} slots")
        return JobStatus(
            state=JobState.UNKNOWN,
            reason=f"its runner was gone before it started: {_last_words(job)}; submit it again to start it",
        )


def _request_end(job: JobFolder) -> bool:
    """Request the job's end and signal its runner; return whether it has ended or was never submitted."""
    if job.submitted() is None or job.end() is not None:
        return True
    if not job.cancel_wish.exists():
        write_whole(job.cancel_wish, b"")  # for a runner that does not listen yet
    if not job.runner_lives():
        settle_abandoned(job)
        return job.end() is not None
    pid = job.runner_pid()
    with contextlib.suppress(psutil.NoSuchProcess):
        # The process is identified before the lock is tried: while the runner lives, the id is its own.
        process = psutil.Process(pid) if pid else None
        if process and job.runner_lives() and job.runner_pid() == pid:
            process.terminate()
    return False


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


def _last_words(job: JobFolder) -> str:
    """Return the last line of the runner's log, or a note that it is empty."""
    lines = job.runner_log.read_text(errors="replace").splitlines() if job.runner_log.exists() else []
    return lines[-1] if lines else "its log is empty"


def _environment() -> dict[str, str]:
    """Return the environment of a command: this process's, with this Python's programs first in the PATH.

    Else the Python 3.11 of steptime's own environment, which may be the only one here, would be found by the
    tasks in Airflow, whose PATH begins with it, but not from a terminal.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    programs = str(Path(sys.executable).parent)
    return variables | {"PATH": os.pathsep.join((programs, variables.get("PATH", os.defpath)))}


async def run_command(
    argv: Sequence[str], *, timeout_s: float, on_output: Callable[[str], None] | None
) -> CommandResult:
    """Run `argv` to its end; see `Cluster.run`.

    A command that does not exist ends with exit code 127, as over ssh. A command is killed with its process
    group if it takes longer than `timeout_s`, which raises SystemFailure, or if the caller is cancelled.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            process_group=0,  # killed as a group, yet in the caller's session: it ends with `steptime down`
        )
    )
    try:
        # If its start were cancelled, asyncio would kill the command alone, and wait for its children.
        process = await asyncio.shield(starting)
    except (FileNotFoundError, PermissionError) as error:
        return CommandResult(exit_code=127, stdout="", stderr=f"{argv[0]}: {error.strerror}\n")
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # it could not be started
            await _kill(await starting)
        raise
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr, exit_code = await asyncio.gather(
                _collect_output(process.stdout, on_output, argv[0]),
                _collect_output(process.stderr, on_output, argv[0]),
                process.wait(),
            )
    except BaseException as error:
        await _kill(process)
        if not isinstance(error, TimeoutError):
            raise
        raise SystemFailure(f"the command {argv[0]} was ended after {timeout_s:g} s") from None
    return CommandResult(exit_code=exit_code, stdout=stdout, stderr=stderr)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _collect_output(
    stream: asyncio.StreamReader | None, on_output: Callable[[str], None] | None, command: str
) -> str:
    if stream is None:  # both are pipes
        raise TypeError("no stream to read")
    return await collect(stream.read, on_output, of=command)
