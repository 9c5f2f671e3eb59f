"""The way to a login node: jump hosts, certificates, ssh_config and several login nodes, by real sshds."""

import asyncio
import getpass
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from steptime.clusters.connections import Connection
from steptime.clusters.slurm.ssh import LoginNode
from steptime.errors import SystemFailure, UserError

from .ssh_site import Host, Keys, Site, connection, known

Eventually = Callable[[Callable[[], object]], Awaitable[None]]
Open = Callable[..., LoginNode]


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
def way(way_of_module: Way) -> Iterator[Way]:
    yield way_of_module
    for host in (way_of_module.outer, way_of_module.inner, way_of_module.node):
        host.stop()
        host.start()


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


async def where(node: LoginNode) -> str:
    """The host that commands run on."""
    return (await node.run(["printenv", "HOST"], timeout_s=60)).stdout.strip()


async def test_two_hops_with_a_login_and_a_host_key_each(
    way: Way, log_in: Open, tmp_path: Path, eventually: Eventually
) -> None:
    node = log_in(way.connections())
    assert await where(node) == "node"
    await node.write(str(tmp_path / "file"), b"over two hops")
    assert await node.read(str(tmp_path / "file"), 5, 100) == b"two hops"
    assert (way.outer.logins, way.inner.logins, way.node.logins) == (1, 1, 1)
    await node.close()
    await eventually(lambda: (way.outer.logins, way.inner.logins, way.node.logins) == (0, 0, 0))


async def test_a_jump_host_that_drops_us_is_gone_through_anew(way: Way, log_in: Open) -> None:
    node = log_in(way.connections(node={"jump_connections": " outer , inner"}))  # as from an address
    for dropping in (way.outer, way.inner):
        assert await where(node) == "node"
        dropping.drop_connections()
        await node.read("/nowhere", 0, 1)  # reading notices, and goes the way once more
        assert (way.outer.logins, way.inner.logins, way.node.logins) == (1, 1, 1)
    assert await where(node) == "node"


async def test_a_file_is_written_whole_though_the_connection_drops_in_the_middle(
    way: Way, log_in: Open, tmp_path: Path, eventually: Eventually
) -> None:
    node = log_in(way.connections())
    await node.read("/nowhere", 0, 1)
    data = bytes(range(256)) * (1 << 15)
    writing = asyncio.create_task(node.write(str(tmp_path / "file"), data))
    await eventually(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
    assert not (tmp_path / "file").exists()
    way.outer.drop_connections()
    await writing
    assert (tmp_path / "file").read_bytes() == data


async def test_each_hop_that_refuses_is_named(way: Way, log_in: Open, eventually: Eventually) -> None:
    """With its value and what to do; nobody behind it was asked, and no connection to it stays open."""
    other = way.site.keys("other")
    outer, inner, login = (
        f"127.0.0.1:{host.port} (connection '{host.name}')" for host in (way.outer, way.inner, way.node)
    )
    refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"outer": {"host_key": other.public}},
            UserError,
            f"the jump host {outer} shows a key that is not trusted (Host key is not trusted for host "
            "127.0.0.1): if it is new or was installed anew, put what 'ssh-keyscan -p "
            f"{way.outer.port} 127.0.0.1' prints behind the host's name into host_key",
        ),
        (
            {"inner": {"host_key": other.public}},
            UserError,
            f"the jump host {inner}, through the jump host {outer}, shows a key that is not trusted",
        ),
        (
            {"inner": {"key_file": str(other.path)}},
            UserError,
            f"the jump host {inner}, through the jump host {outer}, refuses the login '{getpass.getuser()}'",
        ),
        (
            {"inner": {"key_file": "/nowhere/id"}},
            UserError,
            "the connection 'inner': key_file '/nowhere/id': No such file",
        ),
        (
            {"node": {"jump_connections": ["outer", "inner"], "host_key": other.public}},
            UserError,
            f"the login node {login}, through the jump host {inner}, shows a key that is not trusted",
        ),
        (
            {"inner": {"jump_connections": "outer"}},
            UserError,
            "the connection 'inner' has jump_connections, and is itself one of 'node': name all hops there",
        ),
        (
            {"node": {"jump_connections": {"outer": 1}}},
            UserError,
            "the connection 'node': jump_connections in its extra is no list of names",
        ),
    ]
    for changes, kind, message in refusals:
        node = log_in(way.connections(**changes))
        with pytest.raises(kind, match=re.escape(message)):
            await node.run(["true"], timeout_s=60)
        await eventually(lambda: (way.outer.logins, way.inner.logins, way.node.logins) == (0, 0, 0))


