"""Let only one of several hosts make a file or folder that all could make at once.

`flock` excludes processes of one host, and ends with them. Between login nodes it does not work on every
shared file system (Lustre with `localflock`, some NFS), and on some it fails. What works on all of them is
that only one process can create a file of a given name. So the maker holds both: the lock, and a file with
that name, which it touches as long as it lives. A file that was not touched for LEASE_S was left by a dead
process. Standard library only; runs on the cluster, imported by the scripts beside its package.
"""

import errno
import fcntl
import os
import platform
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

RENEW_S = 15.0
LEASE_S = 180.0
"""Seconds without a change after which a claim is taken over: NFS caches attributes for up to a minute."""
_LOOK_S = 1.0
_LINES_KEPT = 200
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def claimed(thing: Path, doing: str) -> Iterator[int]:
    """Wait for the exclusive right to make the file or folder `thing`, and keep it within this context.

    Yields the descriptor of a lock, which child processes must inherit. While it waits, it prints `waiting
    for another <doing> <thing>`; `doing` is for instance `build of`. A thread of this process renews the
    right regularly. If this process was suspended for so long (LEASE_S) that another one took the right, this
    process is killed with its process group.
    """
    thing.parent.mkdir(parents=True, exist_ok=True)
    claim = thing.parent / f".{thing.name}.claim"
    waits = f"waiting for another {doing} {thing}"
    lock = os.open(thing.parent / f".{thing.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        has_lock, has_printed = _lock(lock, waits)
        owner = f"{platform.node()} {os.getpid()} {uuid.uuid4().hex}"
        _take(claim, owner, waits, has_lock=has_lock, has_printed=has_printed)
        ended = threading.Event()
        renewing = threading.Thread(target=_renew, args=(claim, owner, ended), daemon=True)
        renewing.start()
        try:
            yield lock
        finally:
            ended.set()
            renewing.join()
            if _owner(claim) == owner:
                claim.unlink()
    finally:
        os.close(lock)


def _lock(lock: int, waits: str) -> tuple[bool, bool]:
    """Take the lock; return whether locks work here, and whether another process held it."""
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waits, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
            return True, True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False, False
    return True, False


def _take(claim: Path, owner: str, waits: str, *, has_lock: bool, has_printed: bool) -> None:
    """Create the claim file, once another one is gone or abandoned.

    It is abandoned if it was not renewed for LEASE_S, or if it is of this host and this process holds the
    lock (`has_lock`): then its owner has ended.
    """
    seen: tuple[str, float] | None = None
    since = 0.0
    while not _made(claim, owner):
        found = _seen(claim)
        if found is None:
            continue
        if found != seen:
            seen, since = found, time.monotonic()
        left_here = has_lock and found[0].split(" ")[0] == platform.node()  # it had the lock, and is gone
        if left_here or time.monotonic() - since > LEASE_S:
            _move_away(claim, found[0])
            continue
        if not has_printed:
            print(f"{waits} on {found[0].split(' ')[0]}", flush=True)
            has_printed = True
        time.sleep(_LOOK_S)


def _made(claim: Path, owner: str) -> bool:
    try:
        with claim.open("x") as file:
            file.write(owner)
    except FileExistsError:
        return False
    return True


def _seen(claim: Path) -> tuple[str, float] | None:
    """Return the claim's owner and when it was last renewed (by the file system's clock), or None."""
    try:
        with claim.open() as file:
            return file.read(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _owner(claim: Path) -> str | None:
    found = _seen(claim)
    return found[0] if found else None


def _move_away(claim: Path, owner: str) -> None:
    """Remove an abandoned claim of `owner`; restore a claim that another process has made since."""
    away = claim.with_name(f"{claim.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        claim.rename(away)
        found = away.read_text()
        if found != owner:  # another was quicker, and this is its own
            _made(claim, found)
        away.unlink()


def _renew(claim: Path, owner: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        try:
            if _owner(claim) != owner and not _made(claim, owner):
                print(f"failed: {claim} is another's now, as this process stood still for long", flush=True)
                os.kill(0, signal.SIGKILL)  # with what it has started, which would be in the other's way
            os.utime(claim)
        except OSError as error:
            print(f"{claim} could not be renewed: {error}", flush=True)


def run_holding(lock: int, argv: Sequence[str]) -> tuple[int, str]:
    """Run a command, printing its output; return its exit code and its last lines.

    The command inherits the lock from `claimed`, so that even if this process is killed, no other process
    makes the same thing before the command has ended.
    """
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
