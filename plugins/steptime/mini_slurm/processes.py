"""Find the processes of a mini Slurm: its daemons, their descendants, its jobs and logins.

Daemons are recognized by their command lines, slurmdbd and jobs by environment variables, logins by sshd's
port. Files with process ids are not used: after a crash or a reboot the ids may belong to other processes.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from steptime.mini_slurm.layout import MARKER, NODES, SlurmLayout
from steptime.waiting import poll_until

DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sshd")
_KILL_S = 5


def daemons(layout: SlurmLayout) -> dict[str, psutil.Process]:
    """Return the running daemons of a mini Slurm by name: `slurmctld`, `slurmd-node3`, …"""
    found: dict[str, psutil.Process] = {}
    for process in psutil.process_iter(["name", "create_time"]):
        if process.info["name"] not in DAEMONS:
            continue
        with suppress(psutil.Error):
            name = _daemon(process, layout)
            # A daemon about to start a child looks like two: the child is the younger.
            if name and (name not in found or process.create_time() < found[name].create_time()):
                found[name] = process
    return found


def everything(layout: SlurmLayout) -> list[psutil.Process]:
    """Return every process of a mini Slurm, with jobs and logins, but never the caller or its ancestors."""
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = {process.pid: process for process in (*daemons(layout).values(), *logins(layout))}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in found and _is_marked(process, layout):
                found[process.pid] = process
    for process in list(found.values()):
        with suppress(psutil.Error):
            found.update((child.pid, child) for child in process.children(recursive=True))
    return [process for pid, process in found.items() if pid not in spared and _lives(process)]


def logins(layout: SlurmLayout) -> list[psutil.Process]:
    """Return the processes of ssh logins: they outlive sshd and are recognized by its port."""
    found = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            # From OpenSSH 9.8 on it is another program, sshd-session.
            if process.info["name"].startswith("sshd") and any(
                one.status == psutil.CONN_ESTABLISHED and one.laddr.port == layout.ports.sshd
                for one in process.net_connections("tcp")
            ):
                found.append(process)
    return found


def node_processes(layout: SlurmLayout) -> dict[str, list[psutil.Process]]:
    """Return each node's processes: its daemon and its jobs."""
    found: dict[str, list[psutil.Process]] = {node: [] for node in NODES}
    for process in everything(layout):
        node = _node(process, layout)
        if node in found:
            found[node].append(process)
    return found


def end(processes: Iterable[psutil.Process], *, grace_s: float) -> list[psutil.Process]:
    """Send SIGTERM, and SIGKILL after `grace_s` seconds; return the processes that are still alive."""
    asked = list(processes)
    for process in asked:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    return kill(_wait(asked, grace_s))


def kill(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Send SIGKILL to all processes at once; return those that are still alive."""
    asked = list(processes)
    for process in asked:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in asked:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return _wait(asked, _KILL_S)


def _wait(asked: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended, or the timeout has passed; return those that are still alive."""
    # psutil's own wait also waits for zombies, which are of another parent.
    poll_until(lambda: not any(map(_lives, asked)), every_s=0.02, timeout_s=timeout_s)
    return [process for process in asked if _lives(process)]


def _daemon(process: psutil.Process, layout: SlurmLayout) -> str | None:
    """Return which daemon of this mini Slurm a process is, such as `slurmd-node3`; None if it is not one."""
    name = process.name()
    command = process.cmdline()
    given = {
        "munged": f"--socket={layout.root}/run/munge.sock",
        "mariadbd": f"--defaults-file={layout.root}/etc/my.cnf",
        "slurmctld": str(layout.slurm_conf),
        "slurmd": str(layout.slurm_conf),
    }
    if name == "sshd":  # writes a title over its arguments
        title = " ".join(command)
        return name if f"{layout.root}/etc/sshd_config" in title and "[listener]" in title else None
    if name == "slurmdbd":  # takes its file from the environment only
        return name if _is_marked(process, layout) else None
    if given.get(name) not in command:
        return None
    return f"slurmd-{command[command.index('-N') + 1]}" if name == "slurmd" else name


def _is_marked(process: psutil.Process, layout: SlurmLayout) -> bool:
    given = _environment(process)
    if given.get(MARKER) == str(layout.root):
        return True
    # A job submitted with --export=NONE has what Slurm itself gives it.
    return given.get("SLURM_CONF") == str(layout.slurm_conf) and "SLURMD_NODENAME" in given


def _environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it cannot be read.

    psutil's `environ` cannot be used: it stops at the first gap, which slurmstepd makes with its process
    title.
    """
    try:
        text = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.split("\0"))
    return {name: value for name, _, value in pairs}


def _node(process: psutil.Process, layout: SlurmLayout) -> str | None:
    """Return the node that a process or an ancestor of it belongs to; None if there is none."""
    for one in _line(process):
        with suppress(psutil.Error):
            if one.name() == "slurmd":
                daemon = _daemon(one, layout)
                return daemon.removeprefix("slurmd-") if daemon else None
            if one.name() == "slurmstepd":  # known by its socket, in the folder of its node
                return next((name for name in NODES if _has_socket(one, layout.root / "spool" / name)), None)
            if node := _environment(one).get("SLURMD_NODENAME"):
                return node
    return None


def _has_socket(process: psutil.Process, folder: Path) -> bool:
    return any(str(one.laddr).startswith(f"{folder}/") for one in process.net_connections("unix"))


def _line(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    with suppress(psutil.Error):
        yield from process.parents()


def _lives(process: psutil.Process) -> bool:
    """Return whether a process is alive; a zombie is not, once its last thread has ended."""
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        return process.is_running() and not ended
    except psutil.NoSuchProcess:
        return False
