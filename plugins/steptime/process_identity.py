"""Which process a noted id means: ids are given anew, machines are booted, and clocks are set.

Only the standard library is imported here: the runners of local jobs must be small.
"""

from pathlib import Path


def boot_id() -> str:
    """Return the kernel's name for the time since the machine was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_tick(pid: int) -> int:
    """Return when a process was started, in clock ticks since the boot (proc(5), starttime).

    Unlike a time of the day it never changes: the boot time that psutil adds moves with the machine's clock.
    Raises ProcessLookupError if there is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    after_name = stat.rpartition(")")[2].split()  # from the third field on
    return int(after_name[19])
