"""Ports, a lock, state files and errors of failed starts for `steptime up` and `steptime slurm up`."""

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from steptime.errors import SystemFailure
from steptime.frozen import Frozen

LOOPBACK = "127.0.0.1"
Announce = Callable[[str], None]
"""A function that shows people one sentence about the current phase."""
_State = TypeVar("_State", bound=Frozen)


def is_free(port: int) -> bool:
    """Return whether `port` is free: no server listens on it at any IPv4 address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@contextmanager
def one_at_a_time(lock_file: Path, service: str, announce: Announce, timeout_s: float) -> Iterator[None]:
    """Hold the lock of commands that start or stop a service; `announce` is called if it must wait.

    Raises SystemFailure if another command holds it for longer than `timeout_s`.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        announce(f"another steptime command is starting or stopping {service}; waiting for it")
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            raise SystemFailure(
                f"another steptime command is still starting or stopping {service}: "
                f"wait, or end it and try again"
            ) from None
    try:
        yield
    finally:
        lock.release()


def read_state(model: type[_State], path: Path, *, if_damaged: str) -> _State | None:
    """Read the state file at `path`; None if there is none.

    Raises SystemFailure with the remedy `if_damaged` if it is damaged.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise SystemFailure(f"the state file {path} is damaged: {if_damaged}") from None


def failed_start(service: str, what: str, log: Path, *, lines: int) -> SystemFailure:
    """Return the error for a service that failed to start: the reason `what`, and the log's last `lines`."""
    if not (log.is_file() and log.stat().st_size):
        return SystemFailure(f"{service} did not start: {what}")
    with log.open(errors="replace") as stream:
        tail = "".join(deque(stream, maxlen=lines))
    return SystemFailure(f"{service} did not start: {what}; the end of {log}:\n{tail}")
