"""Which connections can be logins, and the sentence for each that cannot."""

import asyncssh
import pytest

from steptime.clusters.connections import Connection
from steptime.clusters.slurm.ssh_login import connect_timeout_s, login_options
from steptime.errors import UserError

KEY = asyncssh.generate_private_key("ssh-ed25519")
HOST_KEY = KEY.export_public_key().decode()
PRIVATE_KEY = KEY.export_private_key().decode()


def connection(kind: str = "ssh", host: str = "login.example.org", **extra: object) -> Connection:
    return Connection(name="dgx", kind=kind, host=host, login="me", password="s3cret", extra=extra)


def test_what_it_says_is_what_is_used() -> None:
    options = login_options(connection(host_key=HOST_KEY, private_key=PRIVATE_KEY, conn_timeout="7"))
    assert (options["host"], options["port"], options["username"]) == ("login.example.org", 22, "me")
    (trusted,), _, _ = options["known_hosts"]
    assert trusted == KEY.convert_to_public()
    assert options["client_keys"] == [KEY]
    assert options["config"] is None, "nobody's ~/.ssh/config may weaken it"


def test_seconds_to_connect() -> None:
    assert connect_timeout_s(connection()) == 15
    assert connect_timeout_s(connection(conn_timeout="7")) == 7
    with pytest.raises(UserError, match="conn_timeout"):
        connect_timeout_s(connection(conn_timeout="soon"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "http"}, "is of type 'http': a Slurm cluster needs 'ssh'"),
        ({"host": ""}, "has no host"),
        ({"host_kye": HOST_KEY}, "unknown field 'host_kye' .*did you mean 'host_key'"),
        ({"host_key": "no key"}, "host_key in its extra is no public key: .*ssh-keyscan login.example.org"),
        ({"host_key": HOST_KEY, "no_host_key_check": True}, "always checks the host's key: .*ssh-keyscan"),
        ({"known_hosts": "/nowhere/known_hosts"}, "is not known, and there is no file /nowhere/known_hosts"),
        ({"host_key": HOST_KEY, "key_file": "/nowhere/id"}, "key_file '/nowhere/id': No such file"),
        ({"host_key": HOST_KEY, "private_key": "s3cret"}, "private_key in its extra is no usable key"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",  # not the keys: new ones each time
)
def test_what_cannot_be_is_told_without_its_secrets(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        login_options(connection(**changes))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_an_encrypted_key_needs_its_passphrase() -> None:
    encrypted = KEY.export_private_key(passphrase="open sesame", rounds=50).decode()
    extra = {"host_key": HOST_KEY, "private_key": encrypted}
    with pytest.raises(UserError, match="passphrase"):
        login_options(connection(**extra))
    with pytest.raises(UserError) as refused:
        login_options(connection(**extra, private_key_passphrase="wrong words"))
    assert "wrong words" not in str(refused.value)
    assert login_options(connection(**extra, private_key_passphrase="open sesame"))["client_keys"] == [KEY]


def test_secrets_do_not_show() -> None:
    assert "s3cret" not in repr(connection(private_key=PRIVATE_KEY))
    assert "PRIVATE" not in repr(connection(private_key=PRIVATE_KEY))
