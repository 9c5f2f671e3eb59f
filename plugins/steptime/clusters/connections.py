"""The login data of a cluster; the caller decides where it is stored (in Airflow, in a test)."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.errors import UserError, one_line

_ADDRESS = re.compile(
    r"(?:ssh://)?(?:(?P<login>[^@\s]+)@)?(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:@\[\]\s/]+))"
    r"(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True)
class Connection:
    """Login data with the fields of Airflow's connections. Its repr shows no secrets."""

    name: str
    kind: str
    """Its type: `ssh` or `runai`."""
    host: str
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further fields of its type: a key file, a host key, a project."""


Connections = Callable[[str], Awaitable[Connection]]
"""Returns the connection of a name. Raises UserError if there is none, SystemFailure without an answer."""


async def no_connections(name: str) -> Connection:
    """Raise UserError for every login: for callers that open only clusters without login."""
    raise UserError(f"the connection '{name}' is stored in Airflow and not available here: use a DAG.")


def split_address(text: str) -> tuple[str, str, int | None]:
    """Split `[user@]host[:port]` into login, host and port, as OpenSSH does. Raises UserError.

    >>> split_address("me@[::1]:2222")
    ('me', '::1', 2222)
    >>> split_address("login1")
    ('', 'login1', None)
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"] or 1) not in range(1, 65536):
        raise UserError(
            f"'{one_line(text)}' is not a host address: write host, host:port, or [address]:port for IPv6"
        )
    return match["login"] or "", match["ipv6"] or match["host"], int(match["port"] or 0) or None
