"""Run the staging scripts on a cluster: on its login node, or with `in_job` in a job of their own."""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, cast

from steptime.clusters.base import Cluster, Job, JobState, JobStatus
from steptime.clusters.command_output import Lines
from steptime.clusters.config import ClusterConfig
from steptime.clusters.jobscript import staging_job_spec
from steptime.errors import SystemFailure
from steptime.waiting import poll_until_async

_SCRIPTS = ("build_venv.py", "import_image.py", "unpack_image.py")
_PACKAGE = "steptime/staging"
"""Folder beside the scripts on the cluster with the modules that they import."""
_TIMEOUT_S = 2 * 3600
_TAIL_LINES = 15
_NAMES_AT_ONCE = 16


class ScriptEnd(NamedTuple):
    """The exit code of a staging script and the end of its output."""

    exit_code: int
    last_lines: tuple[str, ...]


def script_files() -> dict[str, bytes]:
    """Return the contents of the staging scripts and the modules that they import, by relative path."""
    here = Path(__file__).parent
    packages = [f"{package}/__init__.py" for package in ("steptime", _PACKAGE)]
    return {
        **{name: (here / name).read_bytes() for name in _SCRIPTS},
        **dict.fromkeys(packages, b""),
        **{
            f"steptime/{name}": (here.parent / name).read_bytes()
            for name in ("files.py", "process_identity.py")
        },
        f"{_PACKAGE}/make_once.py": (here / "make_once.py").read_bytes(),
    }


async def copy_scripts(cluster: Cluster, config: ClusterConfig) -> PurePosixPath:
    """Copy the staging scripts to the cluster, into a folder named by a hash of them; return the folder."""
    contents = await asyncio.to_thread(script_files)
    digest = hashlib.sha256(b"".join(contents.values())).hexdigest()[:16]
    folder = PurePosixPath(config.root, "staging", digest)
    last = str(folder / next(reversed(contents)))
    if await cluster.read(last) != contents[last.removeprefix(f"{folder}/")]:
        for name, content in contents.items():
            await cluster.write(str(folder / name), content)
    return folder


async def run_script(
    cluster: Cluster,
    config: ClusterConfig,
    script: PurePosixPath,
    arguments: Sequence[str],
    *,
    in_job: bool,
    job_options: Sequence[str],
    report: Callable[[str], None],
) -> ScriptEnd:
    """Run a staging script with the cluster's Python to its end; `report` gets each line of its output.

    With `in_job` it runs in a job submitted with `job_options`; a second caller with the same arguments waits
    for the same job. Raises SystemFailure if that job ends in another way than by the script's exit code.
    """
    argv = (config.python, str(script), *arguments)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def take(line: str) -> None:
        tail.append(line)
        report(line)

    if in_job:
        exit_code = await _run_in_job(cluster, config, argv, job_options, take)
    else:
        exit_code = (await cluster.run(argv, timeout_s=_TIMEOUT_S, on_output=take)).exit_code
    return ScriptEnd(exit_code, tuple(tail))


async def _run_in_job(
    cluster: Cluster,
    config: ClusterConfig,
    argv: Sequence[str],
    options: Sequence[str],
    take: Callable[[str], None],
) -> int:
    job = await _live_job(cluster, config, argv, options)
    take(f"in job {job.name} (id {job.job_id}), which writes {job.log_path}")
    lines, offset, reported = Lines(take), 0, ""

    async def ended() -> JobStatus | None:
        nonlocal offset, reported
        status = (await cluster.poll([job.name]))[job.name]  # before reading: an ended job writes no more
        while chunk := await cluster.read(job.log_path, offset):
            offset += len(chunk)
            lines.take(chunk)
        if status.state.is_live and status.reason and status.reason != reported:
            reported = status.reason
            take(f"{status.state}: {reported}")
        return None if status.state.is_live else status

    status = cast(JobStatus, await poll_until_async(ended, every_s=config.poll_interval_s))
    lines.end()
    return _exit_code(job, status)


def _exit_code(job: Job, status: JobStatus) -> int:
    if status.state is JobState.SUCCEEDED:
        return 0
    if status.state is JobState.FAILED and status.exit_code:
        return status.exit_code
    reason = f" ({status.reason})" if status.reason else ""
    raise SystemFailure(
        f"staging job {job.name} on {job.cluster} is {status.state}{reason}: see {job.log_path}"
    )


async def _live_job(
    cluster: Cluster, config: ClusterConfig, argv: Sequence[str], options: Sequence[str]
) -> Job:
    """Return the live job that runs the same command, or submit a new one.

    A job's name consists of a hash of its command and a number.
    """
    key = hashlib.sha256(json.dumps(argv).encode()).hexdigest()[:16]
    first = 1
    while True:
        names = [f"stage-{key}-{number}" for number in range(first, first + _NAMES_AT_ONCE)]
        statuses = await cluster.poll(names)
        for name in names:
            state = statuses[name].state
            if not state.is_live and state is not JobState.UNKNOWN:
                continue
            job = await cluster.find(name)
            if job is None:
                return await cluster.submit(
                    staging_job_spec(name, argv, config, options=options, time_limit_s=_TIMEOUT_S)
                )
            if not state.is_live:  # it is lost, or somebody has submitted it since the poll
                state = (await cluster.poll([name]))[name].state
            if state.is_live:
                return job
        first += _NAMES_AT_ONCE
