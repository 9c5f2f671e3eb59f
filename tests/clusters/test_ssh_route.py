"""The way to a cluster through real sshds: over jump hosts, and to the login node that answers."""

import asyncio
import getpass
import logging
import re
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from steptime.clusters.connections import Connection
from steptime.clusters.slurm import ssh, ssh_login, ssh_route
from steptime.errors import LoginRefused, OutOfReach, SystemFailure, UserError

from .conftest import eventually
from .ssh_site import SECRET, connection, known, where


@pytest.mark.long
async def test_two_hops_with_a_login_and_a_host_key_each(way, log_in, tmp_path):
    node = log_in(way.connections())
    assert await where(node) == "node"
    await node.write(str(tmp_path / "file"), b"over two hops")
    assert await node.read(str(tmp_path / "file"), 5, 100) == b"two hops"
    assert (way.outer.logins, way.inner.logins, way.node.logins) == (1, 1, 1)
    await node.close()
    await eventually(lambda: (way.outer.logins, way.inner.logins, way.node.logins) == (0, 0, 0))


async def test_who_is_cancelled_at_a_login_node_leaves_its_jump_host(monkeypatch):
    at_node, aborted = asyncio.Event(), []

    async def connect(login, through):
        if through is not None:
            at_node.set()
            await asyncio.sleep(60)
        return SimpleNamespace(abort=lambda: aborted.append(login.title))

    def read_login(connection, _):
        return SimpleNamespace(title=connection.host, jumps=())

    monkeypatch.setattr(ssh_route, "_connect", connect)
    monkeypatch.setattr(ssh_route, "read_login", read_login)
    jump = Connection(name="jump", kind="ssh", host="gate", login="me", password="")
    node = replace(jump, name="dgx", host="login", extra={"jump_connections": "jump"})
    reaching = asyncio.create_task(ssh_route.reach("dgx", known({"dgx": node, "jump": jump})))
    await eventually(lambda: at_node.is_set() or reaching.done())
    reaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reaching
    assert aborted == ["gate"]


@pytest.mark.long
async def test_a_jump_host_that_drops_us_is_gone_through_anew(way, log_in):
    node = log_in(way.connections(node={"jump_connections": " outer , inner"}))  # given as text
    for dropping in (way.outer, way.inner):
        assert await where(node) == "node"
        dropping.drop_connections()
        await node.read("/nowhere", 0, 1)  # reading notices it and connects again
        assert (way.outer.logins, way.inner.logins, way.node.logins) == (1, 1, 1)
    assert await where(node) == "node"


@pytest.mark.long
async def test_a_file_is_written_whole_though_the_connection_drops_in_the_middle(way, log_in, tmp_path):
    node = log_in(way.connections())
    await node.read("/nowhere", 0, 1)
    data = bytes(range(256)) * (1 << 15)
    writing = asyncio.create_task(node.write(str(tmp_path / "file"), data))
    await eventually(lambda: any(path.stat().st_size for path in tmp_path.iterdir()))
    assert not (tmp_path / "file").exists()
    way.outer.drop_connections()
    await writing
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.long
async def test_each_hop_that_refuses_is_named(way, log_in, caplog):
    """The error has the hop's value and a remedy; no host behind it is asked; no connection stays open."""
    caplog.set_level(logging.DEBUG)
    other = way.site.keys("other")
    outer, inner, login = (
        f"127.0.0.1:{host.port} (connection '{host.name}')" for host in (way.outer, way.inner, way.node)
    )
    refusals = [
        (
            {"outer": {"host_key": other.public}},
            LoginRefused,
            f"the jump host {outer} shows a key that is not trusted (Host key is not trusted for host "
            "127.0.0.1): if it is new or was installed anew, put what 'ssh-keyscan -p "
            f"{way.outer.port} 127.0.0.1' prints behind the host's name into host_key",
        ),
        (
            {"inner": {"host_key": other.public}},
            LoginRefused,
            f"the jump host {inner}, through the jump host {outer}, shows a key that is not trusted",
        ),
        (
            {"inner": {"key_file": str(other.path)}},
            LoginRefused,
            f"the jump host {inner}, through the jump host {outer}, refuses the login '{getpass.getuser()}'",
        ),
        (
            {"inner": {"key_file": "/nowhere/id"}},
            UserError,
            "the connection 'inner': key_file '/nowhere/id': No such file",
        ),
        (
            {"node": {"jump_connections": ["outer", "inner"], "host_key": other.public}},
            LoginRefused,
            f"the login node {login}, through the jump host {inner}, shows a key that is not trusted",
        ),
        (
            {"inner": {"jump_connections": "outer"}},
            UserError,
            "the connection 'inner' has jump_connections, but is itself a jump host of 'node': name all hops",
        ),
        (
            {"node": {"jump_connections": {"outer": 1}}},
            UserError,
            "the connection 'node': jump_connections in its extra is not a list of connection names",
        ),
    ]
    for changes, kind, message in refusals:
        node = log_in(way.connections(**changes))
        with pytest.raises(kind, match=re.escape(message)) as refused:
            await node.run(["true"], timeout_s=60)
        assert SECRET not in str(refused.value)
        await eventually(lambda: (way.outer.logins, way.inner.logins, way.node.logins) == (0, 0, 0))
    assert SECRET not in caplog.text


