"""Resubmit a run whose job the cluster failed: a node died, it was preempted, it was never launched.

The task that waits resubmits: only it knows why the last job ended. The attempt's number and the nodes to
avoid are in the task's state store before anything is submitted, so that a worker may die at any point and
the retry comes to the same job. A failure of the training itself is never resubmitted.
"""

import asyncio
from typing import TYPE_CHECKING

from airflow.sdk import Context
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import PositiveInt, TypeAdapter

from steptime.airflow.attempts import free_attempt, specs_of
from steptime.airflow.base import HoldsJob
from steptime.airflow.connections import patiently
from steptime.airflow.installation import require_own
from steptime.clusters.base import Job, JobStatus
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.results.models import Submitted

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor

_KEY = "fresh_job"  # a stored name


class Resubmission(Frozen):
    """What the task state store keeps of a `wait` task once the cluster has failed a job of its run."""

    instead_of: str
    """The job that `submit` returned; once that is another one, after a clear, this record is void."""
    attempt: PositiveInt
    count: PositiveInt
    """Of resubmissions, this one included."""
    avoided_nodes: tuple[str, ...] = ()
    """Those that failed under earlier jobs."""


async def latest_job(task: HoldsJob, submitted: Submitted, context: Context) -> Submitted:
    """Return the job to wait for: that of `submit`, or the one that this task has resubmitted since.

    Raises UserError if the job is of another installation.
    """
    await asyncio.to_thread(require_own, submitted.job)
    resubmission = await _kept(context["task_state_store"], submitted)
    return submitted if resubmission is None else await _submit(task, submitted, resubmission, context)


async def resubmit(
    task: HoldsJob, submitted: Submitted, job: Job, status: JobStatus, context: Context
) -> Submitted | None:
    """Resubmit the run of a job that the cluster failed; None if the cluster's file allows no more.

    Args:
        task: the task that waits; it holds the new job.
        submitted: what `submit` returned.
        job: the last job of the run.
        status: how it ended.
        context: of the task.

    Raises:
        UserError: the cluster cannot run it without the nodes that failed.
        OutOfReach: the cluster does not answer any more; a retry comes to the same job.
    """
    config = load_cluster(job.cluster)
    store = context["task_state_store"]
    before = await _kept(store, submitted)
    count = 0 if before is None else before.count
    if count >= config.resubmissions:
        return None
    avoided = () if before is None else before.avoided_nodes
    avoided = tuple(dict.fromkeys((*avoided, *status.failed_nodes)))
    last = submitted.attempt if before is None else before.attempt
    staged, whose = submitted.made_by.staged, submitted.job.installation
    spec_of = specs_of(submitted.run, staged, config, context, whose)
    attempt = await patiently(
        config, lambda cluster: free_attempt(cluster, spec_of, last + 1), task.log.warning
    )
    resubmission = Resubmission(
        instead_of=submitted.job.name, attempt=attempt, count=count + 1, avoided_nodes=avoided
    )
    await asyncio.to_thread(store.set, _KEY, resubmission.model_dump(mode="json"), retention=NEVER_EXPIRE)
    task.log.warning(
        "the cluster failed job %s (%s): resubmitting the run, %d of at most %d times%s",
        job.name,
        status.reason,
        resubmission.count,
        config.resubmissions,
        f", without {', '.join(avoided)}" if avoided else "",
    )
    return await _submit(task, submitted, resubmission, context)


async def _kept(store: "TaskStateStoreAccessor", submitted: Submitted) -> Resubmission | None:
    stored = await asyncio.to_thread(store.get, _KEY)
    resubmission = TypeAdapter(Resubmission | None).validate_python(stored)
    return None if resubmission is None or resubmission.instead_of != submitted.job.name else resubmission


async def _submit(
    task: HoldsJob, submitted: Submitted, resubmission: Resubmission, context: Context
) -> Submitted:
    """Submit the job of a resubmission, or find it."""
    config = load_cluster(submitted.job.cluster)
    run = config.avoiding(submitted.run, resubmission.avoided_nodes)
    staged, whose = submitted.made_by.staged, submitted.job.installation
    spec = specs_of(run, staged, config, context, whose)(resubmission.attempt)
    try:
        job = await task.submit_patiently(
            config, lambda cluster: task.submit_held(cluster, run, spec, context), run
        )
    except UserError as refused:  # for example, it needs all the nodes that there are
        without = f" without {', '.join(resubmission.avoided_nodes)}" if resubmission.avoided_nodes else ""
        raise UserError(f"the run cannot be resubmitted{without}: {refused}") from None
    return submitted.model_copy(update={"job": job, "attempt": resubmission.attempt})
