"""Make the logs of jobs available as local files, by copying them if the cluster's files cannot be opened.

A log is copied in pieces through `Cluster.read`, to a temporary name; the complete copy is then renamed. Each
request overlaps the end of the previous piece, to notice a log that was cut or replaced meanwhile. The copy
is complete when a request returns only the overlap. Of a log without end, the copy has the beginning and the
end.
"""

import asyncio
import os
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from filelock import AsyncFileLock
from pydantic import ValidationError

from steptime.clusters.base import Cluster, Job
from steptime.errors import SystemFailure, UserError
from steptime.files import LOG_HEAD_BYTES, LOG_TAIL_BYTES, left_out_mark, read_limited, write_whole
from steptime.frozen import Frozen
from steptime.recipes.models import RUN_FILE
from steptime.settings import collected_logs_dir

_PIECE_BYTES = 8 << 20
_OVERLAP_BYTES = 4096
_ORIGIN_FILE = "collected.json"


class Origin(Frozen):
    """The cluster and the path that a folder's files were copied from, stored beside the copies."""

    cluster: str
    job_name: str
    directory: str
    """The log's folder on the cluster."""


async def collect_log(cluster: Cluster, job: Job) -> Path:
    """Return the path of a job's log as a local file; the same folder has the job's plan, `run.json`.

    If this machine can open the cluster's files, it is the log itself, whether it exists or not. Otherwise it
    is a copy in `<STEPTIME_HOME>/logs-collected/<cluster>/<job>/`, which is updated now. Then this raises
    UserError if the log is missing or empty, SystemFailure if it cannot be copied.
    """
    if (local := cluster.local_path(job.log_path)) is not None:
        return local
    folder = collected_logs_dir() / job.cluster / job.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with AsyncFileLock(folder / ".lock"):
            copy = folder / PurePosixPath(job.log_path).name
            if not await _is_up_to_date(cluster, job.log_path, copy):
                await _copy(cluster, job.log_path, copy)
            await _copy_planned_run(cluster, job, folder)
    except OSError as error:
        raise SystemFailure(
            f"the log {job.log_path} of cluster '{job.cluster}' cannot be copied to {folder}: "
            f"{error.strerror or error}"
        ) from error
    return copy


def cluster_path(path: Path) -> str:
    """Return the original path of a log that `collect_log` copied; any other path unchanged."""
    try:
        origin = Origin.model_validate_json(read_limited(path.with_name(_ORIGIN_FILE)))
    except (OSError, ValidationError):
        return str(path)
    return str(PurePosixPath(origin.directory) / path.name)


async def _is_up_to_date(cluster: Cluster, path: str, copy: Path) -> bool:
    """Return whether the copy has all of the log, or more, if the log was cut or removed since."""
    begin, overlap = await asyncio.to_thread(_end, copy)
    return bool(overlap) and overlap.startswith(await cluster.read(path, begin, len(overlap) + 1))


def _end(copy: Path) -> tuple[int, bytes]:
    """Return the offset of the last bytes of a copy, and these bytes; 0 and b"" if there is no copy."""
    if not copy.exists():
        return 0, b""
    with copy.open("rb") as file:
        begin = file.seek(max(0, copy.stat().st_size - _OVERLAP_BYTES))
        return begin, file.read()


async def _copy(cluster: Cluster, path: str, copy: Path) -> None:
    part = copy.with_name(f".{copy.name}.part")
    try:
        with part.open("wb") as file:
            size = await _append(cluster, path, file, 0, LOG_HEAD_BYTES)
            if size == LOG_HEAD_BYTES and (end := await _find_end(cluster, path, size)) > size:
                begin = max(size, end - LOG_TAIL_BYTES)
                if begin > size:
                    await asyncio.to_thread(file.write, left_out_mark(begin - size))
                await _append(cluster, path, file, begin, LOG_TAIL_BYTES)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if not size:
            raise UserError(f"there is no log on cluster '{cluster.name}' at {path}, or it is empty.")
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)


async def _append(cluster: Cluster, path: str, file: BinaryIO, begin: int, at_most: int) -> int:
    """Append a log's bytes from `begin` on to a file, at most `at_most`; return how many there were."""
    size, overlap = 0, b""
    while size < at_most:
        wanted = min(_PIECE_BYTES, at_most - size)
        data = await cluster.read(path, begin + size - len(overlap), len(overlap) + wanted)
        if not data.startswith(overlap):
            raise SystemFailure(
                f"{path} on cluster '{cluster.name}' was cut or replaced while it was copied: try again."
            )
        new = data[len(overlap) :]
        if not new:
            break
        await asyncio.to_thread(file.write, new)
        size += len(new)
        overlap = data[-_OVERLAP_BYTES:]
    return size


async def _find_end(cluster: Cluster, path: str, begin: int) -> int:
    """Return the size of a log of `begin` bytes or more: it is found by reading single bytes."""
    within, step = begin - 1, _PIECE_BYTES
    while await cluster.read(path, within + step, 1):
        within, step = within + step, 2 * step
    beyond = within + step
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if await cluster.read(path, middle, 1):
            within = middle
        else:
            beyond = middle
    return beyond


async def _copy_planned_run(cluster: Cluster, job: Job, folder: Path) -> None:
    """Copy the plan, which `steptime parse` looks for beside a log, and note where both come from."""
    origin = Origin(cluster=job.cluster, job_name=job.name, directory=str(PurePosixPath(job.log_path).parent))
    planned = await cluster.read(str(PurePosixPath(job.directory) / RUN_FILE))
    if planned:
        await asyncio.to_thread(write_whole, folder / RUN_FILE, planned)
    await asyncio.to_thread(write_whole, folder / _ORIGIN_FILE, origin.model_dump_json(indent=2))
