"""Connections that steptime itself makes, for the Airflow of `steptime up`: a file that Airflow asks first.

It is read by Airflow's LocalFilesystemBackend (see `standalone_config`), anew whenever a connection is asked
for: what is kept here is known at once, whether Airflow runs or not. Connections that people make in the
UI are in Airflow's database, and are found if the file has none of their name.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from steptime import settings
from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure
from steptime.files import write_whole


def path() -> Path:
    """Return the file's path; only its owner can read the file."""
    return settings.airflow_home() / "connections.json"


def ensure() -> None:
    """Make the file, empty if there is none: Airflow complains about one that is missing."""
    with _changed():
        pass


def keep(connection: Connection) -> None:
    """Let Airflow know a connection, in place of one that the file has under its name."""
    with _changed() as connections:
        connections[connection.name] = {
            "conn_type": connection.kind,
            "host": connection.host,
            "port": connection.port,
            "login": connection.login,
            "password": connection.password,
            "extra_dejson": dict(connection.extra),
        }


def forget(name: str) -> None:
    """Take a connection away, if the file has it."""
    if path().exists():
        with _changed() as connections:
            connections.pop(name, None)


@contextmanager
def _changed() -> Iterator[dict[str, Any]]:
    """The connections by name, written back on leaving; one process at a time."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path().with_suffix(".lock")):
        try:
            connections = json.loads(path().read_bytes())
        except FileNotFoundError:
            connections = {}
        except ValueError:
            raise SystemFailure(f"{path()} is damaged: delete it, then run 'steptime slurm up'.") from None
        yield connections
        write_whole(path(), json.dumps(connections, indent=2), mode=0o600)
