"""The cells of a sweep, checked as the DAGs that will run them do, and the pool slots that each takes."""

from collections.abc import Sequence

from steptime.airflow.slots.names import Slots
from steptime.airflow.slots.pools import pool_name, slots_for
from steptime.clusters.config import load_cluster
from steptime.recipes.config_problems import load_each, refuse
from steptime.recipes.sweep_planning import Cell, SweepPlan, plan_sweep
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.staging.checking import check_plan


def checked_sweep(name: str) -> tuple[SweepPlan, Sequence[Slots]]:
    """Plan a sweep of `config/sweeps`; return the plan and the slots of each cell, in their order.

    Raises UserError with all that its cells' DAGs would refuse.
    """
    planned = plan_sweep(load_sweep(name), check_plan)
    return planned, [slots_of(cell) for cell in planned.cells]


def check_all_sweeps() -> None:
    """Plan and check every sweep of `config/sweeps`. Raises UserError that names all that cannot be run."""
    _, broken = load_each(list_sweeps(), checked_sweep)
    refuse(broken)


def slots_of(cell: Cell) -> Slots:
    """Return the slots of a cell. Raises UserError for one that the cluster's pool can never give."""
    cluster = load_cluster(cell.request.cluster)
    what = f"sweep '{cell.sweep}': {cell.label}"
    return Slots(pool=pool_name(cluster.name), number=slots_for(cell.gpus, cell.gpus_at_once, cluster, what))
