"""Budgets of jobs: commit before a job is submitted, and give back what has ended since."""

import asyncio

from steptime.clusters.base import Cluster
from steptime.recipes.models import Run
from steptime.results import charges
from steptime.results.budgets import BudgetExceeded


async def commit_job(cluster: Cluster, run: Run, job_name: str, *, dag_run: str) -> None:
    """Call `results.charges.commit_job`, and again after giving back what has ended."""
    try:
        await asyncio.to_thread(charges.commit_job, run, job_name, dag_run=dag_run)
    except BudgetExceeded:
        await settle_ended(cluster)
        await asyncio.to_thread(charges.commit_job, run, job_name, dag_run=dag_run)


async def settle_ended(cluster: Cluster) -> None:
    """Count those of a cluster's committed jobs that have ended as what they took."""
    jobs, _ = await asyncio.to_thread(charges.open_commitments, cluster.name)
    if jobs:
        await asyncio.to_thread(charges.settle_jobs, await cluster.poll(sorted(jobs)))
