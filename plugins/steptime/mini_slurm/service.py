"""Start, stop and look at the mini Slurm of a state folder (`steptime slurm up`, `down`, `status`)."""

import shlex
import shutil
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import Field

from steptime.errors import SystemFailure
from steptime.frozen import Frozen
from steptime.local_services import LOOPBACK, Announce, is_free, one_at_a_time
from steptime.mini_slurm import config_files, daemons, processes
from steptime.mini_slurm import layout as layouts
from steptime.mini_slurm.layout import NODES, SlurmLayout, login_command
from steptime.waiting import poll_until

_LOCK_TIMEOUT_S = 120
_JOBS_END_S = 60
"""How long cancelled jobs may take to end; Slurm itself kills them after its KillWait of 5 s."""
_STOP_GRACE_S = 10


class SlurmStatus(Frozen):
    """What `steptime slurm status` reports."""

    running: bool
    healthy: bool
    daemons: dict[str, bool] = Field(default_factory=dict)
    """Whether each daemon is alive, by name."""
    nodes: dict[str, int] = Field(default_factory=dict)
    """Number of nodes by sinfo's state."""
    jobs: dict[str, int] = Field(default_factory=dict)
    """Number of jobs in the queue by squeue's state."""
    ports: dict[str, int] = Field(default_factory=dict)
    ssh: str | None = None
    """The command that logs in to the cluster."""
    slurm_conf: str | None = None
    problem: str | None = None


def up(
    home: Path, announce: Announce, *, ssh_host: str | None = None, plugstack: str | None = None
) -> tuple[SlurmLayout, bool]:
    """Start those daemons of the mini Slurm in `home` that are not running, and wait for all nodes.

    Returns its layout, and whether all daemons were running already. `ssh_host` is the address that sshd
    listens on, `plugstack` the text of Slurm's plugstack.conf with SPANK plugins. None keeps what the last
    start used; the first start uses 127.0.0.1 and an empty plugstack.conf. `announce` gets a sentence for
    each phase. Raises SystemFailure if a package is missing or a daemon does not start, and UserError if
    `ssh_host` is not an address of this machine.
    """
    layouts.require_packages()
    if ssh_host is not None:
        layouts.check_ssh_host(ssh_host)
    with _lock(home, announce):
        layouts.prepare(home)
        layout = _layout(home, ssh_host, announce)
        config_files.write_all(layout)
        if plugstack is not None and config_files.write_plugstack(layout, plugstack):
            _stop_nodes(layout)  # plugins are read when a node's daemon starts; jobs go on without it
        alive = processes.daemons(layout)
        if len(alive) == len(daemons.ALL):
            announce("Slurm is running already; looking at its health")
        _start_missing(layout, set(alive), announce)
        return layout, len(alive) == len(daemons.ALL)


def down(home: Path, announce: Announce, *, purge: bool = False) -> bool:
    """Stop the cluster with its jobs and logins, and check that nothing is left; return whether anything ran.

    The accounting and keys are kept for the next `up`; with `purge` the folder is deleted. Raises
    SystemFailure if a process cannot be ended.
    """
    if not layouts.folder(home).exists():
        return False
    with _lock(home, announce):
        layout = layouts.recorded(home)
        was_running = layout is not None and _stop(layout, announce)
        if layout is not None:
            layouts.remove_link(home, layout)
        if purge:
            announce("deleting its folder")
            shutil.rmtree(layouts.folder(home))
        return was_running


def status(home: Path) -> SlurmStatus:
    """Return the state of the mini Slurm's daemons, nodes and jobs."""
    layout = layouts.recorded(home)
    alive = processes.daemons(layout) if layout is not None else {}
    if layout is None or not alive:
        return SlurmStatus(
            running=False, healthy=False, problem="Slurm is not running: start it with 'steptime slurm up'"
        )
    lives = {name: name in alive for name in daemons.ALL}
    dead = [name for name, lives_on in lives.items() if not lives_on]
    problem = f"{', '.join(dead)} not running: 'steptime slurm up' starts what is missing" if dead else None
    nodes: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    if not {"munged", "slurmctld"} & set(dead):  # without them each question takes 10 s to fail
        nodes = Counter(daemons.node_states(layout).values())
        try:
            jobs = Counter(daemons.command(layout, "squeue", "-h", "-o", "%T").split())
        except SystemFailure as failure:
            problem = problem or str(failure)
        usable = sum(count for state, count in nodes.items() if state in daemons.USABLE)
        if problem is None and usable < len(NODES):
            problem = f"{len(NODES) - usable} of {len(NODES)} nodes cannot be used"
    return SlurmStatus(
        running=True,
        healthy=problem is None,
        daemons=lives,
        nodes=dict(nodes),
        jobs=dict(jobs),
        ports=layout.ports.by_daemon(),
        ssh=shlex.join(login_command(layout)),
        slurm_conf=str(layout.slurm_conf),
        problem=problem,
    )


