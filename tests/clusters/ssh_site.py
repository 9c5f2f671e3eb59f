"""Hosts of a site that is reached over ssh: real sshds, each with its own key, and a certificate authority.

Everything listens on loopback; hosts differ by their ports and by what `printenv HOST` says there.
"""

import getpass
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from steptime.clusters.connections import Connection
from steptime.clusters.slurm.ssh import LoginNode

from .login_node import Sshd

SECRET = "s3cret"
"""The password of every connection: no host accepts it, and no message may contain it."""

Open = Callable[..., LoginNode]
"""Opens a connection by its name: the type of the fixture `log_in`."""


@dataclass
class Keys:
    """A key pair made by ssh-keygen."""

    path: Path

    @property
    def public(self) -> str:
        """Return the public key, without its comment."""
        return " ".join(Path(f"{self.path}.pub").read_text().split()[:2])

    @property
    def certificate(self) -> Path:
        """Return the path of the key's certificate, which exists once the key is signed."""
        return Path(f"{self.path}-cert.pub")


class Host(Sshd):
    """A host with its own key, which admits the keys in `authorized` and those signed by the authority."""

    def __init__(self, site: "Site", name: str, *options: str, authorized: str = "") -> None:
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

    def authorize(self, *keys: str) -> None:
        """Admit these public keys and no others."""
        self._authorized_keys.write_text("".join(f"{key}\n" for key in keys))


class Site:
    """A maker of hosts, keys and certificates in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.authority = self.keys("authority")
        self.hosts: list[Host] = []

    def keys(self, name: str) -> Keys:
        """Make a new key pair."""
        path = self.folder / name
        _keygen("-t", "ed25519", "-N", "", "-C", "test", "-f", str(path))
        return Keys(path)

    def sign(self, keys: Keys, *, principal: str, valid: str = "-1d:+1d", host: bool = False) -> Path:
        """Let the authority sign a key of a user or a host; return the certificate beside the key."""
        kind = ["-h"] if host else []
        public = f"{keys.path}.pub"
        _keygen("-s", str(self.authority.path), *kind, "-I", "test", "-n", principal, "-V", valid, public)
        return keys.certificate

    def host(self, name: str, *options: str, authorized: str = "") -> Host:
        """Start a host; options are lines of its sshd_config, in place of the usual ones."""
        self.hosts.append(Host(self, name, *options, authorized=authorized))
        return self.hosts[-1]

    def stop(self) -> None:
        for host in self.hosts:
            host.stop()


def connection(host: Host, keys: Keys | None = None, **extra: Any) -> Connection:
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


def known(connections: Mapping[str, Connection]) -> Any:
    """Return a lookup of connections by name, as Airflow has it."""

    async def give(name: str) -> Connection:
        return connections[name]

    return give


def _keygen(*arguments: str) -> None:
    program = shutil.which("ssh-keygen")
    assert program
    subprocess.run([program, "-q", *arguments], check=True, stdin=subprocess.DEVNULL)


async def where(node: LoginNode) -> str:
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

    def connections(self, **changes: dict[str, Any]) -> dict[str, Connection]:
        """Return the login of each host by name, with changes to extras; the node's uses both jump hosts."""
        fields = {"node": {"jump_connections": ["outer", "inner"]}, **changes}
        return {
            host.name: connection(host, self.keys[host.name], **fields.get(host.name, {}))
            for host in (self.outer, self.inner, self.node)
        }


@pytest.fixture(scope="module")
def way_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    site = Site(tmp_path_factory.mktemp("way"))
    keys = {name: site.keys(f"{name}-user") for name in ("outer", "inner", "node")}
    hosts = {name: site.host(name, authorized=pair.public) for name, pair in keys.items()}
    yield Way(site, hosts["outer"], hosts["inner"], hosts["node"], keys)
    site.stop()


@pytest.fixture
def way(way_of_module: Way) -> Way:
    """Return the hosts in their first state, whatever an earlier test has stopped, hung or authorized."""
    for host in (way_of_module.outer, way_of_module.inner, way_of_module.node):
        host.stop()
        host.authorize(way_of_module.keys[host.name].public)
        host.start()
    return way_of_module


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a site of this test's own."""
    site = Site(tmp_path / "site")
    yield site
    site.stop()


@pytest.fixture
async def log_in() -> AsyncIterator[Open]:
    """Yield a function that opens a connection by its name; everything it opened is closed at the end."""
    nodes = []

    def open_one(connections: dict[str, Connection], name: str = "node", *login_nodes: str) -> LoginNode:
        nodes.append(LoginNode(name, known(connections), login_nodes))
        return nodes[-1]

    yield open_one
    for node in nodes:
        await node.close()
