"""Hosts of a site that is reached over ssh: real sshds, each with its own key, and an authority that signs.

Everything listens on loopback; hosts differ by their ports and by what `printenv HOST` says there.
"""

import getpass
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptime.clusters.connections import Connection

from .login_node import Sshd


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
        (folder / "authorized_keys").write_text(f"{authorized}\n")
        super().__init__(
            folder,
            [
                *options,
                f"HostKey {self.keys.path}",
                f"AuthorizedKeysFile {folder}/authorized_keys",
                f"TrustedUserCAKeys {site.authority.path}.pub",
                f"AllowUsers {getpass.getuser()}",
                *("AuthenticationMethods publickey", "UsePAM no", "StrictModes no", "UseDNS no"),
                f"SetEnv HOST={name} SHLVL=1",  # below another shell, bash does not read a .bashrc
                "Subsystem sftp internal-sftp",
            ],
        )

    @property
    def known(self) -> str:
        """Its line of a known_hosts file."""
        return f"[127.0.0.1]:{self.port} {self.keys.public}\n"


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
