"""Which attempt at a run this is: a retry of Airflow's comes to the same job, a cleared task to a new one.

The number is written into Airflow's task state store before anything is submitted, and the job's name
follows from it. A worker may therefore die at any point: the retry comes to the same name, and for a name
that it knows the cluster returns the job it has. Airflow raises `max_tries` of a task instance when somebody
clears it, and at no other time.

Clearing one mapped `wait` makes Airflow clear the `submit` of *every* mapped instance, because it is a setup.
A cleared `submit` therefore gets here only if the task that waits for its job was cleared, too.

Jobs are named after the installation, too (see `installation`), from the first attempt of a task on.

Resubmissions (see `resubmissions`) count on from there.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow.sdk import Context
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import PositiveInt, TypeAdapter

from steptime.airflow.base import end_job
from steptime.airflow.installation import is_this, this_installation
from steptime.clusters.base import Cluster, Installation, JobSpec, JobState, Staged
from steptime.clusters.config import ClusterConfig
from steptime.frozen import Frozen
from steptime.recipes.models import Run

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor

_KEY = "attempt"
_NAMED_AFTER = "installation"

SpecOf = Callable[[PositiveInt], JobSpec]
"""The job of each attempt, by its number."""


class StoredAttempt(Frozen):
    """What the task state store keeps of a mapped `submit` task."""

    number: PositiveInt
    max_tries: int
    """Airflow's, when the attempt began."""


def specs_of(
    run: Run, staged: Staged, config: ClusterConfig, context: Context, installation: Installation | None
) -> SpecOf:
    """Return the jobs of a run in this DAG run; every task of the run comes to the same names.

    `installation` is that of the run's first job: see `named_after`.
    """
    from steptime.clusters.jobscript import job_spec

    ti = context["ti"]
    identity = f"{ti.dag_id}/{ti.run_id}/{run.name}"
    started = int(context["dag_run"].run_after.timestamp())
    return lambda attempt: job_spec(
        run,
        staged,
        config,
        identity=identity,
        started=started,
        attempt=attempt,
        installation=installation,
    )


async def named_after(store: "TaskStateStoreAccessor") -> Installation:
    """Return the installation that names the jobs of this `submit` task, stored before any is submitted."""
    stored = await asyncio.to_thread(store.get, _NAMED_AFTER)
    kept = TypeAdapter(Installation | None).validate_python(stored)
    if kept is not None and await asyncio.to_thread(is_this, kept):
        return kept
    ours = await asyncio.to_thread(this_installation)  # if one was kept, this database is a copy of its
    await asyncio.to_thread(store.set, _NAMED_AFTER, ours.model_dump(mode="json"), retention=NEVER_EXPIRE)
    return ours


async def current_attempt(
    cluster: Cluster,
    store: "TaskStateStoreAccessor",
    max_tries: int,
    spec_of: SpecOf,
    *,
    left: Callable[[], str | None],
    info: Callable[[str], None],
) -> PositiveInt:
    """Return the number of the attempt whose job is to be submitted now, or found again.

    A job of an earlier attempt that still lives is ended first, so that no two ever run for the same cell;
    but not one that was `left` because the cluster was out of reach: that is waited for again.
    """
    stored = await asyncio.to_thread(store.get, _KEY)
    earlier = TypeAdapter(StoredAttempt | None).validate_python(stored)
    number = 1
    if earlier is not None:
        spec = spec_of(earlier.number)
        if earlier.max_tries == max_tries:
            stands = not await _was_cancelled(cluster, spec.name)
        else:
            stands = await _goes_on(cluster, await asyncio.to_thread(left))
        if stands:
            info(f"attempt {earlier.number} was begun before: its job is {spec.name}")
            return earlier.number
        info(f"attempt {earlier.number} is over (cleared or cancelled); its job is ended: {spec.name}")
        number = earlier.number
    number = await free_attempt(cluster, spec_of, number)
    attempt = StoredAttempt(number=number, max_tries=max_tries)
    await asyncio.to_thread(store.set, _KEY, attempt.model_dump(mode="json"), retention=NEVER_EXPIRE)
    return number


async def free_attempt(cluster: Cluster, spec_of: SpecOf, first: PositiveInt) -> PositiveInt:
    """Return the first attempt from `first` on of whose name the cluster has no job.

    Jobs of the names before it are ended if they live.
    """
    number = first
    while (job := await cluster.find(spec_of(number).name)) is not None:
        await end_job(cluster, job)
        number += 1
    return number


async def _goes_on(cluster: Cluster, left: str | None) -> bool:
    """Whether the job that was left lives, or has succeeded."""
    if left is None:
        return False
    state = (await cluster.poll([left]))[left].state
    return state.is_live or state is JobState.SUCCEEDED


async def _was_cancelled(cluster: Cluster, name: str) -> bool:
    if await cluster.find(name) is None:
        return False
    return (await cluster.poll([name]))[name].state is JobState.CANCELLED
