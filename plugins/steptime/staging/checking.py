"""The one check of a plan: what passes it can be started, as far as anybody knows before it is staged."""

from collections.abc import Sequence

from steptime.clusters.config import check_permitted, check_runs
from steptime.recipes.models import Run
from steptime.recipes.planning import Plan, require_runnable
from steptime.staging.families import require_trainable


def check_plan(planned: Plan) -> None:
    """Raise UserError if the plan's cluster or the shipped trainer cannot run it; budgets are apart."""
    check_permitted(planned.all_runs)
    require_runnable(planned)
    check_runnable(planned.all_runs)


def check_runnable(runs: Sequence[Run]) -> None:
    """The same of single runs, but for what `require_runnable` has checked of their plan."""
    require_trainable(runs)
    check_runs(runs)
