"""Translate an Airflow connection of kind `ssh` into a login for asyncssh. Host keys are always checked.

Fields of `extra` are named as in Airflow's SSH provider, so that steptime and the provider can share a
connection. Those that the provider does not have are mostly named like OpenSSH's options. The connection's
fields override its `ssh_config`.
"""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.public_key import CERT_TYPE_USER

from steptime.clusters.connections import Connection, split_address
from steptime.errors import LoginRefused, UserError, one_line, unknown_value

_DEFAULT_PORT = 22
_CONNECT_TIMEOUT_S = 15.0
_KEEPALIVE_S = 15
"""Seconds between keep-alive messages; a connection that leaves three in a row unanswered is closed."""
_KNOWN_HOSTS = "~/.ssh/known_hosts"

_READ = (
    *("key_file", "private_key", "private_key_passphrase", "passphrase", "certificate_file", "certificate"),
    *("host_key", "host_ca_key", "known_hosts", "no_host_key_check"),
    *("conn_timeout", "jump_connections", "ssh_config"),
)
_WITHOUT_EFFECT = (  # of Airflow's SSH provider; none of them decides to whom a secret goes
    *("allow_host_key_change", "ciphers", "cmd_timeout", "compress"),
    *("disabled_algorithms", "ignore_hostkey_verification", "look_for_keys"),
)
_OF_EVERY_HOP = ("ssh_config", "known_hosts", "conn_timeout", "private_key_passphrase", "passphrase")
"""Fields that also apply to the hosts of a ProxyJump; keys, passwords and host keys belong to one host."""

_NOT_FROM_SSH_CONFIG: dict[str, Any] = {
    # Airflow's environment has its secrets, its agent its keys, and commands are steptime's own.
    **{"send_env": None, "env": None, "agent_forwarding": False, "x11_forwarding": False},
    **{"command": None, "request_pty": False},
    "keepalive_interval": _KEEPALIVE_S,
}


@dataclass(frozen=True)
class Login:
    """A login to one host on the way to a cluster, ready for asyncssh."""

    title: str
    """The host's name in messages: `the jump host gate.example.org:22 (connection 'gate')`."""
    connection: Connection
    host: str
    port: int
    user: str
    options: Mapping[str, Any] = field(repr=False)
    """The arguments of `asyncssh.connect`, except `tunnel`."""
    jumps: tuple[Connection, ...]
    """The hosts of the ProxyJump in its ssh_config, the outermost first."""
    remedy: str
    """What to do if the host shows a key that is not trusted."""
    timeout_s: float
    """Most seconds for connecting and logging in together."""
    certificates: tuple[asyncssh.SSHCertificate, ...]
    """The user's certificates for this login."""


def at_address(connection: Connection, address: str) -> Connection:
    """Return a copy of the connection that leads to `[user@]host[:port]`. Raises UserError if malformed."""
    login, host, port = split_address(address)
    return replace(connection, host=host, port=port or connection.port, login=login or connection.login)


def jump_connections(connection: Connection) -> tuple[str, ...]:
    """Return the connection names of this host's jump hosts, outermost first.

    Raises UserError if the field `jump_connections` is not a list of names.
    """
    value = connection.extra.get("jump_connections") or ()
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{_named(connection)}: jump_connections in its extra is not a list of connection names."
        )
    return tuple(name.strip() for name in names)


def read_login(connection: Connection, role: str = "login node") -> Login:
    """Return the login that a connection describes, reading its keys. Raises UserError if it is invalid."""
    if connection.kind != "ssh":
        raise UserError(f"{_named(connection)} is of type '{connection.kind}': a Slurm cluster needs 'ssh'.")
    if not connection.host:
        raise UserError(f"{_named(connection)} has no host: name the cluster's {role}.")
    for name in connection.extra:
        if name not in (*_READ, *_WITHOUT_EFFECT):
            raise unknown_value("field", name, _READ, of=f"the extra of connection '{connection.name}'")
    file = _ssh_config(connection)
    certificate = _certificate(connection)
    options: dict[str, Any] = {
        "host": connection.host,
        "port": connection.port or (() if file else _DEFAULT_PORT),
        "config": file,  # without one nothing else counts, whoever's home this is
        "passphrase": _passphrase(connection),
        **_NOT_FROM_SSH_CONFIG,
    }
    if connection.login:
        options["username"] = connection.login
    if connection.password:
        options["password"] = connection.password
    if key := _private_key(connection):
        options["client_keys"] = [key]
    if certificate:
        options["client_certs"] = [certificate]
    try:
        read = asyncssh.SSHClientConnectionOptions(**options)
    except (OSError, ValueError) as error:  # a key, a certificate or a line of ssh_config
        where = f"its ssh_config '{file}'" if file else "the keys of this user"
        raise UserError(f"{_named(connection)}: {where}: {describe_error(error)}.") from None
    certified = {pair.public_data: pair.algorithm for pair in read.client_keys or () if pair.has_cert}
    if certificate and certificate.public_data not in certified:
        raise UserError(
            f"{_named(connection)}: its certificate does not belong to its key: name a matching pair."
        )
    trusted = _trusted(connection, read)
    host = f"[{read.host}]" if ":" in read.host else read.host
    return Login(
        title=f"the {role} {host}:{read.port} ({_source(connection, file)})",
        connection=connection,
        host=read.host,
        port=read.port,
        user=read.username,
        options={**options, "known_hosts": trusted, "connect_timeout": None},
        jumps=_proxy_jump(connection, read.tunnel),
        remedy=_remedy(connection, read),
        timeout_s=_connect_timeout_s(connection) or float(read.connect_timeout or _CONNECT_TIMEOUT_S),
        certificates=tuple(
            asyncssh.import_certificate(algorithm + b" " + base64.b64encode(data))
            for data, algorithm in certified.items()
        ),
    )


