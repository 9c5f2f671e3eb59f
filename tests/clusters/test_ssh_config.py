"""The way to a login node as an ssh_config describes it: what is used, what is ignored, and mistakes."""

import getpass
from dataclasses import replace

import pytest

from steptime.clusters.connections import Connection
from steptime.errors import LoginRefused, UserError

from .ssh_site import where


def ssh_config(way, folder, more=""):
    """Write an ssh_config for the way; `more` comes first, and so takes precedence. Return its path."""
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


def by_config(path, **extra):
    """Return a connection that leaves everything else to an ssh_config."""
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
async def test_the_way_of_an_ssh_config(way, log_in, tmp_path, jumps):
    node = log_in(by_config(ssh_config(way, tmp_path, jumps)), "site")
    assert await where(node) == "node"
    assert (way.outer.logins, way.inner.logins, way.node.logins) == (1, 1, 1)


async def test_the_connection_comes_before_its_ssh_config(way, log_in, tmp_path):
    path = ssh_config(way, tmp_path, "Host node\n  ProxyJump outer\n  Port 1\n  User nobody")
    with_jumps = by_config(path, jump_connections=["inner"])
    site = replace(with_jumps["site"], port=way.node.port, login=getpass.getuser())
    node = log_in({**way.connections(), "site": site}, "site")
    assert await where(node) == "node"
    assert (way.outer.logins, way.inner.logins) == (0, 1)


async def test_what_an_ssh_config_may_not_do(way, log_in, tmp_path, monkeypatch):
    """It may not send Airflow's secrets, replace our commands, or leave a host's key unchecked."""
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
    with pytest.raises(LoginRefused, match="not trusted"):
        await log_in(by_config(path), "site").run(["true"], timeout_s=60)
    for unchecked in ("node", "outer"):
        jump = "Host node\n  ProxyJump outer\n"
        path = ssh_config(way, tmp_path, f"{jump}Host {unchecked}\n  UserKnownHostsFile none")
        with pytest.raises(UserError, match=r"UserKnownHostsFile is none .* always checks the host's key"):
            await log_in(by_config(path), "site").run(["true"], timeout_s=60)


async def test_a_wrong_ssh_config_is_told(way, log_in, tmp_path):
    faults = [
        ("Host node\n  Port many", r"ssh_config line 2: Invalid Port integer value: many"),
        ("Host node\n  IdentityFile /nowhere/id", r"/nowhere/id: No such file"),
        ("Host node\n  CertificateFile /nowhere/cert", r"/nowhere/cert: No such file"),
        ("Host node\n  ProxyJump outer:no", r"ProxyJump in its ssh_config: 'outer:no' is not a host address"),
        (
            "Host node\n  ProxyJump outer\nHost outer\n  ProxyJump inner\nHost inner\n  ProxyJump node",
            "is reached through ProxyJump node, which is itself reached through it: remove one of the two",
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
    told = rf"jump host 127.0.0.1:{way.outer.port} .*{path}.* not trusted .*, as outer.site, to {tmp_path}"
    with pytest.raises(LoginRefused, match=told):
        await log_in(by_config(path), "site").run(["true"], timeout_s=60)
