"""Connections for the command line, wherever this machine's Airflow keeps them."""

import asyncio
import json
import os
import sys

from steptime import settings
from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure, UserError
from steptime.service import connection_file
from steptime.service.standalone_config import child_environment

_TIMEOUT_S = 180
_NOT_FOUND = "Connection not found"


async def airflow_connection(name: str) -> Connection:
    """Return the Airflow connection `name`.

    It is looked up in the file of connections that steptime creates, then by the command `airflow connections
    get`, which knows the environment, secrets backends and the database. The command uses the Airflow that
    `steptime up` has set up or, if there is none, that of AIRFLOW_HOME.

    Raises UserError if there is no such connection or no Airflow, SystemFailure if the command fails.
    """
    if (connection := connection_file.find(name)) is not None:
        return connection
    environment = _environment()
    if environment is None:
        raise UserError(
            f"there is no Airflow on this machine to look up the connection '{name}': start one with "
            f"'steptime up' and create the connection there, under Admin, Connections, or set AIRFLOW_HOME "
            "to that of your own Airflow."
        )
    return await _ask_airflow(name, environment)


def _environment() -> dict[str, str] | None:
    """Return the environment variables of the Airflow to ask; None if there is no Airflow."""
    if (settings.airflow_home() / "airflow.cfg").exists():
        return child_environment()
    return dict(os.environ) if "AIRFLOW_HOME" in os.environ else None


async def _ask_airflow(name: str, environment: dict[str, str]) -> Connection:
    """Return a connection by the command `airflow connections get`; errors as in `airflow_connection`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "airflow", "connections", "get", name, "--output", "json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SystemFailure(
            f"'airflow connections get {name}' did not answer within {_TIMEOUT_S} s"
        ) from None
    if process.returncode:
        lines = (stderr or stdout).decode(errors="replace").strip().splitlines()
        if any(_NOT_FOUND in line for line in lines):
            raise UserError(
                f"Airflow has no connection '{name}': make it in the UI under Admin, Connections, or set "
                f"AIRFLOW_CONN_{name.upper()}."
            )
        raise SystemFailure(f"'airflow connections get {name}' failed: {lines[-1] if lines else 'no output'}")
    answer = next(line for line in stdout.splitlines() if line.startswith(b"[{"))  # other lines are logs
    [entry] = json.loads(answer)
    return Connection(
        name=name,
        kind=entry["conn_type"] or "",
        host=entry["host"] or "",
        port=int(entry["port"]) if entry["port"] else None,
        login=entry["login"] or "",
        password=entry["password"] or "",
        extra=entry["extra_dejson"] or {},
    )
