"""Unpack an image, so that bwrap can run programs in it. Runs on the cluster with the cluster's own Python.

    python3.11 unpack_image.py IMAGE FOLDER MOUNT_POINT ...

FOLDER gets the files of the squashfs IMAGE. They are unpacked once, under a temporary name that is changed
when they are complete. A claim (`claim.py`) keeps other processes from unpacking it at the same time. A job
sees the files read-only, so the places where its other folders and files are mounted must exist: each
MOUNT_POINT becomes an empty folder, or an empty file if it is a file on this machine. Standard library only.
Exit code 0: the folder exists; 1: the image could not be unpacked; 2: it could not, and another try will not
help.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from steptime.staging.claim import claimed


def main() -> int:
    """Unpack the squashfs image that the arguments name unless its folder exists; return the exit code."""
    image, folder, mount_points = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    if shutil.which("unsquashfs") is None:
        print(f"failed: unsquashfs is not installed on {platform.node()}: install squashfs-tools there")
        return 2
    try:
        with claimed(folder, "unpacking of") as lock:
            problem = None if folder.is_dir() else _unpack(image, folder, lock)
            if problem is None:
                for mount_point in mount_points:
                    _make_mount_point(folder, mount_point)
    except OSError as error:
        problem = str(error)
    if problem is not None:
        print(f"failed: {problem}", flush=True)
        return 1
    return 0


def _unpack(image: Path, folder: Path, lock: int) -> str | None:
    """Unpack the image; return the reason if that failed, else None."""
    part = folder.parent / f".{folder.name}.part"
    if part.exists():
        print(f"removing what was half unpacked: {part}", flush=True)
        _remove(part)
    print(f"unpacking {image} into {folder}", flush=True)
    done = subprocess.run(
        ["unsquashfs", "-no-progress", "-no-xattrs", "-dest", str(part), str(image)],  # noqa: S607
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        pass_fds=(lock,),  # should this process be killed, nobody unpacks before the command has ended
    )
    if done.returncode:
        _remove(part)
        if "No space left on device" in done.stdout or "Disk quota exceeded" in done.stdout:
            return f"the disk is full: an unpacked image needs some three times its size in {folder.parent}"
        last = (done.stdout.splitlines() or ["it printed nothing"])[-1]
        return f"unsquashfs ended with exit code {done.returncode}: {last}"
    os.sync()  # tens of thousands of files: before they get the name of what is whole
    part.rename(folder)
    return None


def _make_mount_point(folder: Path, path: str) -> None:
    """Create an empty folder or file inside `folder`; do nothing if it exists or its path has a link."""
    place, outside = folder, Path(path)
    parts = [part for part in outside.parts if part not in ("/", "..")]
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            return  # it is the image's own business; bwrap fails with the reason if it cannot mount there
        place.mkdir(exist_ok=True)
    place = place / parts[-1]
    if place.is_symlink() or place.exists():
        return
    if outside.is_file():
        place.touch()
    else:
        place.mkdir()


def _remove(folder: Path) -> None:
    """Remove a folder and its content, even if folders in it are read-only."""
    for top, _, _ in os.walk(folder):
        Path(top).chmod(0o700)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
