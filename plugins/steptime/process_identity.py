"""Identify a process reliably despite reused process ids, reboots and clock changes; name its user.

Only the standard library is imported here, to keep the runners of local jobs small.
"""

import getpass
import os
from pathlib import Path


def boot_id() -> str:
    """Return the kernel's id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_tick(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot (proc(5), starttime).

    It does not change when the machine's clock is set, unlike the time that psutil returns.
    Raises ProcessLookupError if there is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    after_name = stat.rpartition(")")[2].split()  # from the third field on
    return int(after_name[19])


def user_name() -> str:
    """Return the name of this process's user; `uid 1234` in a container that has no name for the user id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return f"uid {os.getuid()}"
