"""Which attempt at a run this is: a retry of Airflow's comes to the same job, a cleared task to a new one.

The number is written into Airflow's task state store before anything is submitted, and the job's name
follows from it. A worker may therefore die at any point: the retry comes to the same name, and the cluster
gives a name it knows the job that it has. Airflow raises `max_tries` of a task instance when somebody
clears it, and at no other time.

Clearing one mapped `wait` makes Airflow clear the `submit` of *every* mapped instance, because it is a setup.
A cleared `submit` therefore begins a new attempt only if the task that waits for its job runs again, too.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import TypeAdapter

from steptime.airflow.base import end_job
from steptime.clusters.base import Cluster, JobSpec, JobState
from steptime.frozen import Frozen

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor

_KEY = "attempt"


class Attempt(Frozen):
    """What the task state store keeps of a mapped `submit` task."""

    number: int
    max_tries: int
    """Airflow's, when the attempt began."""


async def spec_of_attempt(
    cluster: Cluster,
    store: "TaskStateStoreAccessor",
    max_tries: int,
    spec_of: Callable[[int], JobSpec],
    *,
    will_be_waited_for: Callable[[], bool],
    say: Callable[[str], None],
) -> JobSpec:
    """The job to submit now, or to find again.

    A job of an earlier attempt that still lives is ended first, so that no two ever run for the same cell.
    """
    stored = await asyncio.to_thread(store.get, _KEY)
    earlier = TypeAdapter(Attempt | None).validate_python(stored)
    number = 1
    if earlier is not None:
        spec = spec_of(earlier.number)
        if earlier.max_tries == max_tries:
            stands = not await _was_cancelled(cluster, spec.name)
        else:
            stands = not await asyncio.to_thread(will_be_waited_for)
        if stands:
            say(f"attempt {earlier.number} was begun before: its job is {spec.name}")
            return spec
        if (job := await cluster.find(spec.name)) is not None:
            say(f"attempt {earlier.number} is over (cleared or cancelled); its job is ended: {spec.name}")
            await end_job(cluster, job)
        number = earlier.number + 1
    # A name may be taken by a DAG run of the same id that was deleted: its job is not ours.
    while await cluster.find(spec_of(number).name) is not None:
        number += 1
    attempt = Attempt(number=number, max_tries=max_tries)
    await asyncio.to_thread(store.set, _KEY, attempt.model_dump(mode="json"), retention=NEVER_EXPIRE)
    return spec_of(number)


async def _was_cancelled(cluster: Cluster, name: str) -> bool:
    if await cluster.find(name) is None:
        return False
    return (await cluster.poll([name]))[name].state is JobState.CANCELLED
