"""The file with the connections that steptime creates for the Airflow of `steptime up`.

Airflow's LocalFilesystemBackend reads it (see `standalone_config`) whenever a connection is looked up, so a
change takes effect at once. Connections created in the UI are in Airflow's database, which is used if the
file has no connection of that name.
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
    """Return the path of the file with the connections that steptime creates; only its owner can read it."""
    return settings.airflow_home() / "connections.json"


def ensure() -> None:
    """Create an empty file of connections if there is none: Airflow logs an error for a missing file."""
    with _changed():
        pass


def keep(connection: Connection) -> None:
    """Add a connection to the file of connections, or replace the one with its name."""
    with _changed() as connections:
        connections[connection.name] = {
            "conn_type": connection.kind,
            "host": connection.host,
            "port": connection.port,
            "login": connection.login,
            "password": connection.password,
            "extra_dejson": dict(connection.extra),
        }


def find(name: str) -> Connection | None:
    """Return the connection of that name from the file of connections; None if it is not there.

    Raises SystemFailure if the file is damaged.
    """
    try:
        entry = json.loads(path().read_bytes()).get(name)
    except FileNotFoundError:
        return None
    except ValueError:
        raise _damaged() from None
    if entry is None:
        return None
    return Connection(
        name=name,
        kind=entry["conn_type"],
        host=entry["host"],
        port=entry["port"],
        login=entry["login"],
        password=entry["password"],
        extra=entry["extra_dejson"],
    )


def forget(name: str) -> None:
    """Remove the connection of that name from the file of connections, if it is there."""
    if path().exists():
        with _changed() as connections:
            connections.pop(name, None)


@contextmanager
def _changed() -> Iterator[dict[str, Any]]:
    """Yield the connections by name, and write them back on exit; one process at a time."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path().with_suffix(".lock")):
        try:
            connections = json.loads(path().read_bytes())
        except FileNotFoundError:
            connections = {}
        except ValueError:
            raise _damaged() from None
        yield connections
        write_whole(path(), json.dumps(connections, indent=2), mode=0o600)


def _damaged() -> SystemFailure:
    return SystemFailure(f"{path()} is damaged: delete it, then run 'steptime slurm up'.")