def error_for_untrusted_key(login: Login, error: Exception, via: str) -> LoginRefused:
    """Return the error for a host whose key is not trusted; `via` is the route to it."""
    return LoginRefused(
        f"{login.title}{via} shows a key that is not trusted ({error}): if it is new or was installed anew, "
        f"{login.remedy}"
    )


def error_for_refused_login(login: Login, reason: str, via: str) -> LoginRefused:
    """Return the error for a host that refuses this login; it says whether each certificate looks valid."""
    doubts = "".join(f"; {_doubt(certificate, login.user)}" for certificate in login.certificates)
    where = login.options["config"] or "the connection"
    return LoginRefused(
        f"{login.title}{via} refuses the login '{one_line(login.user)}': {one_line(reason)}; see to its key "
        f"or password in {where}{doubts}"
    )


def _doubt(certificate: Any, user: str) -> str:
    """Return what may be wrong with a certificate that was refused, as far as this machine can tell."""
    try:
        certificate.validate(CERT_TYPE_USER, user)
    except ValueError as error:
        return f"its certificate for {one_line(', '.join(certificate.principals) or 'anybody')}: {error}"
    return "its certificate is in order here: the host may not trust the authority that signed it"


def _ssh_config(connection: Connection) -> str | None:
    """Return the path of the connection's OpenSSH client configuration; None if it names none."""
    value = connection.extra.get("ssh_config")
    if not value:
        return None
    path = _path(connection, "ssh_config", value)
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"{_named(connection)}: ssh_config '{one_line(value)}': {error.strerror}.") from None
    return str(path)


def _proxy_jump(connection: Connection, jumps: object) -> tuple[Connection, ...]:
    """Return the hosts of a ProxyJump, which have their own options in the same file."""
    if not isinstance(jumps, str):
        return ()
    shared = {name: value for name, value in connection.extra.items() if name in _OF_EVERY_HOP}
    bare = replace(connection, port=None, login="", password="", extra=shared)
    try:
        return tuple(at_address(bare, hop) for hop in jumps.split(","))
    except UserError as error:
        raise UserError(f"{_named(connection)}: ProxyJump in its ssh_config: {error}") from None


def _private_key(connection: Connection) -> asyncssh.SSHKey | None:
    """Return the key to log in with; None to let asyncssh look for the user's own keys."""
    field = "private_key" if connection.extra.get("private_key") else "key_file"
    value = connection.extra.get(field)
    if not value:
        return None
    try:
        if field == "private_key":
            return asyncssh.import_private_key(str(value), _passphrase(connection))
        return asyncssh.read_private_key(_path(connection, field, value), _passphrase(connection))
    except OSError as error:
        raise UserError(f"{_named(connection)}: key_file '{value}': {error.strerror}.") from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise UserError(
            f"{_named(connection)}: {field} in its extra is not a usable key, or private_key_passphrase is "
            f"not its passphrase: {str(error).rstrip('.')}."
        ) from None


def _passphrase(connection: Connection) -> str | None:
    return connection.extra.get("private_key_passphrase") or connection.extra.get("passphrase") or None


def _certificate(connection: Connection) -> Any:
    """Return the user's certificate: the one in `extra`, else `<key_file>-cert.pub` as ssh does, or None.

    The file beside the key is not read if `extra` has a `private_key`. Raises UserError for a certificate
    that cannot be read.
    """
    extra = connection.extra
    named = "certificate" if extra.get("certificate") else "certificate_file"
    value = extra.get(named)
    if not value and extra.get("key_file") and not extra.get("private_key"):
        beside = Path(f"{_path(connection, 'key_file', extra['key_file'])}-cert.pub")
        value = beside if beside.is_file() else None
    if not value:
        return None
    try:
        if named == "certificate":
            return asyncssh.import_certificate(str(value))
        return asyncssh.read_certificate(_path(connection, named, value))
    except OSError as error:
        raise UserError(
            f"{_named(connection)}: certificate_file '{one_line(value)}': {error.strerror}."
        ) from None
    except asyncssh.KeyImportError:
        what = "certificate in its extra" if named == "certificate" else f"'{one_line(str(value))}'"
        raise UserError(
            f"{_named(connection)}: {what} is not an ssh certificate, which begins like "
            "'ssh-ed25519-cert-v01@openssh.com AAAA…'."
        ) from None


