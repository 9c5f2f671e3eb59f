"""From a connection of kind `ssh` to what asyncssh logs in with. The host's key is always checked.

The fields of `extra` are called as in Airflow's SSH provider, so that one connection serves both.
"""

from pathlib import Path
from typing import Any

import asyncssh

from steptime.clusters.connections import Connection
from steptime.errors import UserError, unknown_value

DEFAULT_PORT = 22
_CONNECT_TIMEOUT_S = 15.0
_KNOWN_HOSTS = Path("~/.ssh/known_hosts")

_READ = (
    *("key_file", "private_key", "private_key_passphrase", "passphrase"),
    *("host_key", "known_hosts", "no_host_key_check", "conn_timeout"),
)
_WITHOUT_EFFECT = (  # of Airflow's SSH provider; none of them says to whom a secret goes
    *("allow_host_key_change", "ciphers", "cmd_timeout", "compress"),
    *("disabled_algorithms", "ignore_hostkey_verification", "look_for_keys"),
)


def address(connection: Connection) -> str:
    """Host and port, as they stand in messages."""
    return f"{connection.host}:{connection.port or DEFAULT_PORT}"


def connect_timeout_s(connection: Connection) -> float:
    """Seconds that connecting and logging in may take together. Raises UserError."""
    try:
        return float(connection.extra.get("conn_timeout") or _CONNECT_TIMEOUT_S)
    except (TypeError, ValueError):
        raise UserError(f"{_named(connection)}: conn_timeout in its extra is no number of seconds.") from None


def login_options(connection: Connection) -> dict[str, Any]:
    """The arguments of `asyncssh.connect`. Raises UserError for what cannot be a login."""
    if connection.kind != "ssh":
        raise UserError(f"{_named(connection)} is of type '{connection.kind}': a Slurm cluster needs 'ssh'.")
    if not connection.host:
        raise UserError(f"{_named(connection)} has no host: name the cluster's login node.")
    for field in connection.extra:
        if field not in (*_READ, *_WITHOUT_EFFECT):
            raise unknown_value("field", field, _READ, of=f"the extra of connection '{connection.name}'")
    options: dict[str, Any] = {
        "host": connection.host,
        "port": connection.port or DEFAULT_PORT,
        "known_hosts": _trusted(connection),
        "config": None,  # what is not in the connection does not count, whoever's home this is
    }
    if connection.login:
        options["username"] = connection.login
    if connection.password:
        options["password"] = connection.password
    if key := _private_key(connection):
        options["client_keys"] = [key]
    return options


def _private_key(connection: Connection) -> asyncssh.SSHKey | None:
    """The key to log in with; None where asyncssh is to look for the user's own."""
    passphrase = connection.extra.get("private_key_passphrase") or connection.extra.get("passphrase")
    field = "private_key" if connection.extra.get("private_key") else "key_file"
    value = connection.extra.get(field)
    if not value:
        return None
    try:
        if field == "private_key":
            return asyncssh.import_private_key(str(value), passphrase)
        return asyncssh.read_private_key(Path(str(value)).expanduser(), passphrase)
    except OSError as error:
        raise UserError(f"{_named(connection)}: key_file '{value}': {error.strerror}.") from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise UserError(
            f"{_named(connection)}: {field} in its extra is no usable key, or private_key_passphrase is not "
            f"its passphrase: {str(error).rstrip('.')}."
        ) from None


def _trusted(connection: Connection) -> Any:
    """The host keys to trust: the connection's own, its file's, or those of the user's known_hosts."""
    extra = connection.extra
    if str(extra.get("no_host_key_check", "")).lower() == "true":
        raise UserError(
            f"{_named(connection)}: no_host_key_check is true, and steptime always checks the host's key: "
            f"{_remedy(connection)}"
        )
    if extra.get("host_key"):
        words = str(extra["host_key"]).split()
        key = " ".join(words[:2]) if len(words) > 1 else f"ssh-rsa {words[0]}"
        try:
            return ([asyncssh.import_public_key(key)], [], [])
        except asyncssh.KeyImportError:
            raise UserError(
                f"{_named(connection)}: host_key in its extra is no public key: {_remedy(connection)}"
            ) from None
    path = Path(str(extra.get("known_hosts") or _KNOWN_HOSTS)).expanduser()
    if not path.is_file():
        raise UserError(
            f"{_named(connection)}: the key of host {address(connection)} is not known, and there is no file "
            f"{path}: {_remedy(connection)}"
        )
    return str(path)


def untrusted(connection: Connection, error: Exception) -> UserError:
    """The error where the host shows another key than those that are trusted."""
    return UserError(
        f"{_named(connection)}: the host {address(connection)} shows a key that is not trusted ({error}): if "
        f"it is new or was installed anew, {_remedy(connection)}"
    )


def _remedy(connection: Connection) -> str:
    port = f"-p {connection.port} " if connection.port else ""
    return (
        f"put what 'ssh-keyscan {port}{connection.host}' prints behind the host's name into host_key in the "
        "connection's extra, once its administrator has confirmed it."
    )


def _named(connection: Connection) -> str:
    return f"the connection '{connection.name}'"
