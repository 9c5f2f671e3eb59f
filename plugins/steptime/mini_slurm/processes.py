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
    by_name: dict[str, psutil.Process] = {}
    for process in psutil.process_iter(["name", "create_time"]):
        if process.info["name"] not in DAEMONS:
            continue
        with suppress(psutil.Error):
            name = _daemon(process, layout)
            # A daemon about to start a child looks like two: the child is the younger.
            if name and (name not in by_name or process.create_time() < by_name[name].create_time()):
                by_name[name] = process
    return by_name


def everything(layout: SlurmLayout) -> list[psutil.Process]:
    """Return every process of a mini Slurm, with jobs and logins, but never the caller or its ancestors."""
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    by_pid = {process.pid: process for process in (*daemons(layout).values(), *logins(layout))}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in by_pid and _is_marked(process, layout):
                by_pid[process.pid] = process
    for process in list(by_pid.values()):
        with suppress(psutil.Error):
            by_pid.update((child.pid, child) for child in process.children(recursive=True))
    return [process for pid, process in by_pid.items() if pid not in spared and _lives(process)]


def logins(layout: SlurmLayout) -> list[psutil.Process]:
    """Return the processes of ssh logins: they outlive sshd and are recognized by its port."""
    processes = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            # From OpenSSH 9.8 on it is another program, sshd-session.
            if process.info["name"].startswith("sshd") and any(
                connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == layout.ports.sshd
                for connection in process.net_connections("tcp")
            ):
                processes.append(process)
    return processes


def node_processes(layout: SlurmLayout) -> dict[str, list[psutil.Process]]:
    """Return each node's processes: its daemon and its jobs."""
    by_node: dict[str, list[psutil.Process]] = {node: [] for node in NODES}
    for process in everything(layout):
        node = _node(process, layout)
        if node in by_node:
            by_node[node].append(process)
    return by_node


def end(processes: Iterable[psutil.Process], *, grace_s: float) -> list[psutil.Process]:
    """Send SIGTERM, and SIGKILL after `grace_s` seconds; return the processes that are still alive."""
    listed = list(processes)
    for process in listed:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    return kill(_wait(listed, grace_s))


def kill(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Send SIGKILL to all processes at once; return those that are still alive."""
    listed = list(processes)
    for process in listed:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in listed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return _wait(listed, _KILL_S)


def _wait(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended, or the timeout has passed; return those that are still alive."""
    # psutil's own wait also waits for zombies, which are of another parent.
    poll_until(lambda: not any(map(_lives, processes)), every_s=0.02, timeout_s=timeout_s)
    return [process for process in processes if _lives(process)]


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
    for ancestor in _line(process):
        with suppress(psutil.Error):
            if ancestor.name() == "slurmd":
                daemon = _daemon(ancestor, layout)
                return daemon.removeprefix("slurmd-") if daemon else None
            if ancestor.name() == "slurmstepd":  # known by its socket, in the folder of its node
                return next(
                    (name for name in NODES if _has_socket(ancestor, layout.root / "spool" / name)), None
                )
            if node := _environment(ancestor).get("SLURMD_NODENAME"):
                return node
    return None


def _has_socket(process: psutil.Process, folder: Path) -> bool:
    return any(
        str(connection.laddr).startswith(f"{folder}/") for connection in process.net_connections("unix")
    )


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
