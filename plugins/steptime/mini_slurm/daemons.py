"""Start the cluster's daemons one by one, and wait until each answers."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from steptime.errors import SystemFailure
from steptime.local_services import Announce, failed_start
from steptime.mini_slurm import processes
from steptime.mini_slurm.config_files import CLUSTER
from steptime.mini_slurm.layout import NODES, SlurmLayout, login_command, program, user
from steptime.waiting import poll_until

ALL = ("munged", "mariadbd", "slurmdbd", "slurmctld", *(f"slurmd-{node}" for node in NODES), "sshd")
"""Names of all daemons, each after those that it needs; sshd needs none."""

USABLE = ("idle", "mixed", "allocated", "completing")
"""States of a node on which jobs can run."""

_POLL_S = 0.05
_EXEC_S = 2.0
"""How long a starting daemon may take until its process has the daemon's name."""
_COMMAND_TIMEOUT_S = 60
_READY_TIMEOUT_S = 120
"""How long a daemon may take to be ready: the first start creates the tables of the accounting."""


def start(layout: SlurmLayout, daemon: str) -> None:
    """Start a daemon that is not running, in its own session so that it outlives its caller.

    Raises SystemFailure, with the end of its log, if it does not start.
    """
    _start(layout, daemon, _commands(layout)[daemon])


def start_nodes(layout: SlurmLayout, nodes: Iterable[str]) -> None:
    """Start the node daemons of `nodes`.

    If a node's jobs have ended with its daemon, the new daemon registers the node as rebooted, so that Slurm
    stops looking for them.
    """
    living = processes.node_processes(layout)
    for node in nodes:
        daemon = f"slurmd-{node}"
        _start(layout, daemon, [*_commands(layout)[daemon], *([] if living[node] else ["-b"])])


def _start(layout: SlurmLayout, daemon: str, command: list[str]) -> None:
    if daemon == "sshd" and os.geteuid() == 0:
        # Root's sshd insists on it, and Debian's own service would make it.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    _run_logged(layout, daemon, command)


def _run_logged(layout: SlurmLayout, name: str, command: Sequence[str]) -> None:
    """Run a command with its output in the log `name`. Raises SystemFailure if it fails."""
    with layout.log(name).open("ab") as output:
        done = subprocess.run(
            command,
            env=layout.environment,
            cwd=layout.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise _failed_start(layout, name, f"it ended with code {done.returncode}")


def wait_until_ready(layout: SlurmLayout, daemon: str) -> None:
    """Wait until a started daemon is ready. Raises SystemFailure if it fails."""
    if daemon.startswith("slurmd-"):
        wait_for_nodes(layout, [daemon.removeprefix("slurmd-")])
    else:
        _wait_for(layout, [daemon], lambda: _answers(layout, daemon))


def wait_for_nodes(layout: SlurmLayout, nodes: Sequence[str]) -> None:
    """Wait until jobs can run on all of `nodes`. Raises SystemFailure if they cannot."""

    def usable() -> bool:
        states = node_states(layout)
        alive = processes.daemons(layout)  # the controller notices a restart late
        return all(states.get(node) in USABLE and f"slurmd-{node}" in alive for node in nodes)

    _wait_for(layout, [f"slurmd-{node}" for node in nodes], usable)


def _wait_for(layout: SlurmLayout, names: Sequence[str], condition: Callable[[], bool]) -> None:
    """Wait for a condition. Raises SystemFailure if one of the named daemons ends or it takes too long."""
    seen = time.monotonic()

    def is_ready() -> bool:
        nonlocal seen
        if condition():
            return True
        ended = [name for name in names if name not in processes.daemons(layout)]
        if not ended:
            seen = time.monotonic()
        elif time.monotonic() - seen > _EXEC_S:
            raise _failed_start(layout, ended[0], "it ended")
        return False

    if not poll_until(is_ready, every_s=_POLL_S, timeout_s=_READY_TIMEOUT_S):
        raise _failed_start(layout, names[-1], f"it is not ready after {_READY_TIMEOUT_S} s")


def _failed_start(layout: SlurmLayout, daemon: str, what: str) -> SystemFailure:
    return failed_start(daemon, what, layout.log(daemon), lines=15)


def install_database(layout: SlurmLayout, announce: Announce) -> None:
    """Create MariaDB's system tables once. Its accounts log in by their Unix user, without passwords."""
    made = layout.root / "mysql"
    if made.is_dir():
        return
    announce("making the accounting's database")
    # Made aside and renamed, so that one that was interrupted is not taken for a database.
    unfinished = layout.root / "mysql.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [
        program("mariadb-install-db"),
        f"--defaults-file={layout.root}/etc/my.cnf",
        f"--datadir={unfinished}",
        f"--user={user()}",
        "--auth-root-authentication-method=socket",
        f"--auth-root-socket-user={user()}",
        "--skip-test-db",
    ]
    _run_logged(layout, "mariadb-install", command)
    unfinished.rename(made)


