"""A sweep as its DAG sees it: the cells of each group of tasks, by cluster and number of pool slots.

Pool and pool slots belong to a task and not to its mapped instances, so cells that take the same number of
slots of the same pool are mapped instances of one task. Which groups there are follows from the sweeps' files
when the DAG file is read; which cells are in them, when the sweep is run.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pydantic import PositiveInt

from steptime.airflow.params import plan_from_params
from steptime.airflow.pools import slots_for
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.recipes.sweep_planning import Cell, SweepPlan, plan_sweep
from steptime.recipes.sweeps import list_sweeps, load_sweep


class Group(Frozen):
    """Cells that take the same number of slots of one cluster's pool."""

    cluster: str
    slots: PositiveInt

    @property
    def group_id(self) -> str:
        """The task group's id, `local_2_gpus`."""
        return f"{re.sub(r'[^a-zA-Z0-9_-]', '_', self.cluster)}_{self.slots}_gpus"


def grouped(plan: SweepPlan) -> dict[Group, list[Cell]]:
    """The cells of a plan by group, the largest first. Raises UserError where one exceeds its cluster."""
    groups: defaultdict[Group, list[Cell]] = defaultdict(list)
    for cell in plan.cells:
        cluster = load_cluster(cell.request.cluster)
        slots = slots_for(cell.gpus, cell.gpus_at_once, cluster, f"sweep '{plan.sweep}': {cell.label}")
        groups[Group(cluster=cluster.name, slots=slots)].append(cell)
    return {group: groups[group] for group in in_order(groups)}


def checked_cells(plan: SweepPlan) -> dict[Group, list[Cell]]:
    """`grouped`, after each cell was checked as the DAG that will run it does. Raises UserError."""
    for cell in plan.cells:
        try:
            plan_from_params(cell.request.workload, cell.request.model_dump(mode="json"))
        except UserError as error:
            raise UserError(f"sweep '{plan.sweep}': {cell.label}: {error}") from None
    return grouped(plan)


def all_groups() -> list[Group]:
    """The groups of all sweeps. A sweep that cannot be run has none: its own check says why."""
    found: set[Group] = set()
    for name in list_sweeps():
        try:
            found |= set(grouped(plan_sweep(load_sweep(name))))
        except UserError:
            continue
    return in_order(found)


def in_order(groups: Sequence[Group] | Mapping[Group, object] | set[Group]) -> list[Group]:
    """By cluster, the largest first."""
    return sorted(groups, key=lambda group: (group.cluster, -group.slots))