async def test_hops_that_are_away_are_told_from_those_that_refuse(way: Way, log_in: Open) -> None:
    node = log_in(way.connections())
    way.inner.stop()
    with pytest.raises(SystemFailure, match=r"jump host .*'inner'\), through .*'outer'\), cannot be reached"):
        await node.run(["true"], timeout_s=60)
    way.outer.stop()
    with pytest.raises(SystemFailure, match=r"jump host .*'outer'\) cannot be reached: Connection refused"):
        await node.run(["true"], timeout_s=60)
    way.inner.start()
    way.outer.start()
    assert await where(node) == "node"
    await node.close()
    way.inner.hang()
    patient = way.connections(inner={"conn_timeout": 0.5})
    with pytest.raises(SystemFailure, match=r"'inner'\), through .* did not let us in within 0\.5 s"):
        await log_in(patient).run(["true"], timeout_s=60)


async def test_a_jump_host_that_does_not_forward_is_named(site: Site, log_in: Open) -> None:
    keys = site.keys("user")
    gate = site.host("gate", "AllowTcpForwarding no", authorized=keys.public)
    node = site.host("node", authorized=keys.public)
    connections = {
        "gate": connection(gate, keys),
        "node": connection(node, keys, jump_connections=["gate"]),
    }
    with pytest.raises(
        UserError, match=r"jump host .*'gate'\) does not forward to the login node .*'node'\)"
    ):
        await log_in(connections).run(["true"], timeout_s=60)
    with pytest.raises(UserError, match="AllowTcpForwarding"):
        await log_in(connections).run(["true"], timeout_s=60)


async def test_user_certificates(site: Site, log_in: Open) -> None:
    """In a file, beside the key as ssh looks for it, and as text; why one was refused is told."""
    node = site.host("node")  # no key is authorized there: only what the authority signed
    me = getpass.getuser()
    keys, other = site.keys("user"), site.keys("other")
    named = site.sign(keys, principal=me).rename(site.folder / "signed.pub")
    text = named.read_text()
    taken: list[dict[str, Any]] = [
        {"certificate_file": str(named)},
        {"certificate": text},
        {"certificate": text, "key_file": None, "private_key": keys.path.read_text()},
    ]
    for fields in taken:
        assert await where(log_in({"node": connection(node, keys, **fields)})) == "node"

    refusals = [
        ({"principal": me, "valid": "-2d:-1d"}, f"its certificate for {me}: Certificate expired"),
        ({"principal": "jane"}, "its certificate for jane: Certificate principal mismatch"),
        ({"principal": me, "valid": "+1d:+2d"}, "Certificate not yet valid"),
        ({"principal": me, "host": True}, "Invalid certificate type"),
    ]
    for signed, told in refusals:
        site.sign(keys, **signed)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"refuses the login '{me}': .*{re.escape(told)}"):
            await log_in({"node": connection(node, keys)}).run(["true"], timeout_s=60)
    site.sign(keys, principal=me)  # renewed: the next connection has it
    assert await where(log_in({"node": connection(node, keys)})) == "node"

    site.authority = site.keys("stranger")
    site.sign(keys, principal=me)
    with pytest.raises(UserError, match="in order here: the host may not trust the authority that signed it"):
        await log_in({"node": connection(node, keys)}).run(["true"], timeout_s=60)
    wrong = [
        ({"certificate_file": "/nowhere/cert"}, "certificate_file '/nowhere/cert': No such file"),
        ({"certificate_file": str(keys.path)}, "certificate_file in its extra is no ssh certificate"),
        ({"certificate": "ssh-ed25519 AAAA"}, "certificate in its extra is no ssh certificate"),
        (
            {"certificate_file": str(site.sign(other, principal=me))},
            "its certificate is not that of its key",
        ),
    ]
    for fields, told in wrong:
        with pytest.raises(UserError, match=told):
            await log_in({"node": connection(node, keys, **fields)}).run(["true"], timeout_s=60)


