"""A fresh job for a run whose job the cluster failed: a node died, it was preempted, it was never launched.

The task that waits submits it, as the job before is over and nobody else knows why. Which job that is, and
which nodes it is to stay away from, is in the task's state store before anything is submitted: a worker may
die at any point, and the retry comes to the same job. A failure of the training itself never gets here.
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

_KEY = "fresh_job"


class FreshJob(Frozen):
    """What the task state store keeps of a `wait` task once the cluster has failed a job of its run."""

    instead_of: str
    """Name of the job that `submit` handed on; after a clear it is another one, and this counts no more."""
    attempt: PositiveInt
    count: PositiveInt
    """How many fresh jobs there have been, this one included."""
    avoided_nodes: tuple[str, ...] = ()
    """Those that failed under the jobs before."""


async def latest_job(task: HoldsJob, submission: Submitted, context: Context) -> Submitted:
    """What to wait for: the submission of `submit`, or the fresh job that this task has submitted since.

    Raises UserError where the job is of another installation.
    """
    await asyncio.to_thread(require_own, submission.job)
    fresh = await _kept(context["task_state_store"], submission)
    return submission if fresh is None else await _submit(task, submission, fresh, context)


async def replace_job(
    task: HoldsJob, submission: Submitted, job: Job, status: JobStatus, context: Context
) -> Submitted | None:
    """Submit a fresh job in place of the one that ended so; None where the cluster's file allows no more.

    Args:
        task: the task that waits; it holds the fresh job.
        submission: what `submit` handed on.
        job: the last job of the run, which the cluster failed.
        status: how it ended.
        context: of the task.

    Raises:
        UserError: the cluster cannot run it without the nodes that failed.
        OutOfReach: the cluster cannot be asked any more; a retry comes to the same job.
    """
    config = load_cluster(job.cluster)
    store = context["task_state_store"]
    before = await _kept(store, submission)
    count = 0 if before is None else before.count
    if count >= config.fresh_jobs:
        return None
    avoided = () if before is None else before.avoided_nodes
    avoided = tuple(dict.fromkeys((*avoided, *status.failed_nodes)))
    last = submission.attempt if before is None else before.attempt
    staged, whose = submission.made_by.staged, submission.job.installation
    spec_of = specs_of(submission.run, staged, config, context, whose)
    attempt = await patiently(
        config, lambda cluster: free_attempt(cluster, spec_of, last + 1), task.log.warning
    )
    fresh = FreshJob(instead_of=submission.job.name, attempt=attempt, count=count + 1, avoided_nodes=avoided)
    await asyncio.to_thread(store.set, _KEY, fresh.model_dump(mode="json"), retention=NEVER_EXPIRE)
    task.log.warning(
        "the cluster failed job %s (%s): a fresh one is submitted, %d of at most %d%s",
        job.name,
        status.reason,
        fresh.count,
        config.fresh_jobs,
        f", which stays away from {', '.join(avoided)}" if avoided else "",
    )
    return await _submit(task, submission, fresh, context)


async def _kept(store: "TaskStateStoreAccessor", submission: Submitted) -> FreshJob | None:
    stored = await asyncio.to_thread(store.get, _KEY)
    fresh = TypeAdapter(FreshJob | None).validate_python(stored)
    return None if fresh is None or fresh.instead_of != submission.job.name else fresh


async def _submit(task: HoldsJob, submission: Submitted, fresh: FreshJob, context: Context) -> Submitted:
    """Submit the fresh job, or find it."""
    config = load_cluster(submission.job.cluster)
    run = config.avoiding(submission.run, fresh.avoided_nodes)
    staged, whose = submission.made_by.staged, submission.job.installation
    spec = specs_of(run, staged, config, context, whose)(fresh.attempt)
    try:
        job = await patiently(
            config, lambda cluster: task.submit_held(cluster, run, spec, context), task.log.warning
        )
    except UserError as refused:  # as where a run needs all the nodes that there are
        without = f" without {', '.join(fresh.avoided_nodes)}" if fresh.avoided_nodes else ""
        raise UserError(f"no fresh job{without} could be submitted: {refused}") from None
    return submission.model_copy(update={"job": job, "attempt": fresh.attempt})
