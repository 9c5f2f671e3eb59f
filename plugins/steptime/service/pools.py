"""The pools of an Airflow, made and checked through its REST API."""

from collections.abc import Callable, Iterable

from steptime.airflow.pools import UNLIMITED, pool_of
from steptime.airflow.sweep.runs import Slots
from steptime.clusters.config import list_clusters, load_cluster
from steptime.errors import UserError
from steptime.service.rest import AirflowClient


def set_pools(client: AirflowClient, report: Callable[[str], None]) -> None:
    """Set an Airflow's pools to what the clusters' files say; `report` is told of a file that is broken."""
    made = []
    for name in list_clusters():
        try:
            made.append(pool_of(load_cluster(name)).model_dump(mode="json"))
        except UserError as error:
            report(f"no pool for sweeps on cluster '{name}': {error}")
    client.set_pools(made)


def require_pools(client: AirflowClient, slots: Iterable[Slots]) -> None:
    """Raise UserError where an Airflow has no pool that can ever give these slots: its tasks would wait."""
    pools = client.pools()
    make = "'steptime sweep pools > pools.json' and there 'airflow pools import pools.json' make it"
    for wanted in slots:
        pool = pools.get(wanted.pool)
        if pool is None:
            raise UserError(f"Airflow at {client.url} has no pool '{wanted.pool}': {make}.")
        if UNLIMITED != pool.slots < wanted.number:
            raise UserError(
                f"the pool '{pool.name}' of Airflow at {client.url} has {pool.slots} slots, and a cell takes "
                f"{wanted.number}: {make} as the cluster's file says."
            )
        if not pool.include_deferred:
            raise UserError(
                f"the pool '{pool.name}' of Airflow at {client.url} leaves out deferred tasks, and so bounds "
                f"nothing: {make} anew."
            )
