"""Budgets as tasks keep them: commit before anything is submitted, and give back what has ended since.

Before a budget refuses, Airflow and the cluster are asked whether everything committed still is: a DAG run
that was deleted takes nothing back itself.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from steptime.airflow.connections import open_cluster
from steptime.airflow.states import LIVE, state_of_dag_run
from steptime.errors import SystemFailure
from steptime.recipes.models import Run
from steptime.results import charges
from steptime.results.budgets import BudgetExceeded
from steptime.runs.budgets import settle_ended

Info = Callable[[str], None]


def commit_plan(runs: Mapping[str, Sequence[Run]], *, held_by: str, info: Info) -> None:
    """Call `results.charges.commit_plan`, and again after giving back what is over. For tasks only."""
    try:
        budget_balances = charges.commit_plan(runs, held_by=held_by)
    except BudgetExceeded:
        clusters = {run.cluster for planned in runs.values() for run in planned}
        _withdraw_dead_plans(clusters)
        asyncio.run(_settle_all(clusters, info))
        budget_balances = charges.commit_plan(runs, held_by=held_by)
    for balance in budget_balances:
        info(str(balance))


async def _settle_all(clusters: Iterable[str], info: Info) -> None:
    for name in clusters:
        try:
            async with open_cluster(name) as cluster:
                await settle_ended(cluster)
        except SystemFailure as error:  # then all of it counts as committed
            info(f"cluster '{name}' cannot be asked which of its jobs have ended: {error}")


def _withdraw_dead_plans(clusters: Iterable[str]) -> None:
    """Withdraw plans of DAG runs that have ended or were deleted.

    A DAG run of another Airflow then commits each job by itself."""
    for cluster in clusters:
        _, holders = charges.open_commitments(cluster)
        dead = [holder for holder in holders if state_of_dag_run(*holder.split("/", 1)) not in LIVE]
        charges.withdraw_plans(dead, [cluster])
