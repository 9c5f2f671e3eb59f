"""Make the logs of jobs available as local files, by copying them if the cluster's files cannot be opened.

A copy is fetched in pieces through `Cluster.read` under a temporary name, and gets its own when it is whole.
Each piece is asked for together with the last bytes before it, and the copy is whole when nothing comes after
them. So it has the size of the log, a copy that was broken off goes on where it ended, and a log that has
grown or was replaced since is noticed.
"""

import asyncio
import os
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from steptime.clusters.base import Cluster, Job
from steptime.errors import SystemFailure, UserError
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.recipes.models import RUN_FILE
from steptime.settings import collected_logs_dir

_PIECE_BYTES = 8 << 20
_OVERLAP_BYTES = 4096
_ORIGIN_FILE = "collected.json"


class Origin(Frozen):
    """Where the files of a folder were copied from; stored beside them."""

    cluster: str
    job_name: str
    directory: str
    """The log's folder on the cluster."""


async def collect_log(cluster: Cluster, job: Job) -> Path:
    """Return the path of a job's log as a local file, with the planned run beside it.

    If this machine can open the cluster's files, it is the log itself. Otherwise it is a copy in
    `<STEPTIME_HOME>/logs-collected/<cluster>/<job>/`, which is updated now. Raises UserError if the job left
    no log, SystemFailure if it cannot be copied; the next call resumes the copy.
    """
    from filelock import AsyncFileLock

    if (own := cluster.local_path(job.log_path)) is not None:
        return own
    folder = collected_logs_dir() / job.cluster / job.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with AsyncFileLock(folder / ".lock"):
            copy = _Copy(folder / PurePosixPath(job.log_path).name)
            await _bring_up_to_date(cluster, job.log_path, copy)
            await _copy_planned_run(cluster, job, folder)
            await asyncio.to_thread(copy.finish)
    except OSError as error:
        raise SystemFailure(
            f"the log {job.log_path} of cluster '{job.cluster}' cannot be copied to {folder}: "
            f"{error.strerror or error}"
        ) from error
    return copy.path


def cluster_path(path: Path) -> str:
    """Return the original path of a log that `collect_log` copied; any other path unchanged."""
    try:
        origin = Origin.model_validate_json(path.with_name(_ORIGIN_FILE).read_bytes())
    except (OSError, ValidationError):
        return str(path)
    return str(PurePosixPath(origin.directory) / path.name)


class _Copy:
    """A file that has a temporary name while it is copied, and gets its own name when complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")

    @property
    def is_whole(self) -> bool:
        return self.path.exists()

    @property
    def size(self) -> int:
        return self._now.stat().st_size if self._now.exists() else 0

    def last_bytes(self, count: int) -> bytes:
        """Read the last `count` bytes of a file, or all of it if it is shorter."""
        if not self.size:
            return b""
        with self._now.open("rb") as file:
            file.seek(max(0, self.size - count))
            return file.read()

    def append(self, data: bytes) -> None:
        if self.is_whole:
            self.path.replace(self._part)
        with self._part.open("ab") as file:
            file.write(data)

    def begin_again(self) -> None:
        self._now.unlink()

    def finish(self) -> None:
        if self.is_whole:
            return
        with self._part.open("ab") as file:
            os.fsync(file.fileno())
        self._part.replace(self.path)

    @property
    def _now(self) -> Path:
        return self.path if self.is_whole else self._part


async def _bring_up_to_date(cluster: Cluster, path: str, copy: _Copy) -> None:
    was_replaced = False
    while True:
        overlap = await asyncio.to_thread(copy.last_bytes, _OVERLAP_BYTES)
        begin = copy.size - len(overlap)
        data = await cluster.read(path, begin, len(overlap) + _PIECE_BYTES)
        if data == overlap:
            break
        if data.startswith(overlap):
            await asyncio.to_thread(copy.append, data[len(overlap) :])
            continue
        was_cut = overlap.startswith(data)
        if was_cut and copy.is_whole:
            break  # cut or removed since, as scratch file systems do: the copy is what is left of it
        if was_cut or was_replaced:
            change = "was cut or removed" if was_cut else "was replaced again"
            raise SystemFailure(
                f"{path} on cluster '{cluster.name}' {change} while it was copied: try again."
            )
        was_replaced = True
        await asyncio.to_thread(copy.begin_again)
    if not copy.size:
        raise UserError(f"there is no log on cluster '{cluster.name}' at {path}, or it is empty.")


async def _copy_planned_run(cluster: Cluster, job: Job, folder: Path) -> None:
    """Copy the plan, which `steptime parse` looks for beside a log, and note where both come from."""
    origin = Origin(cluster=job.cluster, job_name=job.name, directory=str(PurePosixPath(job.log_path).parent))
    planned = await cluster.read(str(PurePosixPath(job.directory) / RUN_FILE))
    if planned:
        await asyncio.to_thread(write_whole, folder / RUN_FILE, planned)
    await asyncio.to_thread(write_whole, folder / _ORIGIN_FILE, origin.model_dump_json(indent=2))
