"""What a backend needs to log in to a cluster. Who keeps it (Airflow, a test) is told from outside."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.errors import UserError


@dataclass(frozen=True)
class Connection:
    """A login, in the fields that Airflow's connections have. What is secret does not show in its repr."""

    name: str
    kind: str
    """`ssh`, `runai`."""
    host: str
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What its kind has beside: a key file, a host key, a project."""


Connections = Callable[[str], Awaitable[Connection]]
"""Gives the connection of a name; UserError where there is none, SystemFailure where nobody answers."""


async def no_connections(name: str) -> Connection:
    """For those who open only clusters that need no login."""
    raise UserError(f"the connection '{name}' is kept by Airflow: let a DAG do this.")
