"""Paths, ports and login of a mini Slurm, and the Debian packages that it needs."""

import hashlib
import os
import pwd
import re
import shutil
import socket
import sys
import tempfile
from functools import cached_property
from pathlib import Path

from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure, UserError, one_line
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.local_services import LOOPBACK, is_free, read_state

NODES = tuple(f"node{number}" for number in range(1, 9))
GPUS_PER_NODE = 8
MARKER = "STEPTIME_SLURM"
"""Environment variable of all processes of the cluster and its jobs; its value is the cluster's root."""

CONNECTION = "mini_slurm"
"""Name of the connection in `config/clusters/mini-slurm.yaml`."""
HOST_ALIAS = "mini-slurm"

_LONGEST_ROOT = 60
"""Most characters of the root: a Unix socket's path may have 107, and slurmd adds up to 40 to the root."""
_PLAIN = re.compile(r"[A-Za-z0-9._/-]+")
"""Text that needs no quotes in any of the daemons' files."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_FIRST_PORT, _PORTS_EACH, _BLOCKS = 10_240, 16, 610
"""Blocks of ports for clusters: the first port, the ports of each, and how many blocks there are.

They end below the ports on which the ranks of jobs meet (20000 and up).
"""
_JOBS_EACH = 19
"""Difference between the first job ids of neighbouring blocks; all first ids are below 12000."""
_FIRST_SLURMD = 8
PACKAGES = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
"""The Debian package of each program."""


class Ports(Frozen):
    """The ports of the mini Slurm's daemons, a block of neighbouring numbers."""

    first: int

    @property
    def slurmctld(self) -> int:
        """The port of Slurm's controller."""
        return self.first

    @property
    def slurmdbd(self) -> int:
        """The port of Slurm's accounting daemon."""
        return self.first + 1

    @property
    def sshd(self) -> int:
        """The port for logins by ssh."""
        return self.first + 2

    def slurmd(self, node: str) -> int:
        """Return the port of a node's daemon."""
        return self.first + _FIRST_SLURMD + NODES.index(node)

    @property
    def first_job_id(self) -> int:
        """The first job's id. Mini Slurms on one host use different ids: a job's ports follow from its id."""
        return 1 + (self.first - _FIRST_PORT) // _PORTS_EACH * _JOBS_EACH % (_BLOCKS * _JOBS_EACH)

    def by_daemon(self) -> dict[str, int]:
        """Return the port of each daemon that has one, by the daemon's name."""
        return {
            "slurmctld": self.slurmctld,
            "slurmdbd": self.slurmdbd,
            "sshd": self.sshd,
            **{f"slurmd-{node}": self.slurmd(node) for node in NODES},
        }


class SlurmLayout(Frozen):
    """A mini Slurm's folder and ports, as `cluster.json` in the folder keeps them."""

    root: Path
    """The folder as the daemons name it: `<home>/slurm`, or a link to it if Slurm cannot use its path."""
    ports: Ports
    ssh_host: str = LOOPBACK
    """The address that sshd listens on; the other daemons listen on the address of the host name."""

    @property
    def slurm_conf(self) -> Path:
        """The path of slurm.conf, as in SLURM_CONF."""
        return self.root / "etc/slurm.conf"

    def log(self, daemon: str) -> Path:
        """Return the path of a daemon's log; `daemon` is a name such as `slurmctld` or `slurmd-node3`."""
        return self.root / "log" / f"{daemon}.log"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of daemons and Slurm commands, without the caller's secrets."""
        return {
            "PATH": search_path(),
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.slurm_conf),
            MARKER: str(self.root),
            # The library that slurmdbd reaches MariaDB with takes the socket in no other way.
            "MYSQL_UNIX_PORT": str(self.root / "run/mysql.sock"),
        }


def folder(home: Path) -> Path:
    """Return the mini Slurm's folder in the state folder `home`."""
    return home / "slurm"


def recorded(home: Path) -> SlurmLayout | None:
    """Read a mini Slurm's layout from `cluster.json`; None if there is none.

    Raises SystemFailure if the file is damaged.
    """
    path = folder(home) / "cluster.json"
    remedy = f"end the cluster's daemons by hand, then delete {path.parent}"
    return read_state(SlurmLayout, path, if_damaged=remedy)


def record(home: Path, layout: SlurmLayout) -> None:
    """Write a mini Slurm's layout to `cluster.json`."""
    write_whole(folder(home) / "cluster.json", layout.model_dump_json(indent=2))


def choose(home: Path, ssh_host: str = LOOPBACK) -> SlurmLayout:
    """Choose a root folder and free ports; the same `home` gets the same ports if they are free.

    The root may be a new link, see `_root`. Raises SystemFailure if no block of ports is free.
    """
    digest = int.from_bytes(hashlib.sha256(str(home).encode()).digest()[:4])
    for attempt in range(_BLOCKS):
        ports = Ports(first=_FIRST_PORT + (digest + attempt) % _BLOCKS * _PORTS_EACH)
        if all(is_free(port) for port in ports.by_daemon().values()):
            return SlurmLayout(root=_root(home), ports=ports, ssh_host=ssh_host)
    raise SystemFailure(
        f"no {_PORTS_EACH} free ports in a row were found from {_FIRST_PORT} up: end "
        f"programs that listen there."
    )