def add_cluster(layout: SlurmLayout) -> None:
    """Register the cluster in Slurm's accounting database, once."""
    if command(layout, "sacctmgr", "-nP", "show", "cluster", CLUSTER, "format=cluster").strip() != CLUSTER:
        command(layout, "sacctmgr", "-iQ", "add", "cluster", CLUSTER)


def command(layout: SlurmLayout, name: str, *arguments: str) -> str:
    """Run one of Slurm's commands and return its output. Raises SystemFailure if it fails."""
    try:
        done = _run(layout, name, *arguments)
    except subprocess.TimeoutExpired:
        raise SystemFailure(f"{name} did not answer within {_COMMAND_TIMEOUT_S} s.") from None
    if done.returncode != 0:
        raise SystemFailure(f"{name} ended with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def node_states(layout: SlurmLayout) -> dict[str, str]:
    """Return every node's state as sinfo writes it (`idle`, `down`, …); empty if Slurm does not answer."""
    try:
        words = command(layout, "sinfo", "-hN", "-p", "batch", "-o", "%N %T").split()
    except SystemFailure:
        return {}
    return dict(zip(words[::2], words[1::2], strict=True))


def _answers(layout: SlurmLayout, daemon: str) -> bool:
    try:
        match daemon:
            case "munged":
                return _listens(layout.root / "run/munge.sock")
            case "mariadbd":
                return _listens(layout.root / "run/mysql.sock")
            case "slurmdbd":
                return _run(layout, "sacctmgr", "-nP", "show", "cluster").returncode == 0
            case "slurmctld":
                return _run(layout, "scontrol", "ping").returncode == 0
            case "sshd":
                return _run(layout, *login_command(layout), "true").returncode == 0
    except subprocess.TimeoutExpired:
        return False
    raise ValueError(daemon)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def _run(layout: SlurmLayout, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [name, *arguments],
        env=layout.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )


def _commands(layout: SlurmLayout) -> dict[str, list[str]]:
    root = layout.root
    slurm_conf = str(layout.slurm_conf)
    return {
        "munged": [
            program("munged"),
            "--force",  # it would refuse a folder that others cannot enter, or a link's
            f"--key-file={root}/etc/munge.key",
            f"--socket={root}/run/munge.sock",
            f"--pid-file={root}/run/munged.pid",
            f"--log-file={root}/log/munged.log",
            f"--seed-file={root}/run/munged.seed",
            "--num-threads=2",
        ],
        # The only one that does not leave its caller's session by itself.
        "mariadbd": ["setsid", "--fork", program("mariadbd"), f"--defaults-file={root}/etc/my.cnf"],
        "slurmdbd": [program("slurmdbd")],
        "slurmctld": [program("slurmctld"), "-f", slurm_conf],
        **{f"slurmd-{node}": [program("slurmd"), "-N", node, "-f", slurm_conf] for node in NODES},
        "sshd": [program("sshd"), "-f", f"{root}/etc/sshd_config", "-E", f"{root}/log/sshd.log"],
    }
