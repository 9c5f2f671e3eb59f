"""Hosts of a site that is reached over ssh: real sshds, each with its own key, and a certificate authority.

Everything listens on loopback; hosts differ by their ports and by what `printenv HOST` says there.
"""

import getpass
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from steptime.clusters.connections import Connection
from steptime.clusters.slurm.ssh import LoginNode

from .login_node import Sshd

SECRET = "s3cret"
"""The password of every connection: no host accepts it, and no message may contain it."""


@dataclass
class Keys:
    """A key pair made by ssh-keygen."""

    path: Path

    @property
    def public(self):
        """Return the public key, without its comment."""
        return " ".join(Path(f"{self.path}.pub").read_text().split()[:2])

    @property
    def certificate(self):
        """Return the path of the key's certificate, which exists once the key is signed."""
        return Path(f"{self.path}-cert.pub")


class Host(Sshd):
    """A host with its own key, which admits the keys in `authorized` and those signed by the authority."""

    def __init__(self, site, name, *options, authorized=""):
        self.name = name
        self.keys = site.keys(f"{name}-host")
        folder = site.folder / name
        folder.mkdir()
        self._authorized_keys = folder / "authorized_keys"
        self.authorize(authorized)
        usual = [
            f"HostKey {self.keys.path}",
            f"AuthorizedKeysFile {self._authorized_keys}",
            f"TrustedUserCAKeys {site.authority.path}.pub",
            f"AllowUsers {getpass.getuser()}",
            *("AuthenticationMethods publickey", "UsePAM no", "StrictModes no", "UseDNS no"),
            f"SetEnv HOST={name} SHLVL=1",  # below another shell, bash reads no .bashrc
            "Subsystem sftp internal-sftp",
        ]
        set_here = tuple(option.split()[0] for option in options)
        super().__init__(
            folder, [*options, *(line for line in usual if not line.startswith(set_here or "-"))]
        )

    def authorize(self, *keys):
        """Admit these public keys and no others."""
        self._authorized_keys.write_text("".join(f"{key}\n" for key in keys))


class Site:
    """A maker of hosts, keys and certificates in a folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.authority = self.keys("authority")
        self.hosts = []

    def keys(self, name):
        """Make a new key pair."""
        path = self.folder / name
        _keygen("-t", "ed25519", "-N", "", "-C", "test", "-f", str(path))
        return Keys(path)

    def sign(self, keys, *, principal, valid="-1d:+1d", host=False):
        """Let the authority sign a key of a user or a host; return the certificate beside the key."""
        kind = ["-h"] if host else []
        public = f"{keys.path}.pub"
        _keygen("-s", str(self.authority.path), *kind, "-I", "test", "-n", principal, "-V", valid, public)
        return keys.certificate

    def host(self, name, *options, authorized=""):
        """Start a host; options are lines of its sshd_config, in place of the usual ones."""
        self.hosts.append(Host(self, name, *options, authorized=authorized))
        return self.hosts[-1]

    def stop(self):
        for host in self.hosts:
            host.stop()


def connection(host, keys=None, **extra):
    """Return the login to a host, with its key known; `extra` changes fields, and None removes one."""
    fields = {"host_key": host.keys.public, "key_file": str(keys.path) if keys else None, **extra}
    return Connection(
        name=host.name,
        kind="ssh",
        host="127.0.0.1",
        port=host.port,
        login=getpass.getuser(),
        password=SECRET,
        extra={name: value for name, value in fields.items() if value is not None},
    )


def known(connections):
    """Return a lookup of connections by name, as Airflow has it."""

    async def give(name):
        return connections[name]

    return give


def _keygen(*arguments):
    program = shutil.which("ssh-keygen")
    assert program
    subprocess.run([program, "-q", *arguments], check=True, stdin=subprocess.DEVNULL)


async def where(node):
    """Return the name of the host on which commands run."""
    return (await node.run(["printenv", "HOST"], timeout_s=60)).stdout.strip()


@dataclass(frozen=True)
class Way:
    """Two jump hosts and a login node behind them, each of which admits a key of its own."""

    site: Site
    outer: Host
    inner: Host
    node: Host
    keys: dict[str, Keys]

    def connections(self, **changes):
        """Return the login of each host by name, with changes to extras; the node's uses both jump hosts."""
        fields = {"node": {"jump_connections": ["outer", "inner"]}, **changes}
        return {
            host.name: connection(host, self.keys[host.name], **fields.get(host.name, {}))
            for host in (self.outer, self.inner, self.node)
        }


@pytest.fixture(scope="module")
def way_of_module(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("way"))
    keys = {name: site.keys(f"{name}-user") for name in ("outer", "inner", "node")}
    hosts = {name: site.host(name, authorized=pair.public) for name, pair in keys.items()}
    yield Way(site, hosts["outer"], hosts["inner"], hosts["node"], keys)
    site.stop()


@pytest.fixture
def way(way_of_module):
    """Return the hosts in their first state, whatever an earlier test has stopped, hung or authorized."""
    for host in (way_of_module.outer, way_of_module.inner, way_of_module.node):
        host.stop()
        host.authorize(way_of_module.keys[host.name].public)
        host.start()
    return way_of_module


@pytest.fixture
def site(tmp_path):
    """Yield a site of this test's own."""
    site = Site(tmp_path / "site")
    yield site
    site.stop()


@pytest.fixture
async def log_in():
    """Yield a function that opens a connection by its name; everything it opened is closed at the end."""
    nodes = []

    def open_one(connections, name="node", *login_nodes):
        nodes.append(LoginNode(name, known(connections), login_nodes))
        return nodes[-1]

    yield open_one
    for node in nodes:
        await node.close()