@pytest.mark.long
async def test_hops_that_are_away_are_told_from_those_that_refuse(way, log_in):
    node = log_in(way.connections())
    way.inner.stop()
    with pytest.raises(OutOfReach, match=r"jump host .*'inner'\), through .*'outer'\), cannot be reached"):
        await node.run(["true"], timeout_s=60)
    way.outer.stop()
    with pytest.raises(OutOfReach, match=r"jump host .*'outer'\) cannot be reached: Connection refused"):
        await node.run(["true"], timeout_s=60)
    way.inner.start()
    way.outer.start()
    assert await where(node) == "node"
    await node.close()
    way.inner.hang()
    patient = way.connections(inner={"conn_timeout": 0.5})
    with pytest.raises(OutOfReach, match=r"'inner'\), through .* did not complete the login within 0\.5 s"):
        await log_in(patient).run(["true"], timeout_s=60)


async def test_a_jump_host_that_does_not_forward_is_named(site, log_in):
    keys = site.keys("user")
    gate = site.host("gate", "AllowTcpForwarding no", authorized=keys.public)
    node = site.host("node", authorized=keys.public)
    connections = {"gate": connection(gate, keys), "node": connection(node, keys, jump_connections=["gate"])}
    with pytest.raises(
        LoginRefused, match=r"jump host .*'gate'\) does not forward to the login node .*'node'\)"
    ):
        await log_in(connections).run(["true"], timeout_s=60)
    with pytest.raises(LoginRefused, match="AllowTcpForwarding"):
        await log_in(connections).run(["true"], timeout_s=60)


@pytest.fixture
def two_nodes(way):
    """Return a login that both jump hosts accept, as if they were the two login nodes of a cluster."""
    for host in (way.outer, way.inner):
        host.authorize(way.keys["outer"].public)
    keys = f"{way.outer.keys.public}\n{way.inner.keys.public}"
    return replace(
        connection(way.outer, way.keys["outer"], host_key=keys, conn_timeout=5), host="", port=None
    )


def addresses(*hosts):
    return [f"127.0.0.1:{host.port}" for host in hosts]


async def test_a_command_whose_login_node_went_away_is_ended_on_no_other(way, two_nodes, log_in, tmp_path):
    """On the other node the same process id is another process; here both are one machine."""
    node = log_in({"node": two_nodes}, "node", *addresses(way.outer, way.inner))
    file = tmp_path / "pid"
    running = asyncio.create_task(node.run(["sh", "-c", f"echo $$ >{file}; exec sleep 90"], timeout_s=60))
    await eventually(lambda: file.exists() and file.read_text())
    process = psutil.Process(int(file.read_text()))
    way.outer.stop()
    with pytest.raises(OutOfReach, match="was lost while sh ran"):
        await running
    assert await where(node) == "inner"
    assert process.status() == psutil.STATUS_SLEEPING
    process.kill()


@pytest.mark.long
async def test_the_next_login_node_when_one_is_away_and_back_again(way, two_nodes, log_in, caplog):
    """A node may be away from the start, go away midway, hang, or refuse the login."""
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
    with pytest.raises(OutOfReach) as away:
        await node.run(["true"], timeout_s=60)
    assert "no login node of connection 'node' can be used" in str(away.value)
    assert all(address in str(away.value) for address in both)
    for host in (first, second):
        host.start()
    first.hang()
    assert await where(node) == "inner"
    await node.close()
    first.resume()

    first.authorize()  # as /etc/nologin does during repairs
    assert await where(node) == "inner"
    assert "refuses the login" in caplog.text
    await node.close()
    second.authorize()
    with pytest.raises(LoginRefused, match=r"no login node .* refuses the login .*; .* refuses the login"):
        await node.run(["true"], timeout_s=60)


@pytest.mark.long
async def test_a_login_node_that_stops_answering_is_given_up_for_the_next(
    way, two_nodes, log_in, tmp_path, monkeypatch
):
    """A node without power keeps its connection open, but nothing arrives over it any more."""
    monkeypatch.setitem(ssh_login._NOT_FROM_SSH_CONFIG, "keepalive_interval", 1)  # three may go unanswered
    both = addresses(way.outer, way.inner)
    node = log_in({"node": two_nodes}, "node", *both)
    assert await where(node) == "outer"
    way.outer.freeze()
    assert await where(node) == "inner", "nothing had begun on the first: no error"
    await node.close()
    way.outer.resume()

    (tmp_path / "file").write_bytes(b"here")
    assert await node.read(str(tmp_path / "file"), 0, 9) == b"here"
    monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", 1)
    way.outer.freeze()
    with pytest.raises(SystemFailure, match=f"on the login node {both[0]} .*: no answer in 1 s"):
        await node.read(str(tmp_path / "file"), 0, 9)


BROKEN, AWAY, REFUSED = UserError("no such key"), OutOfReach("gone"), LoginRefused("not you")


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ([BROKEN, UserError("no host")], UserError),
        ([BROKEN, REFUSED], LoginRefused),
        ([REFUSED, BROKEN], LoginRefused),
        ([BROKEN, AWAY], OutOfReach),
        ([AWAY, BROKEN], OutOfReach),
        ([AWAY, REFUSED], OutOfReach),
    ],
)
async def test_only_what_no_node_can_mend_ends_the_tries(failures, kind, monkeypatch):
    left = iter(failures)

    async def through(*_):
        raise next(left)

    monkeypatch.setattr(ssh_route, "_through", through)
    here = Connection(name="dgx", kind="ssh", host="login", login="me", password="")
    with pytest.raises((UserError, OutOfReach)) as refused:
        await ssh_route.reach("dgx", known({"dgx": here}), ("login1", "login2"))
    assert type(refused.value) is kind
    assert str(refused.value) == (
        f"no login node of connection 'dgx' can be used: {'; '.join(map(str, failures))}"
    )