def check_ssh_host(host: str) -> None:
    """Raise UserError unless the mini Slurm's sshd can listen on `host`, a name or IPv4 address."""
    try:
        if not _HOST.fullmatch(host):
            raise OSError(
                "it is neither a host name nor an IPv4 address: write for instance localhost or 127.0.0.1"
            )
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError as error:
        raise UserError(
            f"'{one_line(host)}' is not an address of this machine for sshd to listen on: "
            f"{error.strerror or error}."
        ) from None


def prepare(home: Path) -> None:
    """Create the mini Slurm's folders, with links to /dev/null in place of GPUs."""
    of_nodes = (f"{name}/{node}" for name in ("spool", "tmp") for node in NODES)
    for name in ("etc", "log", "run", "state", "ssh", "dev", *of_nodes):
        (folder(home) / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(GPUS_PER_NODE):
        device = folder(home) / f"dev/nvidia{number}"
        if not device.is_symlink():
            device.symlink_to("/dev/null")


def leads_home(home: Path, layout: SlurmLayout) -> bool:
    """Return whether `layout.root` still is the mini Slurm's folder in `home`, or a symbolic link to it.

    The link stands in for a folder whose path Slurm cannot use, such as a long one. `steptime slurm down`
    removes the link, and so may a cleanup of /tmp. A link counts only if the folder that contains it belongs
    to this user.
    """
    if layout.root == folder(home):
        return True
    leads = layout.root.is_symlink() and layout.root.readlink() == folder(home)
    return leads and layout.root.parent.lstat().st_uid == os.getuid()


def remove_link(home: Path, layout: SlurmLayout) -> None:
    """Remove the symbolic link that gives the mini Slurm's folder a short path, if there is one."""
    if layout.root != folder(home) and leads_home(home, layout):
        layout.root.unlink()
        layout.root.parent.rmdir()


def user() -> str:
    """Return the name of the user who runs the daemons. Raises SystemFailure if the user id has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise SystemFailure(
            f"the user id {os.getuid()} has no name, and Slurm needs one: add it to /etc/passwd."
        ) from None


def _root(home: Path) -> Path:
    """Return the folder itself, or a new short link to it in a new folder that only this user can change."""
    real = folder(home)
    if len(str(real)) <= _LONGEST_ROOT and _PLAIN.fullmatch(str(real)):
        return real
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = 0 < len(runtime) <= _LONGEST_ROOT - 30 and os.access(runtime, os.W_OK)
    link = Path(tempfile.mkdtemp(prefix="steptime-", dir=runtime if usable else "/tmp")) / "slurm"  # noqa: S108
    link.symlink_to(real)
    return link


def program(name: str) -> str:
    """Return the path of a program that the mini Slurm needs, from PATH or a folder such as /usr/sbin.

    Raises SystemFailure, with the command that installs its package, if it is missing.
    """
    path = _find_program(name)
    if path is None:
        raise _missing_packages([name])
    return path


def require_packages() -> None:
    """Raise SystemFailure, with the command that installs them, if packages that Slurm needs are missing."""
    missing = [name for name in PACKAGES if _find_program(name) is None]
    if missing:
        raise _missing_packages(missing)


def search_path() -> str:
    """Return the caller's PATH with the folders of the daemons, such as slurmctld.

    The folder of steptime's own Python comes first, as on the cluster `local`: it can make environments,
    which Debian's Python cannot everywhere.
    """
    own, called_with = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return os.pathsep.join((own, called_with, "/usr/local/sbin", "/usr/sbin", "/sbin"))


def _find_program(name: str) -> str | None:
    return shutil.which(name, path=search_path())


def _missing_packages(programs: list[str]) -> SystemFailure:
    packages = sorted({PACKAGES[name] for name in programs})
    sudo = "" if os.geteuid() == 0 else "sudo "
    return SystemFailure(
        f"the mini Slurm needs Debian packages that are not installed: {', '.join(packages)}. "
        f"Install them: {sudo}apt-get install --no-install-recommends {' '.join(packages)}"
    )


def login_command(layout: SlurmLayout) -> tuple[str, ...]:
    """Return the ssh command that logs in to the mini Slurm; append a command to run it there."""
    return ("ssh", "-F", f"{layout.root}/etc/ssh_config", HOST_ALIAS)


def host_key(layout: SlurmLayout) -> str:
    """Return the public host key of the cluster's sshd: `ssh-ed25519 AAAA…`."""
    return " ".join((layout.root / "ssh/host.pub").read_text().split()[:2])


def login_connection(layout: SlurmLayout) -> Connection:
    """Return the login to the mini Slurm as a connection, with the extra fields of Airflow's SSH provider."""
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
