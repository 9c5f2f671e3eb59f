"""The examples of docs/reference/clusters.md on reaching a cluster, each logged in with as it stands there.

Only what is a site's own is put in: addresses, users, folders and keys.
"""

import getpass
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from steptime.clusters.connections import Connection

from .ssh_site import Host, Open, Site, connection, where

pytestmark = pytest.mark.long

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "clusters.md"
FOLDER = "/etc/steptime/ssh"


def example(heading: str, language: str) -> str:
    """The block of a language below a heading."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"#### {heading}\n")[1].split("\n#")[0]
    (block,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(block)


@pytest.fixture
def here(site: Site) -> Callable[[str, str], str]:
    """A function that puts this site's folder and a public key into an example."""

    def put(text: str, key: str = "") -> str:
        assert FOLDER in text
        return text.replace(FOLDER, str(site.folder)).replace("ssh-ed25519 AAAA…", key)

    return put


@pytest.fixture
def hosts(site: Site) -> dict[str, Host]:
    """The hosts of the examples; certificates and the keys of one user let in."""
    keys = site.keys("id_selene")
    site.sign(keys, principal=getpass.getuser()).rename(site.folder / "selene-cert.pub")
    other = site.keys("id_gate")
    signed = f"HostCertificate {site.folder}/selene-host-cert.pub"
    found = {
        "gate": site.host("gate", authorized=other.public),
        "inner": site.host("inner", authorized=other.public),
        "selene": site.host("selene", signed, authorized=keys.public),
    }
    site.sign(found["selene"].keys, principal="127.0.0.1", host=True)
    found["selene"].stop()
    found["selene"].start()
    return found


def of(host: Host, extra: str) -> Connection:
    return replace(connection(host), extra=json.loads(extra))


async def test_jump_hosts(site: Site, hosts: dict[str, Host], log_in: Open, here: Callable[..., str]) -> None:
    extra = here(example("Jump hosts", "json"), hosts["selene"].keys.public)
    others = {name: connection(hosts[name], key_file=f"{site.folder}/id_gate") for name in ("gate", "inner")}
    assert await where(log_in({"selene": of(hosts["selene"], extra), **others}, "selene")) == "selene"
    assert hosts["gate"].logins == hosts["inner"].logins == 1


async def test_certificates(
    site: Site, hosts: dict[str, Host], log_in: Open, here: Callable[..., str]
) -> None:
    hosts["selene"].authorize()  # the certificate alone lets in
    extra = here(example("ssh certificates", "json"), site.authority.public)
    assert await where(log_in({"selene": of(hosts["selene"], extra)}, "selene")) == "selene"


async def test_ssh_config(site: Site, hosts: dict[str, Host], log_in: Open, here: Callable[..., str]) -> None:
    gate, selene = hosts["gate"], hosts["selene"]
    text = here(example("An ssh_config", "sshconfig"))
    for theirs, ours in {
        "HostName login1.example.org": f"HostName 127.0.0.1\n  Port {selene.port}",
        "HostName gate.example.org\n  Port 2222": f"HostName 127.0.0.1\n  Port {gate.port}",
        "User bench-gate": f"User {getpass.getuser()}",
        "User bench\n": f"User {getpass.getuser()}\n",
    }.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    (site.folder / "config").write_text(text)
    (site.folder / "known_hosts").write_text(
        f"selene {selene.keys.public}\n[127.0.0.1]:{gate.port} {gate.keys.public}\n"
    )
    extra = here(example("An ssh_config", "json"))
    login = Connection(name="selene", kind="ssh", host="selene", extra=json.loads(extra))
    assert await where(log_in({"selene": login}, "selene")) == "selene"
    assert gate.logins == 1
