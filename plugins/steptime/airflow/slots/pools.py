"""Airflow pools that count GPUs: one for each cluster, for what runs there.

A waiting task holds as many slots as its run has GPUs. It is deferred while it waits, so deferred tasks must
count (`include_deferred`): without that a pool would bound nothing.
"""

from collections.abc import Iterable

from pydantic import Field

from steptime.airflow.slots.names import Pool, Slots
from steptime.clusters.config import ClusterConfig, load_clusters
from steptime.errors import BrokenFiles, UserError
from steptime.frozen import Frozen

UNLIMITED = -1
"""Airflow's word for a pool without bounds."""


class ClusterPool(Frozen):
    """The pool of a cluster, as Airflow's REST API and `airflow pools import` take it."""

    name: str
    slots: int = Field(ge=UNLIMITED)
    description: str
    include_deferred: bool = True


def pool_name(cluster: str) -> str:
    """Return the name of a cluster's pool."""
    return f"gpus_{cluster}"


def pool_of(config: ClusterConfig) -> ClusterPool:
    """Return the pool of a cluster: a slot for each of its GPUs, unbounded if its file has no `gpus`."""
    gpus = config.gpu_count
    return ClusterPool(
        name=pool_name(config.name),
        slots=UNLIMITED if gpus is None else gpus,
        description=f"GPUs of cluster {config.name} that runs may use at once",
    )


def pools() -> tuple[list[ClusterPool], BrokenFiles | None]:
    """Return the pools of the clusters whose files are whole, and what is wrong with the others."""
    clusters, broken = load_clusters()
    return [pool_of(cluster) for cluster in clusters], broken


def require_pools(pools: Iterable[Pool], slots: Iterable[Slots], what: str, whose: str) -> None:
    """Raise UserError if no pool can ever give these slots: tasks would wait for ever.

    Args:
        pools: those that an Airflow has.
        slots: what is to be taken of them.
        what: who takes that, `a cell`.
        whose: the Airflow, as people call it.
    """
    found = {pool.name: pool for pool in pools}
    make = "'steptime sweep pools > pools.json' and there 'airflow pools import pools.json' make it"
    for wanted in slots:
        pool = found.get(wanted.pool)
        if pool is None:
            raise UserError(f"{whose} has no pool '{wanted.pool}': {make}.")
        if UNLIMITED != pool.slots < wanted.number:
            raise UserError(
                f"the pool '{wanted.pool}' of {whose} has {pool.slots} slots, and {what} takes "
                f"{wanted.number}: {make} as in the cluster's file."
            )
        if not pool.include_deferred:
            raise UserError(
                f"the pool '{wanted.pool}' of {whose} leaves out deferred tasks, and so bounds "
                f"nothing: {make} anew."
            )


def slots_for(gpus: int, gpus_at_once: int, cluster: ClusterConfig, what: str) -> int:
    """Return the slots that `what` takes. Raises UserError if its largest job exceeds the cluster.

    If its jobs together exceed the cluster it takes all of it: the cluster's queue runs them in turn.
    """
    limit = cluster.gpu_count
    if limit is not None and gpus > limit:
        raise UserError(
            f"{what} needs {gpus} GPUs at once and cluster '{cluster.name}' has {limit}: ask for fewer, or "
            "correct the cluster's file."
        )
    return gpus_at_once if limit is None else min(gpus_at_once, limit)
