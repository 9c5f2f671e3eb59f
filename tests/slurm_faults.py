"""Faults of the mini Slurm and their repair: daemons, logins and nodes that end."""

from steptime.errors import SystemFailure
from steptime.mini_slurm import daemons, processes, service


def start_daemon(home, daemon):
    """Start one daemon that was stopped, as `slurmctld` or `slurmd-node3`, and wait until it works."""
    layout = service.running(home)
    if daemon not in processes.daemons(layout):
        if daemon.startswith("slurmd-"):
            daemons.start_nodes(layout, [daemon.removeprefix("slurmd-")])
        else:
            daemons.start(layout, daemon)
    daemons.wait_until_ready(layout, daemon)


def stop_daemon(home, daemon, *, kill=True):
    """End one daemon, by SIGKILL as a crash would or by SIGTERM; what it had started goes on."""
    process = processes.daemons(service.running(home)).get(daemon)
    if process is not None:
        left = processes.kill([process]) if kill else processes.end([process], grace_s=10)
        if left:
            raise SystemFailure(f"{daemon} (process {process.pid}) cannot be ended")


def kill_node(home, node):
    """Kill a node's daemon and all processes of its jobs at once, as a power cut does."""
    left = processes.kill(processes.node_processes(service.running(home))[node])
    if left:
        raise SystemFailure(f"these processes of {node} cannot be ended: {[process.pid for process in left]}")
