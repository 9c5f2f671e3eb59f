"""Identify a process reliably despite reused process ids, reboots and clock changes.

Only the standard library is imported here, to keep the runners of local jobs small.
"""

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
