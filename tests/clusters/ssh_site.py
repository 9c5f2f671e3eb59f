"""Hosts of a site that is reached over ssh: real sshds, each with its own key, and an authority that signs.

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
"""The password of every connection: no host takes one, and no message may have it."""

Open = Callable[..., LoginNode]
"""Opens the connection of a name: the fixture `log_in`."""


@dataclass
class Keys:
    """A pair of keys as ssh-keygen makes it."""

    path: Path

    @property
    def public(self) -> str:
        """The public one, without its comment."""
        return " ".join(Path(f"{self.path}.pub").read_text().split()[:2])

    @property
    def certificate(self) -> Path:
        """Where the certificate for it lies, once it is signed."""
        return Path(f"{self.path}-cert.pub")


class Host(Sshd):
    """A host with its own key, which lets `authorized` in and those that `authority` signed."""

    def __init__(self, site: "Site", name: str, *options: str, authorized: str = "") -> None:
        self.name = name
        self.keys = site.keys(f"{name}-host")
        folder = site.folder / name
        folder.mkdir()
        self._authorized_keys = folder / "authorized_keys"
        self.authorize(authorized)
        super().__init__(
            folder,
            [
                *options,
                f"HostKey {self.keys.path}",
                f"AuthorizedKeysFile {self._authorized_keys}",
                f"TrustedUserCAKeys {site.authority.path}.pub",
                f"AllowUsers {getpass.getuser()}",
                *("AuthenticationMethods publickey", "UsePAM no", "StrictModes no", "UseDNS no"),
                f"SetEnv HOST={name} SHLVL=1",  # below another shell, bash does not read a .bashrc
                "Subsystem sftp internal-sftp",
            ],
        )

    def authorize(self, *keys: str) -> None:
        """Let these public keys in, and no others."""
        self._authorized_keys.write_text("".join(f"{key}\n" for key in keys))


class Site:
    """Makes hosts, keys and certificates in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.authority = self.keys("authority")
        self.hosts: list[Host] = []

    def keys(self, name: str) -> Keys:
        """New keys."""
        path = self.folder / name
        _keygen("-t", "ed25519", "-N", "", "-C", "test", "-f", str(path))
        return Keys(path)

    def sign(self, keys: Keys, *, principal: str, valid: str = "-1d:+1d", host: bool = False) -> Path:
        """A certificate of the authority's, for a user or a host, beside the key."""
        kind = ["-h"] if host else []
        public = f"{keys.path}.pub"
        _keygen("-s", str(self.authority.path), *kind, "-I", "test", "-n", principal, "-V", valid, public)
        return keys.certificate

    def host(self, name: str, *options: str, authorized: str = "") -> Host:
        """A host that runs; options are lines of its sshd_config and come before the others."""
        self.hosts.append(Host(self, name, *options, authorized=authorized))
        return self.hosts[-1]

    def stop(self) -> None:
        for host in self.hosts:
            host.stop()


def connection(host: Host, keys: Keys | None = None, **extra: Any) -> Connection:
    """The login to a host, whose key is known unless `extra` says otherwise; None takes a field away."""
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
    """What gives connections by their names, as Airflow would."""

    async def give(name: str) -> Connection:
        return connections[name]

    return give


def _keygen(*arguments: str) -> None:
    program = shutil.which("ssh-keygen")
    assert program
    subprocess.run([program, "-q", *arguments], check=True, stdin=subprocess.DEVNULL)


async def where(node: LoginNode) -> str:
    """The host that commands run on."""
    return (await node.run(["printenv", "HOST"], timeout_s=60)).stdout.strip()


@dataclass(frozen=True)
class Way:
    """Two jump hosts and a login node behind them; each knows other keys."""

    site: Site
    outer: Host
    inner: Host
    node: Host
    keys: dict[str, Keys]

    def connections(self, **changes: dict[str, Any]) -> dict[str, Connection]:
        """The login of each by name, changed in its extra; that of the node leads through both others."""
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
    """As it was at first, whatever a test before has stopped, hung or let in."""
    for host in (way_of_module.outer, way_of_module.inner, way_of_module.node):
        host.stop()
        host.authorize(way_of_module.keys[host.name].public)
        host.start()
    return way_of_module


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site of this test's own."""
    site = Site(tmp_path / "site")
    yield site
    site.stop()


@pytest.fixture
async def log_in() -> AsyncIterator[Open]:
    """A function that opens the connection of a name; the ends of what it opened are seen to."""
    nodes = []

    def open_one(connections: dict[str, Connection], name: str = "node", *login_nodes: str) -> LoginNode:
        nodes.append(LoginNode(name, known(connections), login_nodes))
        return nodes[-1]

    yield open_one
    for node in nodes:
        await node.close()