def running(home: Path) -> SlurmLayout:
    """Return the layout of the mini Slurm in `home`, even if it is stopped.

    Raises SystemFailure if there is none.
    """
    layout = layouts.recorded(home)
    if layout is None:
        raise SystemFailure("there is no mini Slurm here: start it with 'steptime slurm up'")
    return layout


def _lock(home: Path, announce: Announce) -> AbstractContextManager[None]:
    return one_at_a_time(home / "slurm.lock", "Slurm", announce, _LOCK_TIMEOUT_S)


def _layout(home: Path, ssh_host: str | None, announce: Announce) -> SlurmLayout:
    """Return the recorded layout if its ports and root are usable; else stop the cluster and choose another.

    Records the layout, and ends sshd if it listens on another address than `ssh_host`.
    """
    layout = layouts.recorded(home)
    if layout is not None:
        ssh_host = ssh_host or layout.ssh_host
        alive = processes.daemons(layout)
        taken = [
            port for name, port in layout.ports.by_daemon().items() if name not in alive and not is_free(port)
        ]
        if not taken and layouts.leads_home(home, layout):
            if ssh_host != layout.ssh_host:
                processes.end([alive["sshd"]] if "sshd" in alive else [], grace_s=_STOP_GRACE_S)
                layout = layout.model_copy(update={"ssh_host": ssh_host})
                layouts.record(home, layout)
            return layout
        if taken:
            announce(f"port {taken[0]} is taken by another program; choosing others")
        _stop(layout, announce)
        layouts.remove_link(home, layout)
    layout = layouts.choose(home, ssh_host or LOOPBACK)
    layouts.record(home, layout)
    return layout


def _start_missing(layout: SlurmLayout, alive: set[str], announce: Announce) -> None:
    def bring_up(daemon: str, phase: str) -> None:
        if daemon not in alive:
            announce(phase)
            daemons.start(layout, daemon)
        daemons.wait_until_ready(layout, daemon)

    bring_up("munged", "starting munge")
    bring_up("sshd", "starting sshd")
    daemons.install_database(layout, announce)
    bring_up("mariadbd", "starting MariaDB")
    bring_up("slurmdbd", "starting the accounting daemon")
    daemons.add_cluster(layout)
    bring_up("slurmctld", "starting the controller")
    missing = [node for node in NODES if f"slurmd-{node}" not in alive]
    if missing:
        announce(f"starting {len(missing)} nodes")
    daemons.start_nodes(layout, missing)
    daemons.wait_for_nodes(layout, NODES)


def _stop_nodes(layout: SlurmLayout) -> None:
    alive = processes.daemons(layout)
    nodes = [f"slurmd-{node}" for node in NODES]
    processes.end([alive[name] for name in nodes if name in alive], grace_s=_STOP_GRACE_S)


def _stop(layout: SlurmLayout, announce: Announce) -> bool:
    alive = processes.daemons(layout)
    left = processes.everything(layout)
    if not alive and not left:
        return False
    if "slurmctld" in alive:
        cancel_jobs(layout, announce)
    announce("stopping Slurm")
    # The reverse of the start: what a daemon still has for the one before it arrives.
    nodes = [f"slurmd-{node}" for node in NODES]
    for group in (["sshd"], nodes, ["slurmctld"], ["slurmdbd"], ["mariadbd"], ["munged"]):
        processes.end([alive[name] for name in group if name in alive], grace_s=_STOP_GRACE_S)
    left = processes.end(processes.everything(layout), grace_s=2)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise SystemFailure(f"these processes of the mini Slurm cannot be ended: {pids}")
    return True


def cancel_jobs(layout: SlurmLayout, announce: Announce) -> None:
    """Cancel all jobs and wait until the queue is empty, for a limited time.

    A failure is announced, not raised.
    """
    try:
        queue = ("squeue", "-h", "-o", "%A")
        jobs = set(daemons.command(layout, *queue).split())
        if not jobs:
            return
        announce(f"cancelling {len(jobs)} jobs")
        try:
            daemons.command(layout, "scancel", *sorted(jobs))
        except SystemFailure as failure:  # of one that has ended meanwhile, too: the others have got it
            announce(str(failure))
        poll_until(lambda: not daemons.command(layout, *queue), every_s=0.1, timeout_s=_JOBS_END_S)
    except SystemFailure as failure:
        announce(f"the jobs cannot be cancelled: {failure}")
