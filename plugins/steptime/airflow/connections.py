"""Open clusters in tasks and triggers, with the logins in Airflow's connections."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowRuntimeError

from steptime.airflow.versions import AirflowNotFoundException, get_connection
from steptime.clusters import config
from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig
from steptime.clusters.connections import Connection
from steptime.errors import SystemFailure, UserError
from steptime.runs import patience

Done = TypeVar("Done")


def open_cluster(cluster: ClusterConfig | str) -> Cluster:
    """Return the cluster with this name or configuration, for `async with`; logins come from Airflow.

    Raises UserError if there is no valid file for the name.
    """
    cluster_config = config.load_cluster(cluster) if isinstance(cluster, str) else cluster
    return config.open_cluster(cluster_config, airflow_connection)


async def patiently(
    config: ClusterConfig,
    work: Callable[[Cluster], Awaitable[Done]],
    warn: Callable[[str], None],
    was_reached: Callable[[], bool] = lambda: True,
) -> Done:
    """Call `work` with the open cluster, retrying while it is unavailable.

    The logins are those of Airflow's connections. `runs.patience.patiently` has the limits and the errors.
    """
    return await patience.patiently(config, airflow_connection, work, warn, was_reached)


async def airflow_connection(name: str) -> Connection:
    """Return the Airflow connection `name`.

    Raises UserError if there is none, and SystemFailure if Airflow does not answer.
    """
    try:
        kept = await get_connection(name)
    except AirflowNotFoundException:
        raise UserError(
            f"Airflow has no connection '{name}': make it in the UI under Admin, Connections, or set "
            f"AIRFLOW_CONN_{name.upper()}."
        ) from None
    except AirflowRuntimeError as error:
        raise SystemFailure(f"Airflow did not return the connection '{name}': {error}") from None
    return as_connection(name, kept)


def as_connection(name: str, kept: AirflowConnection) -> Connection:
    """Convert an Airflow connection to steptime's `Connection`."""
    return Connection(
        name=name,
        kind=kept.conn_type or "",
        host=kept.host or "",
        port=kept.port,
        login=kept.login or "",
        password=kept.password or "",
        extra=kept.extra_dejson,
    )
