"""Make a file or folder on a shared file system once, so that nobody ever sees an incomplete one.

It is made under a temporary name beside its final one, synced, and renamed when it is complete: whatever has
the final name is complete. On one host a lock keeps a second process from making the same thing. `flock` does
not hold between the hosts of every file system (Lustre with `localflock`, some NFS), so two hosts may both
make it; the one that finishes last then drops its own. Standard library only; runs on the cluster, imported
by the scripts beside its package.

A killed process leaves its temporary file or folder. The next process that makes the same thing removes it:
at once if it is of this host, where the lock shows that nobody makes it any more, and after a day if it is of
another host, as no staging script runs for so long.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from steptime.files import write_whole
from steptime.process_identity import boot_id

ABANDONED_AFTER_S = 24 * 3600.0
"""Age at which a temporary file or folder of another host is removed; staging scripts run 2 hours at most."""
_LINES_KEPT = 200
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)

Run = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a command from its arguments, prints its output, and returns its exit code and its last lines."""
Make = Callable[[Path, Run], dict[str, Any] | None]
"""Makes the thing at a path where nothing is yet; returns its record, if it is to have one."""


class _Lock(NamedTuple):
    """An open lock file, and whether this process holds its lock (some file systems have none)."""

    descriptor: int
    is_held: bool


def make_once(target: Path, doing: str, is_complete: Callable[[], bool], make: Make) -> None:
    """Make the file or folder `target` unless `is_complete()`.

    Args:
        target: its final path. The folder around it is created.
        doing: what is being done, for the line `waiting for another <doing> <target>`, as in `build of`.
        is_complete: whether `target` exists and can be used. If it exists and cannot, it is replaced.
        make: makes it under a temporary name. What it returns is written as JSON to `record_path(target)`
            just before the rename. It starts commands by the `Run` that it gets: they inherit the lock, so
            that if this process is killed, no other one of this host begins before they have ended.

    An exception of `make` is passed on after the temporary file or folder was removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}.lock"), f"waiting for another {doing} {target}") as lock:
        if is_complete():
            return
        _remove_abandoned(target, lock)
        before, part, replaced = _identity(target), _part(target), _part(target)
        try:
            record = make(part, partial(_run, lock.descriptor))
            _sync(part)
            if _identity(target) != before and is_complete():
                print(f"another host has made {target} meanwhile", flush=True)
                return
            if record is not None:
                write_whole(record_path(target), json.dumps(record, indent=2))
            if target.is_dir():  # it cannot be used, and only an empty folder can be renamed to
                target.rename(replaced)
            try:
                part.rename(target)
            except OSError:
                if not is_complete():  # else another host has renamed its own at this moment
                    raise
        finally:
            _remove(part)
            _remove(replaced)


def record_path(target: Path) -> Path:
    """Return the path of the record of what was made."""
    return target.with_name(f"{target.name}.json")


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process by SystemExit, so that it removes what is incomplete."""

    def end(*_: object) -> NoReturn:
        sys.exit("failed: it was ended from outside")

    signal.signal(signal.SIGTERM, end)


@contextmanager
def _locked(path: Path, waits: str) -> Iterator[_Lock]:
    """Hold the lock of a file (created if missing) where locks work; print `waits` before waiting for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _Lock(descriptor, _lock(descriptor, waits))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, waits: str) -> bool:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waits, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _part(target: Path) -> Path:
    """Return a new temporary path for `target`, which names the host by its boot id."""
    return target.with_name(f".{target.name}.{boot_id()}.{uuid.uuid4().hex}.part")


def _remove_abandoned(target: Path, lock: _Lock) -> None:
    """Remove the temporary files and folders of `target` that killed processes have left.

    Each is renamed before it is removed: if its maker lives after all, it fails, and never renames a part.
    """
    os.utime(lock.descriptor)
    now = os.fstat(lock.descriptor).st_mtime  # by the clock of the file system, as the times of the parts
    for path in target.parent.iterdir():
        boot, *rest = path.name.removeprefix(f".{target.name}.").split(".")
        if not path.name.startswith(f".{target.name}.") or len(rest) != 2 or rest[1] != "part":
            continue
        try:
            if not (lock.is_held and boot == boot_id()) and now - path.lstat().st_mtime < ABANDONED_AFTER_S:
                continue
            print(f"removing what an unfinished process left: {path}", flush=True)
            path.rename(renamed := _part(target))
        except FileNotFoundError:  # its maker, or another process that removes it, was quicker
            continue
        _remove(renamed)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when the file or folder is replaced; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _sync(path: Path) -> None:
    if path.is_dir():
        os.sync()  # syncing tens of thousands of files one by one takes longer
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    """Remove a file, or a folder with its content, even if folders in it are read-only.

    What cannot be removed is printed; a later process that makes the same thing tries again.
    """
    try:
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for top, _, _ in os.walk(path):
            Path(top).chmod(0o700)
        shutil.rmtree(path)
    except OSError as error:
        print(f"{path} could not be removed: {error}", flush=True)


def _run(lock: int, argv: Sequence[str]) -> tuple[int, str]:
    tail: deque[str] = deque(maxlen=_LINES_KEPT)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", pass_fds=(lock,)
    ) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                tail.append(line)
        except BaseException:
            process.terminate()
            raise
    return process.returncode, "".join(tail)
