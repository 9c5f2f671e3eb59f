"""What answers take of this machine: time of its processor, with that of a PostgreSQL on it, and memory."""

import time
from pathlib import Path

import psutil

from steptime.results.database import read_connection


class Processor:
    """Counts for a store; with `server` the process that answers from it, in place of this one."""

    def __init__(self, url: str, server: psutil.Process | None = None) -> None:
        self._server = server
        self._database = _postmaster(url)

    def seconds(self) -> float:
        """So far; a PostgreSQL elsewhere, or of another user who may not be looked at, is not in it."""
        own = time.process_time() if self._server is None else sum(map(_used, family(self._server)))
        if self._database is None:
            return own
        ended = self._database.cpu_times()
        of_ended = ended.children_user + ended.children_system
        return own + _used(self._database) + of_ended + sum(map(_used, self._database.children()))


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process with its children."""
    return [process, *process.children()]


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # ended since it was listed
        return 0.0
    return float(times.user + times.system)


def _postmaster(url: str) -> psutil.Process | None:
    with read_connection(url) as connection:
        if connection.dialect.name != "postgresql":
            return None
        number = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    try:
        backend = psutil.Process(number)
        return backend.parent() if "postgres" in backend.name() else None
    except psutil.Error:
        return None


def highest_mb(process_id: int) -> float:
    """The most memory that a process has had, in MB."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
