"""The pools of an Airflow, made and checked through its REST API."""

from collections.abc import Iterable

from steptime.airflow.slots import pools
from steptime.airflow.slots.names import Slots
from steptime.local_services import Announce
from steptime.service.rest import AirflowClient


def set_pools(client: AirflowClient, announce: Announce) -> None:
    """Set an Airflow's pools as in the clusters' files; `announce` gets a sentence for each broken file."""
    made, broken = pools.pools()
    for sentence in broken.sentences if broken is not None else ():
        announce(f"no pool of a cluster: {sentence}")
    client.set_pools([pool.model_dump(mode="json") for pool in made])


def require_pools(client: AirflowClient, slots: Iterable[Slots]) -> None:
    """Raise UserError if an Airflow has no pool that can ever give these slots: its tasks would wait."""
    pools.require_pools(client.pools().values(), slots, "a cell", f"Airflow at {client.url}")
