"""The logins of clusters, from Airflow's connections, for tasks and triggers."""

from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowRuntimeError

from steptime.airflow.versions import AirflowNotFoundException, get_connection
from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure, UserError


async def airflow_connection(name: str) -> Connection:
    """Return the Airflow connection `name`.

    Raises UserError if there is none, and SystemFailure if Airflow does not answer.
    """
    try:
        connection = await get_connection(name)
    except AirflowNotFoundException:
        raise UserError(
            f"Airflow has no connection '{name}': make it in the UI under Admin, Connections, or set "
            f"AIRFLOW_CONN_{name.upper()}."
        ) from None
    except AirflowRuntimeError as error:
        raise SystemFailure(f"Airflow did not return the connection '{name}': {error}") from None
    return as_connection(name, connection)


def as_connection(name: str, connection: AirflowConnection) -> Connection:
    """Convert an Airflow connection to steptime's `Connection`."""
    return Connection(
        name=name,
        kind=connection.conn_type or "",
        host=connection.host or "",
        port=connection.port,
        login=connection.login or "",
        password=connection.password or "",
        extra=connection.extra_dejson,
    )
