"""The one check of a plan: what passes it can be started, as far as anybody knows before it is staged."""

from steptime.clusters.config import check_permitted, check_runs
from steptime.recipes.planning import Plan, require_runnable
from steptime.staging.families import require_trainable


def check_plan(planned: Plan) -> None:
    """Raise UserError if the plan's cluster or the shipped trainer cannot run it; budgets are apart."""
    check_permitted(planned.all_runs)
    require_runnable(planned)
    require_trainable(planned.all_runs)
    check_runs(planned.all_runs)