def _connect_timeout_s(connection: Connection) -> float | None:
    value = connection.extra.get("conn_timeout")
    try:
        return float(value) if value else None
    except (TypeError, ValueError):
        raise UserError(
            f"{_named(connection)}: conn_timeout in its extra is not a number of seconds."
        ) from None


def _trusted(connection: Connection, read: asyncssh.SSHClientConnectionOptions) -> Any:
    """Return the trusted host keys: the connection's own, else from known_hosts files. Raises UserError."""
    extra = connection.extra
    remedy = _remedy(connection, read)
    if str(extra.get("no_host_key_check", "")).lower() == "true":
        raise UserError(
            f"{_named(connection)}: no_host_key_check is true, and steptime always checks the host's key: "
            f"{remedy}"
        )
    if extra.get("host_key") or extra.get("host_ca_key"):
        keys = _public_keys(connection, "host_key", remedy)
        return (keys, _public_keys(connection, "host_ca_key", remedy), [])
    if not extra.get("known_hosts") and read.known_hosts is None:
        raise UserError(
            f"{_named(connection)}: UserKnownHostsFile is none for {read.host} in its ssh_config, and "
            "steptime always checks the host's key: name a file there."
        )
    files = _known_hosts(connection, read)
    existing = [str(file) for file in files if file.is_file()]
    if not existing:
        raise UserError(
            f"{_named(connection)}: the key of host {read.host} is not known, and there is no file "
            f"{one_line(', '.join(map(str, files)))}: {remedy}"
        )
    try:
        return asyncssh.read_known_hosts(existing)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{_named(connection)}: {', '.join(existing)} cannot be read: {describe_error(error)}. Write its "
            "lines as ssh-keyscan prints them."
        ) from None


def _known_hosts(connection: Connection, read: asyncssh.SSHClientConnectionOptions) -> list[Path]:
    """Return the paths of the known_hosts files, whether they exist or not."""
    named = connection.extra.get("known_hosts")
    names = [str(named)] if named else cast(list[str], read.known_hosts) or [_KNOWN_HOSTS]
    return [_path(connection, "known_hosts", name) for name in names]


def _public_keys(connection: Connection, field: str, remedy: str) -> list[asyncssh.SSHKey]:
    """Return a field's public keys, one per line; a key without a type is RSA, as in the SSH provider."""
    keys = []
    for line in filter(str.strip, str(connection.extra.get(field) or "").splitlines()):
        parts = line.split()[:2]
        typed = parts if len(parts) > 1 else ("ssh-rsa", *parts)
        try:
            keys.append(asyncssh.import_public_key(" ".join(typed)))
        except asyncssh.KeyImportError:
            raise UserError(
                f"{_named(connection)}: {field} in its extra is not a public key: {remedy}"
            ) from None
    return keys


def _remedy(connection: Connection, read: asyncssh.SSHClientConnectionOptions) -> str:
    port = f"-p {read.port} " if read.port != _DEFAULT_PORT else ""
    keyscan = f"what 'ssh-keyscan {port}{read.host}' prints"
    if connection.extra.get("ssh_config"):  # whose hosts are more than the one that host_key is for
        alias = f", as {read.host_key_alias}," if read.host_key_alias else ""
        put = f"add {keyscan}{alias} to {_known_hosts(connection, read)[0]}"
    else:
        put = (
            f"put {keyscan} behind the host's name into host_key in the extra of connection "
            f"'{connection.name}'"
        )
    return f"{put}, once its administrator has confirmed it."


def _source(connection: Connection, file: str | None) -> str:
    return f"connection '{connection.name}'" + (f", {file}" if file else "")


def _path(connection: Connection, field: str, value: object) -> Path:
    """Return the file that a field names. Raises UserError if its `~user` does not exist here."""
    try:
        return Path(str(value)).expanduser()
    except RuntimeError:
        raise UserError(
            f"{_named(connection)}: {field} '{one_line(value)}': this machine has no such user: write the "
            "whole path."
        ) from None


def _named(connection: Connection) -> str:
    return f"the connection '{connection.name}'"


def describe_error(error: Exception | str) -> str:
    """Describe an error in one line: the system's message and the file, or else its own text."""
    if isinstance(error, OSError) and error.strerror:
        refused = isinstance(error, ConnectionError) and error.errno  # asyncio's own text is longer than true
        message = os.strerror(refused) if refused else error.strerror
        return one_line(f"{error.filename}: {message}" if error.filename else message, at_most=300)
    return one_line(str(error).rstrip(".") or type(error).__name__, at_most=300)
