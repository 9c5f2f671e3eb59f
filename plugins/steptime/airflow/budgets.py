"""Store a DAG run's plan and reserve its GPU-hours; release the GPU-hours of ended DAG runs.

A deleted DAG run does not release its reservations. So, before a budget refuses a request, Airflow and the
cluster are asked which reservations are still needed.
"""

import asyncio
from collections.abc import Sequence

from airflow.sdk import BaseOperator, Context

from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import this_installation
from steptime.clusters.config import load_cluster, open_cluster
from steptime.errors import SystemFailure
from steptime.runs.launch import record_ended_jobs
from steptime.store import budgets
from steptime.store.budgets import BudgetExceeded, Owner
from steptime.store.database import wait_for_store
from steptime.store.ledger import Ledger
from steptime.store.run_models import LedgerPlan

_LIVE = ["queued", "running"]
"""States of a DAG run that has not ended."""


def budget_owner(context: Context) -> Owner:
    """Return the DAG run of a task as the owner of reservations."""
    ti = context["ti"]
    return Owner(this_installation().id, ti.dag_id, ti.run_id)


def store_plan(task: BaseOperator, context: Context, planned: Sequence[LedgerPlan]) -> None:
    """Store planned runs in the job ledger, reserve their GPU-hours in the budgets, and log the budgets.

    If a budget is too small, reservations of ended DAG runs are released first, and the clusters are asked
    which jobs have ended, to count their actual time. Raises BudgetExceeded if that is not enough.
    """
    owner, warn = budget_owner(context), task.log.warning
    try:
        balances = wait_for_store(lambda: budgets.store_plan(owner, planned), warn)
    except BudgetExceeded:
        clusters = {plan.run.cluster for plan in planned}
        for other in budgets.list_reserving(owner.installation_id, clusters):
            of_run = [other.dag_run_id]
            if not context["ti"].get_dr_count(dag_id=other.dag_id, run_ids=of_run, states=_LIVE):
                budgets.release(other)
        for name in clusters:
            try:
                asyncio.run(_record_ended_jobs(name, task))
            except SystemFailure as error:  # then all of its jobs count as the most that they may take
                warn("cluster '%s' cannot be asked which of its jobs have ended: %s", name, error)
        balances = budgets.store_plan(owner, planned)
    for balance in balances:
        task.log.info("%s", balance)


async def _record_ended_jobs(name: str, task: BaseOperator) -> None:
    async with open_cluster(load_cluster(name), airflow_connection) as cluster:
        await record_ended_jobs(cluster, Ledger(task.log.warning))
