"""The cells of a sweep, checked as the DAGs that will run them do, and the pool slots that each takes."""

from collections.abc import Sequence

from steptime.airflow.slots.names import Slots
from steptime.airflow.slots.pools import pool_name, slots_for
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.recipes.config_problems import load_each, refuse
from steptime.recipes.sweep_planning import Cell, SweepPlan, plan_sweep, runs_of
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.staging.checking import check_runnable


def checked_slots(sweep: SweepPlan) -> Sequence[Slots]:
    """The slots of each cell, in their order. Raises UserError for one that its DAG would refuse."""
    return [slots_of(cell) for cell in sweep.cells]


def check_all_sweeps() -> None:
    """Plan and check every sweep of `config/sweeps`. Raises UserError that names all that cannot be run."""
    _, broken = load_each(list_sweeps(), lambda name: checked_slots(plan_sweep(load_sweep(name))))
    refuse(broken)


def slots_of(cell: Cell) -> Slots:
    """The slots of a cell. Raises UserError if its DAG would refuse it."""
    what = f"sweep '{cell.sweep}': {cell.label}"
    try:
        check_runnable(runs_of(cell))
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    cluster = load_cluster(cell.request.cluster)
    return Slots(pool=pool_name(cluster.name), number=slots_for(cell.gpus, cell.gpus_at_once, cluster, what))
