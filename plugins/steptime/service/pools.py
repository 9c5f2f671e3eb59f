"""The pools of an Airflow, made and checked through its REST API."""

from collections.abc import Callable, Iterable

from steptime.airflow.pools import UNLIMITED, pools
from steptime.airflow.sweep.runs import Slots
from steptime.errors import UserError
from steptime.service.rest import AirflowClient


def set_pools(client: AirflowClient, report: Callable[[str], None]) -> None:
    """Set an Airflow's pools to what the clusters' files say; `report` is told of a file that is broken."""
    made, broken = pools()
    for sentence in broken.sentences if broken is not None else ():
        report(f"no pool for sweeps of a cluster: {sentence}")
    client.set_pools([pool.model_dump(mode="json") for pool in made])


def require_pools(client: AirflowClient, slots: Iterable[Slots]) -> None:
    """Raise UserError where an Airflow has no pool that can ever give these slots: its tasks would wait."""
    existing = client.pools()
    make = "'steptime sweep pools > pools.json' and there 'airflow pools import pools.json' make it"
    for wanted in slots:
        pool = existing.get(wanted.pool)
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