async def test_host_certificates(site: Site, log_in: Open) -> None:
    """A host's own key need not be known where its authority is, in known_hosts or in the connection."""
    keys, host_keys = site.keys("user"), site.folder / "node-host"
    node = site.host("node", f"HostCertificate {host_keys}-cert.pub", authorized=keys.public)
    known_hosts = site.folder / "known_hosts"
    known_hosts.write_text(f"@cert-authority [127.0.0.1]:{node.port} {site.authority.public}\n")
    of_file = connection(node, keys, host_key=None, known_hosts=str(known_hosts))
    of_field = connection(node, keys, host_key=None, host_ca_key=site.authority.public)

    def restart(**signed: Any) -> None:
        site.sign(node.keys, host=True, **signed)
        node.stop()
        node.start()

    restart(principal="127.0.0.1")
    for trusting in (of_file, of_field):
        assert await where(log_in({"node": trusting})) == "node"
    stranger = replace(of_field, extra={**of_field.extra, "host_ca_key": site.keys("stranger").public})
    with pytest.raises(UserError, match=r"key that is not trusted .Host CA key is not trusted"):
        await log_in({"node": stranger}).run(["true"], timeout_s=60)
    for signed, told in (
        ({"principal": "other.example.org"}, "principal mismatch"),
        ({"principal": "127.0.0.1", "valid": "-2d:-1d"}, "expired"),
    ):
        restart(**signed)
        for trusting in (of_file, of_field):
            with pytest.raises(UserError, match=f"key that is not trusted .Certificate {told}"):
                await log_in({"node": trusting}).run(["true"], timeout_s=60)


def ssh_config(way: Way, folder: Path, more: str = "") -> Path:
    """OpenSSH's options for the way; `more` comes first, and so before the others."""
    hosts = "".join(
        f"Host {host.name}\n  HostName 127.0.0.1\n  Port {host.port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {way.keys[host.name].path}\n  HostKeyAlias {host.name}.site\n"
        for host in (way.outer, way.inner, way.node)
    )
    (folder / "known_hosts").write_text(
        "".join(f"{host.name}.site {host.keys.public}\n" for host in (way.outer, way.inner, way.node))
    )
    path = folder / "ssh_config"
    path.write_text(f"{more}\n{hosts}Host *\n  UserKnownHostsFile {folder}/known_hosts\n")
    return path


def by_config(path: Path, **extra: Any) -> dict[str, Connection]:
    """A connection that leaves everything else to a file."""
    return {
        "site": Connection(name="site", kind="ssh", host="node", extra={"ssh_config": str(path), **extra})
    }


@pytest.mark.parametrize(
    "jumps",
    [
        "Host node\n  ProxyJump outer,inner",
        "Host node\n  ProxyJump inner\nHost inner\n  ProxyJump outer",
        "Host outer\n  ProxyJump none\nHost inner\n  ProxyJump outer\nHost *\n  ProxyJump inner",
    ],
    ids=["named in a row", "each names the one before", "for all hosts"],
)
async def test_the_way_of_an_ssh_config(way: Way, log_in: Open, tmp_path: Path, jumps: str) -> None:
    node = log_in(by_config(ssh_config(way, tmp_path, jumps)), "site")
    assert await where(node) == "node"
    assert (way.outer.logins, way.inner.logins, way.node.logins) == (1, 1, 1)


async def test_the_connection_comes_before_its_ssh_config(way: Way, log_in: Open, tmp_path: Path) -> None:
    path = ssh_config(way, tmp_path, "Host node\n  ProxyJump outer\n  Port 1\n  User nobody")
    own = by_config(path, jump_connections=["inner"])
    site = replace(own["site"], port=way.node.port, login=getpass.getuser())
    node = log_in({**way.connections(), "site": site}, "site")
    assert await where(node) == "node"
    assert (way.outer.logins, way.inner.logins) == (0, 1)


