"""The trainer's code on the cluster, by content: a job never runs a half-changed tree."""

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig
from steptime.errors import SystemFailure


async def stage_trainer(
    cluster: Cluster, config: ClusterConfig, *, source: Path, report: Callable[[str], None]
) -> tuple[str, str]:
    """Copy the package folder `source` to the cluster unless its content is there.

    Returns the package's folder on the cluster, and the SHA-256 of its content (names and files).
    Raises SystemFailure if it cannot be written, or if somebody has changed the copy.
    """
    files = await asyncio.to_thread(_read_package, source)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    sha256 = hashlib.sha256(listing.encode()).hexdigest()
    folder = PurePosixPath(config.root, "trainer", sha256[:16])
    if await _is_there(cluster, folder, digests):
        report(f"trainer code {folder.name} is there")
        return str(folder), sha256
    report(f"copying {len(files)} files of trainer code to {folder}")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        for name, content in files.items():
            await cluster.write(str(partial / name), content)
        moved = await cluster.run(["mv", "--no-target-directory", str(partial), str(folder)], timeout_s=60)
    finally:
        await cluster.run(["rm", "-rf", str(partial)], timeout_s=60)
    if moved.exit_code and not await _is_there(cluster, folder, digests):  # else another was quicker
        raise SystemFailure(
            f"the trainer could not be copied to {folder} on {cluster.name}: {moved.stderr.strip()}"
        )
    return str(folder), sha256


def _read_package(source: Path) -> dict[str, bytes]:
    """All files of the package by their path below its parent; nothing hidden, nothing cached by Python."""
    files = {}
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source.parent)
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
            files[str(inside)] = path.read_bytes()
    return files


async def _is_there(cluster: Cluster, folder: PurePosixPath, digests: dict[str, str]) -> bool:
    """Whether the folder is there; SystemFailure if it is not what was copied once."""
    names = list(digests)
    found = await cluster.run(["sha256sum", "--", *(str(folder / name) for name in names)], timeout_s=60)
    if not found.stdout:
        return False
    if [line.split()[0] for line in found.stdout.splitlines()] != [digests[name] for name in names]:
        raise SystemFailure(
            f"the copy of the trainer in {folder} on {cluster.name} was changed later: remove that folder"
        )
    return True
