"""How to log in to the cluster: for people, for programs, and as a connection that Airflow can keep."""

from steptime.clusters.connections import Connection
from steptime.mini_slurm.layout import SlurmLayout, user

CONNECTION = "mini_slurm"
"""The name of the connection that `config/clusters/mini-slurm.yaml` asks for."""
HOST_ALIAS = "mini-slurm"


def command(layout: SlurmLayout) -> tuple[str, ...]:
    """Return the ssh command that logs in; what is to run there is appended to it."""
    return ("ssh", "-F", f"{layout.root}/etc/ssh_config", HOST_ALIAS)


def host_key(layout: SlurmLayout) -> str:
    """Return the public key that the cluster's sshd proves itself with: `ssh-ed25519 AAAA…`."""
    return " ".join((layout.root / "ssh/host.pub").read_text().split()[:2])


def connection(layout: SlurmLayout) -> Connection:
    """Return the login, its extra fields named as Airflow's SSH provider names them."""
    return Connection(
        name=CONNECTION,
        kind="ssh",
        host=layout.ssh_host,
        port=layout.ports.sshd,
        login=user(),
        extra={
            "key_file": f"{layout.root}/ssh/id",
            "host_key": host_key(layout),
            "no_host_key_check": "false",
        },
    )
