"""The pools of an Airflow, made and checked through its REST API."""

import time
from collections.abc import Iterable

from steptime.airflow.slots import pools
from steptime.airflow.slots.names import Slots
from steptime.errors import SystemFailure
from steptime.local_services import Announce
from steptime.service.rest import AirflowClient

_WITHIN_S = 120.0
"""Longer than writers of the database wait for each other."""
_POLL_S = 0.5


def set_pools(client: AirflowClient, announce: Announce) -> None:
    """Set an Airflow's pools as in the clusters' files; `announce` gets a sentence for each broken file.

    Airflow is asked again for two minutes: others may write to its database for long.
    """
    made, broken = pools.pools()
    for sentence in broken.sentences if broken is not None else ():
        announce(f"no pool of a cluster: {sentence}")
    wanted = [pool.model_dump(mode="json") for pool in made]
    deadline, announced = time.monotonic() + _WITHIN_S, False
    while True:
        try:
            return client.set_pools(wanted)
        except SystemFailure:
            if time.monotonic() > deadline:
                raise
        if not announced:
            announce("setting the pools again, as Airflow did not")
            announced = True
        time.sleep(_POLL_S)


def require_pools(client: AirflowClient, slots: Iterable[Slots]) -> None:
    """Raise UserError if an Airflow has no pool that can ever give these slots: its tasks would wait."""
    pools.require_pools(client.pools().values(), slots, "a cell", f"Airflow at {client.url}")
