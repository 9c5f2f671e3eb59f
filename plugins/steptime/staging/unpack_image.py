"""Unpack an image, so that bwrap can run programs in it. Runs on the cluster with the cluster's own Python.

    python3.11 unpack_image.py IMAGE FOLDER MOUNT_POINT ...

FOLDER gets the files of the squashfs IMAGE. They are unpacked once, under a temporary name that is changed
when they are complete (`make_once.py`). A job sees the files read-only, so the paths at which its other
folders and files are mounted must exist: each MOUNT_POINT becomes an empty folder, or an empty file if it is
a file on this machine. Standard library only. Exit code 0: the folder exists; 1: the image could not be
unpacked; 2: it could not, and another try will not help.
"""

import platform
import shutil
import sys
from functools import partial
from pathlib import Path

from steptime.staging.make_once import Run, exit_on_sigterm, make_once


class _UnpackFailedError(Exception):
    """The image cannot be unpacked, with the reason in one sentence."""


def main() -> int:
    """Unpack the squashfs image that the arguments name unless its folder exists; return the exit code."""
    image, folder, mount_points = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    if shutil.which("unsquashfs") is None:
        print(f"failed: unsquashfs is not installed on {platform.node()}: install squashfs-tools there")
        return 2
    exit_on_sigterm()
    try:
        make_once(folder, "unpacking of", folder.is_dir, partial(_unpack, image, folder))
        for mount_point in mount_points:
            _make_mount_point(folder, mount_point)
    except (_UnpackFailedError, OSError) as error:
        print(f"failed: {error}", flush=True)
        return 1
    return 0


def _unpack(image: Path, folder: Path, part: Path, run: Run) -> None:
    """Unpack the image into the folder `part`. Raises `_UnpackFailedError` with the reason if that fails."""
    print(f"unpacking {image} into {folder}", flush=True)
    exit_code, output = run(["unsquashfs", "-no-progress", "-no-xattrs", "-dest", str(part), str(image)])
    if exit_code:
        if "No space left on device" in output or "Disk quota exceeded" in output:
            raise _UnpackFailedError(
                f"the disk is full: an unpacked image needs some three times its size in {folder.parent}"
            )
        raise _UnpackFailedError(f"unsquashfs ended with exit code {exit_code}")


def _make_mount_point(folder: Path, path: str) -> None:
    """Create an empty folder or file inside `folder`; do nothing if it exists or its path has a link."""
    inside, outside = folder, Path(path)
    parts = [part for part in outside.parts if part not in ("/", "..")]
    for part in parts[:-1]:
        inside = inside / part
        if inside.is_symlink():
            return  # it is the image's own business; bwrap fails with the reason if it cannot mount there
        inside.mkdir(exist_ok=True)
    inside = inside / parts[-1]
    if inside.is_symlink() or inside.exists():
        return
    if outside.is_file():
        inside.touch()
    else:
        inside.mkdir(exist_ok=True)  # another process may make it at this moment


if __name__ == "__main__":
    sys.exit(main())