async def test_what_an_ssh_config_may_not_do(
    way: Way, log_in: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send Airflow's secrets, take our commands' place, or leave a host's key unchecked."""
    monkeypatch.setenv("LC_SECRET", "s3cret")
    path = ssh_config(
        way,
        tmp_path,
        "Host *\n  SendEnv *\n  RemoteCommand echo no\n  RequestTTY force\n  ForwardAgent yes\n"
        "  StrictHostKeyChecking no",
    )
    node = log_in(by_config(path), "site")
    done = await node.run(["env"], timeout_s=60)
    assert "HOST=node\n" in done.stdout
    assert "s3cret" not in done.stdout
    assert "SSH_TTY" not in done.stdout
    await node.make_folder(str(tmp_path / "made"))
    assert (tmp_path / "made").is_dir()
    (tmp_path / "known_hosts").write_text("elsewhere.site ssh-ed25519 AAAA\n")
    with pytest.raises(UserError, match="not trusted"):
        await log_in(by_config(path), "site").run(["true"], timeout_s=60)
    for unchecked in ("node", "outer"):
        jump = "Host node\n  ProxyJump outer\n"
        path = ssh_config(way, tmp_path, f"{jump}Host {unchecked}\n  UserKnownHostsFile none")
        with pytest.raises(UserError, match=r"UserKnownHostsFile is none .* always checks the host's key"):
            await log_in(by_config(path), "site").run(["true"], timeout_s=60)


async def test_a_wrong_ssh_config_is_told(way: Way, log_in: Open, tmp_path: Path) -> None:
    faults = [
        ("Host node\n  Port many", r"ssh_config line 2: Invalid Port integer value: many"),
        ("Host node\n  IdentityFile /nowhere/id", r"/nowhere/id: No such file"),
        ("Host node\n  CertificateFile /nowhere/cert", r"/nowhere/cert: No such file"),
        ("Host node\n  ProxyJump outer:no", r"ProxyJump in its ssh_config: 'outer:no' is no address"),
        (
            "Host node\n  ProxyJump outer\nHost outer\n  ProxyJump inner\nHost inner\n  ProxyJump node",
            "is reached through ProxyJump node, which lies behind it: its ssh_config leads in a circle",
        ),
    ]
    for lines, told in faults:
        with pytest.raises(UserError, match=told) as refused:
            await log_in(by_config(ssh_config(way, tmp_path, lines)), "site").run(["true"], timeout_s=60)
        assert "\n" not in str(refused.value)
    missing = by_config(tmp_path / "missing")
    with pytest.raises(UserError, match=r"ssh_config '.*/missing': No such file"):
        await log_in(missing, "site").run(["true"], timeout_s=60)
    path = ssh_config(way, tmp_path, "Host node\n  ProxyJump outer")
    (tmp_path / "known_hosts").write_text(f"node.site {way.node.keys.public}\n")
    with pytest.raises(UserError, match=rf"jump host 127.0.0.1:{way.outer.port} .*{path}.* not trusted"):
        await log_in(by_config(path), "site").run(["true"], timeout_s=60)


@pytest.fixture
def two_nodes(way: Way) -> Connection:
    """A login that both jump hosts take, as if they were the two login nodes of a cluster."""
    both = f"{way.keys['outer'].public}\n{way.keys['inner'].public}\n"
    for host in (way.outer, way.inner):
        (way.site.folder / host.name / "authorized_keys").write_text(both)
    keys = f"{way.outer.keys.public}\n{way.inner.keys.public}"
    return replace(
        connection(way.outer, way.keys["outer"], host_key=keys, conn_timeout=3), host="", port=None
    )


def addresses(*hosts: Host) -> list[str]:
    return [f"127.0.0.1:{host.port}" for host in hosts]


async def test_a_command_whose_login_node_went_away_is_ended_on_no_other(
    way: Way, two_nodes: Connection, log_in: Open, tmp_path: Path, eventually: Eventually
) -> None:
    """There its process id is somebody else's. As both are one machine here, it would be seen."""
    node = log_in({"node": two_nodes}, "node", *addresses(way.outer, way.inner))
    file = tmp_path / "pid"
    running = asyncio.create_task(node.run(["sh", "-c", f"echo $$ >{file}; exec sleep 90"], timeout_s=60))
    await eventually(lambda: file.exists() and file.read_text())
    process = psutil.Process(int(file.read_text()))
    way.outer.stop()
    with pytest.raises(SystemFailure, match="was lost while sh ran"):
        await running
    assert await where(node) == "inner"
    assert process.status() == psutil.STATUS_SLEEPING
    process.kill()


async def test_the_next_login_node_when_one_is_away_and_back_again(
    way: Way, two_nodes: Connection, log_in: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it was away from the start, goes in mid-way, hangs, or does not let us in."""
    first, second = way.outer, way.inner
    both = addresses(first, second)
    node = log_in({"node": two_nodes}, "node", *both)
    assert await where(node) == "outer"
    first.stop()
    assert await where(node) == "inner"
    assert f"login node {both[0]} (connection 'outer') cannot be reached" in caplog.text
    assert f"went on with the login node {both[1]}" in caplog.text
    first.start()
    assert await where(node) == "inner", "what is open is kept"
    second.stop()
    assert await where(node) == "outer"

    first.stop()
    with pytest.raises(SystemFailure) as away:
        await node.run(["true"], timeout_s=60)
    assert "no login node of connection 'node' can be used" in str(away.value)
    assert all(address in str(away.value) for address in both)
    for host in (first, second):
        host.start()
    first.hang()
    assert await where(node) == "inner"
    await node.close()
    first.resume()

    (way.site.folder / "outer" / "authorized_keys").write_text("")  # as where /etc/nologin tells of repairs
    assert await where(node) == "inner"
    assert "refuses the login" in caplog.text
    await node.close()
    (way.site.folder / "inner" / "authorized_keys").write_text("")
    with pytest.raises(UserError, match=r"no login node .* refuses the login .*; .* refuses the login"):
        await node.run(["true"], timeout_s=60)
