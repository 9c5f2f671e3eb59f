"""Which connections can be logins, and the sentence for each that cannot."""

import dataclasses
import json
import re
from pathlib import Path

import asyncssh
import pytest

from steptime.clusters.connections import Connection
from steptime.clusters.slurm.ssh_login import at_address, read_login
from steptime.errors import UserError

KEY = asyncssh.generate_private_key("ssh-ed25519")
HOST_KEY = KEY.export_public_key().decode()


PRIVATE_KEY = KEY.export_private_key().decode()


def connection(kind="ssh", host="login.example.org", **extra):
    return Connection(name="dgx", kind=kind, host=host, login="me", password="s3cret", extra=extra)


def test_addresses():
    for text, told in {
        "login2": ("login2", 22, "me"),
        "login2:2222": ("login2", 2222, "me"),
        "you@login2": ("login2", 22, "you"),
        "ssh://you@login2:2222/": ("login2", 2222, "you"),
        "[fe80::1]:2222": ("fe80::1", 2222, "me"),
        "you@there@login2": None,
        "login2:": None,
        "login2:70000": None,
        "fe80::1": None,
        "login 2": None,
        "": None,
    }.items():
        if told:
            login = read_login(at_address(connection(host_key=HOST_KEY), text))
            assert (login.host, login.port, login.user) == told, text
        else:
            with pytest.raises(UserError, match=f"'{re.escape(text)}' is not a host address: write host,"):
                at_address(connection(), text)
    of_another_port = dataclasses.replace(connection(), port=2200)
    assert [at_address(of_another_port, text).port for text in ("login2", "login2:2222")] == [2200, 2222]


def test_a_password_is_offered_only_if_the_connection_has_one():
    with_password = connection(host_key=HOST_KEY)
    without = dataclasses.replace(with_password, password="")
    assert read_login(with_password).options["password"] == "s3cret"
    assert "password" not in read_login(without).options


def test_the_whole_login_without_an_ssh_config():
    """Nothing of this user's own is used or passed on: no agent, no environment, no ssh_config."""
    login = read_login(connection(host_key=HOST_KEY, private_key=PRIVATE_KEY), "jump host")
    options = dict(login.options)
    assert options.pop("client_keys") == [KEY]
    assert [len(keys) for keys in options.pop("known_hosts")] == [1, 0, 0]
    assert options == {
        **{"host": "login.example.org", "port": 22, "username": "me", "password": "s3cret"},
        **{"passphrase": None, "config": None, "connect_timeout": None, "keepalive_interval": 15},
        **{"send_env": None, "env": None, "agent_forwarding": False, "x11_forwarding": False},
        **{"command": None, "request_pty": False},
    }
    assert login.title == "the jump host login.example.org:22 (connection 'dgx')"
    assert (login.timeout_s, login.jumps, login.certificates) == (15, (), ())
    assert login.remedy == (
        "put what 'ssh-keyscan login.example.org' prints behind the host's name into host_key in the extra "
        "of connection 'dgx', once its administrator has confirmed it."
    )


def test_a_port_and_a_time_limit_of_the_connections_own():
    own = dataclasses.replace(
        connection(host_key=f"{HOST_KEY.strip()} me@host", conn_timeout="2.5"), port=2222
    )
    login = read_login(own)
    assert (login.port, login.timeout_s) == (2222, 2.5)
    assert login.title == "the login node login.example.org:2222 (connection 'dgx')"
    assert login.remedy.startswith("put what 'ssh-keyscan -p 2222 login.example.org' prints behind")


def test_several_host_keys_and_authorities():
    """Login nodes may have a key each; the SSH provider uses the first."""
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    extra = {"host_key": f"{HOST_KEY}\n{other}\n", "host_ca_key": other}
    keys, authorities, _ = read_login(connection(**extra)).options["known_hosts"]
    assert [len(keys), len(authorities)] == [2, 1]
    with pytest.raises(UserError, match="host_ca_key in its extra is not a public key"):
        read_login(connection(host_ca_key="@cert-authority * ssh-ed25519 AAAA"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "http"}, "is of type 'http': a Slurm cluster needs 'ssh'"),
        ({"host": ""}, "has no host"),
        ({"host_kye": HOST_KEY}, "unknown field 'host_kye' .*did you mean 'host_key'"),
        (
            {"host_key": "no key"},
            "host_key in its extra is not a public key: .*ssh-keyscan login.example.org",
        ),
        ({"host_key": HOST_KEY, "no_host_key_check": True}, "always checks the host's key: .*ssh-keyscan"),
        ({"known_hosts": "/nowhere/known_hosts"}, "is not known, and there is no file /nowhere/known_hosts"),
        ({"host_key": HOST_KEY, "key_file": "/nowhere/id"}, "key_file '/nowhere/id': No such file"),
        (
            {"host_key": HOST_KEY, "key_file": "~nobody-here/id"},
            "key_file '~nobody-here/id': this machine has no",
        ),
        (
            {"known_hosts": "~nobody-here/hosts"},
            "known_hosts '~nobody-here/hosts': this machine has no such user",
        ),
        ({"host_key": HOST_KEY, "private_key": "s3cret"}, "private_key in its extra is not a usable key"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",  # without the keys: they vary
)
def test_what_cannot_be_is_told_without_its_secrets(changes, message):
    with pytest.raises(UserError, match=message) as refused:
        read_login(connection(**changes))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*bcrypt")  # each round takes 8 ms
def test_an_encrypted_key_needs_its_passphrase():
    encrypted = KEY.export_private_key(passphrase="open sesame", rounds=1).decode()
    extra = {"host_key": HOST_KEY, "private_key": encrypted}
    with pytest.raises(UserError, match="passphrase"):
        read_login(connection(**extra))
    with pytest.raises(UserError) as refused:
        read_login(connection(**extra, private_key_passphrase="wrong words"))
    assert "wrong words" not in str(refused.value)
    login = read_login(connection(**extra, private_key_passphrase="open sesame"))
    assert login.options["client_keys"] == [KEY]


def test_the_examples_of_the_documentation_have_the_fields_that_are_read():
    document = Path(__file__).parents[2] / "docs" / "reference" / "clusters.md"
    reaching = document.read_text(encoding="utf-8").split("\n#### Jump hosts\n")[1]
    examples = [json.loads(text) for text in re.findall(r"```json\n(.*)\n```", reaching)]
    assert len(examples) == 3
    for extra in examples:
        assert extra.pop("jump_connections", ["gate", "inner"]) == ["gate", "inner"]
        with pytest.raises(UserError, match=r"'/etc/steptime/ssh/.*': No such file"):
            read_login(connection(**extra))


def test_secrets_do_not_show():
    assert "s3cret" not in repr(connection(private_key=PRIVATE_KEY))
    assert "PRIVATE" not in repr(connection(private_key=PRIVATE_KEY))
    login = read_login(connection(host_key=HOST_KEY, private_key=PRIVATE_KEY, passphrase="open sesame"))
    assert "s3cret" not in repr(login)
    assert "sesame" not in repr(login)
