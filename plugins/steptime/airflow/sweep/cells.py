"""A sweep planned and checked as the DAGs that will run its cells do it."""

from steptime.recipes.config_problems import load_each, refuse
from steptime.recipes.sweep_planning import SweepPlan, plan_sweep
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.staging.checking import check_plan


def checked_sweep(name: str) -> SweepPlan:
    """Plan a sweep of `config/sweeps`. Raises UserError with all that its cells' DAGs would refuse."""
    return plan_sweep(load_sweep(name), check_plan)


def check_all_sweeps() -> None:
    """Plan and check every sweep of `config/sweeps`. Raises UserError that names all that cannot be run."""
    _, broken = load_each(list_sweeps(), checked_sweep)
    refuse(broken)
