"""The interface of every cluster kind: submit by unique name, find by name, poll, cancel, read files.

Backends are asynchronous because triggers wait for hundreds of jobs on one event loop; a backend never blocks
it. A job's identity is its unique name: after a lost reply or a killed worker the name is looked up.
"""

import re
import signal
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Self

from pydantic import Field, PositiveInt

from steptime.clusters.checks import ClusterCheck
from steptime.errors import UserError
from steptime.frozen import Frozen

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
"""Job names that every kind of cluster can use as a folder name, an argument and a label."""

SCRIPT_FILE = "job.sh"
"""Name of the job script in the job's folder."""


def check_job_name(name: str) -> None:
    """Raise UserError unless `name` is valid as a job's name."""
    if not _JOB_NAME.fullmatch(name):
        raise UserError(
            f"job name {name!r} cannot be used: write letters, digits, '.', '_' and '-', "
            "begin with a letter or digit, at most 200 in all"
        )


class JobState(StrEnum):
    """States of a job on any cluster; `unknown` (vanished) is an error, never success."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    UNKNOWN = "unknown"

    @property
    def is_live(self) -> bool:
        """Whether the job is queued or running, so that it holds resources or may still get some."""
        return self in (JobState.QUEUED, JobState.RUNNING)


def described_exit(exit_code: int) -> str:
    """Describe an exit code as a shell reports it: above 128 it stands for a signal.

    >>> described_exit(137)
    'exit code 137 (SIGKILL)'
    """
    try:
        return f"exit code {exit_code} ({signal.Signals(exit_code - 128).name})"
    except ValueError:
        return f"exit code {exit_code}"


class Installation(Frozen):
    """The Airflow installation that owns a job; several may share a cluster's folder and account."""

    id: str
    """A random id that stays the same as long as Airflow's database exists."""
    address: str
    """The address at which people find it."""

    def __str__(self) -> str:
        return f"{self.address} ({self.id})"


class JobSpec(Frozen):
    """A job to submit: its script, files and size. `clusters.jobscript` makes it."""

    name: str
    """Unique for each attempt; submitting the same name again returns the first job."""
    script: str
    """Text of the job script (bash)."""
    directory: str
    """Working folder on the cluster's file system; created by `submit`."""
    log_path: str
    """The file for stdout and stderr."""
    files: dict[str, str] = Field(default_factory=dict)
    """Small text files to write into `directory` before the start, by file name (`run.json`)."""
    slots: PositiveInt
    """GPUs that the job holds, or CPU processes on a cluster whose `gpu_type` is `cpu`."""
    nodes: tuple[str, ...] = ()
    """Nodes that the job asks for by name; empty if the cluster chooses."""
    time_limit_s: PositiveInt
    image: str | None = None
    """Image in which the cluster itself starts the script, as Run:ai does; None for its default, or none."""
    installation: Installation | None = None
    """The Airflow that submits the job, for its record on the cluster; None for staging, which all share."""

    @property
    def all_files(self) -> dict[str, str]:
        """The texts of `files` and of the job script, by file name.

        Raises UserError if a name in `files` is a path or the script's own name.
        """
        for name in self.files:
            if "/" in name or name in ("", ".", "..", SCRIPT_FILE):
                raise UserError(f"job {self.name}: {name!r} must be a plain file name, and not {SCRIPT_FILE}")
        return {**self.files, SCRIPT_FILE: self.script}


class Job(Frozen):
    """A submitted job. (cluster, name, job_id, submitted_at) together identify it, never the id alone."""

    cluster: str
    name: str
    job_id: str
    directory: str
    log_path: str
    submitted_at: float
    """Unix time."""
    installation: Installation | None = None
    """The Airflow that submitted the job, as recorded on the cluster; None if the record names none."""


class JobStatus(Frozen):
    """The state of a job as its cluster reports it."""

    state: JobState
    reason: str = ""
    """Why the job waits or how it ended, in the cluster's own words where it has any; may be empty."""
    exit_code: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    nodes: tuple[str, ...] = ()
    cluster_fault: bool = False
    """Whether the job failed because of the cluster (a dead node, a preemption): resubmitting may help."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes that a resubmission should avoid."""

    @classmethod
    def unknown_job(cls, cluster: str, name: str) -> Self:
        """Return the status for a job name that the cluster does not know."""
        return cls(state=JobState.UNKNOWN, reason=f"{cluster} has no job of the name {name}")


class StagedFiles(Frozen):
    """What is staged on a cluster for a run: the trainer's code, and its Python environment or an image.

    File names contain a hash of the content, so staging the same content again finds the files already there.
    """

    python: str | None
    """Interpreter of the trainer's venv on the cluster; None in a container, which has its own."""
    venv_lock_sha256: str | None
    """Hash of the lock file of the venv; None without one."""
    trainer_path: str
    """Folder on the cluster that holds the `trainer` package."""
    trainer_sha256: str
    image: str | None = None
    """The image's name, `nvcr.io/nvidia/nemo:25.04.01`."""
    image_path: str | None = None
    """What the container starts from: the image's file, its unpacked folder (bwrap) or its name (Run:ai)."""
    image_digest: str | None = None
    """`sha256:…` of the registry's manifest, which identifies the image, if the import reports it."""
    image_sha256: str | None = None
    """Hash of the image's file on the cluster, to notice a changed file; it differs between imports."""
    image_environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the image, if the container program (bwrap) does not set them."""


class CommandResult(Frozen):
    """The exit code and output of a command that `Cluster.run` ran."""

    exit_code: int
    stdout: str
    stderr: str


class Cluster(Protocol):
    """One cluster, used through one open connection; use it as an async context manager.

    Asynchronous methods raise OutOfReach, a SystemFailure, if the cluster does not answer. Those that take
    a job's name raise UserError for a name that `check_job_name` refuses.
    """

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...

    async def submit(self, spec: JobSpec) -> Job:
        """Start the job of `spec`, or return the existing job of that name.

        Raises UserError for a job that the cluster can never run, SubmitLimit if it accepts no more jobs for
        now, another SystemFailure if the submission fails.
        """
        ...

    async def find(self, name: str) -> Job | None:
        """Return the job of that unique name, live or ended, or None if the cluster never had it."""
        ...

    async def poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        """Return the states of many jobs in one call; a name the cluster does not know is UNKNOWN."""
        ...

    async def cancel(self, name: str) -> None:
        """End the job with its whole process tree and return when it is gone; no error if it has ended.

        Raises SystemFailure if it does not end in time.
        """
        ...

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Read up to `limit` bytes of a file on the cluster from `offset`; b"" if there is none (yet).

        Raises SystemFailure, or OSError where the file is on this machine, if it cannot be read.
        """
        ...

    def local_path(self, path: str) -> Path | None:
        """Return the path by which this machine can open a file of the cluster; None if only `read` can."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file atomically (temporary name, fsync, rename) and create its folder.

        Raises SystemFailure if it cannot be written.
        """
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 600,
        on_output: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Run a command, a list of arguments, on the login node (on Run:ai in a pod); never through a shell.

        `on_output` gets each line of stdout and stderr as it arrives. If the command does not exist, the
        exit code is 127. Raises SystemFailure, and ends the command, after `timeout_s`.
        """
        ...

    def checks(self) -> Sequence[ClusterCheck]:
        """Return the checks of `steptime cluster check` for this kind of cluster, in order.

        Checks for all kinds (`work_dir`, Python, containers, images) are in `staging.cluster_check`.
        """
        ...
