"""Write the daemons' configuration, and the keys of munge and ssh, below the cluster's root."""

import secrets
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

import jinja2

from steptime.errors import SystemFailure
from steptime.files import write_whole
from steptime.mini_slurm.layout import (
    GPUS_PER_NODE,
    HOST_ALIAS,
    MARKER,
    NODES,
    SlurmLayout,
    host_key,
    login_command,
    program,
    search_path,
    user,
)

CLUSTER = "mini"
"""Name of the cluster in Slurm's accounting."""

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("steptime.mini_slurm"),
    autoescape=False,  # noqa: S701 (configuration of daemons, from values of our own)
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
_FILES = ("slurm.conf", "gres.conf", "slurmdbd.conf", "my.cnf", "sshd_config", "ssh_config")


def write_all(layout: SlurmLayout) -> None:
    """Write all configuration files and keys of the mini Slurm, readable only by their owner.

    Keys that exist are kept.
    """
    values: dict[str, Any] = {
        "cluster_name": CLUSTER,
        "root": layout.root,
        "ssh_host": layout.ssh_host,
        "ports": layout.ports,
        "slurmd_ports": f"[{layout.ports.slurmd(NODES[0])}-{layout.ports.slurmd(NODES[-1])}]",
        "nodes": f"node[1-{len(NODES)}]",
        "gpus": GPUS_PER_NODE,
        "user": user(),
        "hostname": socket.gethostname().partition(".")[0],
        "address": _address(),
        "ssh_command": shlex.join(login_command(layout)),
        "host_alias": HOST_ALIAS,
        "environment": _login_environment(layout),
    }
    for name in _FILES:
        text = _templates.get_template(f"{name}.j2").render(values)
        write_whole(layout.root / "etc" / name, text, mode=0o600)
    # Debian's own would be read otherwise, and a plugin in it that is not installed stops every job.
    if not _plugstack(layout).exists():
        write_plugstack(layout, "")
    _write_keys(layout)


def _address() -> str:
    """Return the IPv4 address that this machine's name resolves to: with NoInAddrAny, daemons listen there.

    Often 127.0.0.1; Debian's installer writes 127.0.1.1; in a container it is the container's.
    """
    name = socket.gethostname()
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    except OSError as error:
        raise SystemFailure(
            f"the name of this machine, {name}, has no IPv4 address ({error.strerror}): "
            f"add the line '127.0.1.1 {name}' to /etc/hosts."
        ) from None


def write_plugstack(layout: SlurmLayout, text: str) -> bool:
    """Write the list of SPANK plugins for job steps; return whether it has changed."""
    path = _plugstack(layout)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_whole(path, text, mode=0o600)
    return True


def _plugstack(layout: SlurmLayout) -> Path:
    return layout.root / "etc/plugstack.conf"


def _login_environment(layout: SlurmLayout) -> dict[str, str]:
    """Return the environment of a login on the cluster, which its jobs inherit.

    A variable whose value has a double quote or a backslash is left out.
    """
    given = {
        "SLURM_CONF": str(layout.slurm_conf),
        MARKER: str(layout.root),
        "PATH": search_path(),
        # Below another shell, bash does not read the user's .bashrc: some take longer than the command.
        "SHLVL": "1",
    }
    return {name: value for name, value in given.items() if '"' not in value and "\\" not in value}


def _write_keys(layout: SlurmLayout) -> None:
    munge_key = layout.root / "etc/munge.key"
    if not munge_key.is_file():
        write_whole(munge_key, secrets.token_bytes(1024), mode=0o400)
    ssh = layout.root / "ssh"
    for name in ("host", "id"):
        # ssh-keygen asks before it overwrites; a key of which one half was lost is made anew.
        if not ((ssh / name).is_file() and (ssh / f"{name}.pub").is_file()):
            (ssh / name).unlink(missing_ok=True)
            subprocess.run(
                [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "steptime", "-f", ssh / name],
                check=True,
                stdin=subprocess.DEVNULL,
                env=layout.environment,
            )
    write_whole(ssh / "authorized_keys", (ssh / "id.pub").read_bytes(), mode=0o600)
    write_whole(ssh / "known_hosts", f"[{layout.ssh_host}]:{layout.ports.sshd} {host_key(layout)}\n")
