"""One connection and one poll per interval for each cluster, shared by all triggers that wait there."""

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from steptime.clusters.base import Cluster, JobState, JobStatus
from steptime.clusters.config import load_cluster, open_cluster
from steptime.clusters.connections import Connections
from steptime.errors import SystemFailure
from steptime.waiting import backoff_s

_FIRST_RETRY_S = 5.0
"""Used if the cluster's configuration cannot be read."""
_LONGEST_BACK_OFF_S = 60.0
_ANSWERED_AT_ONCE = 20
"""Jobs. Their logs are read next: all at once would hold up everything else on the event loop."""
_BREATH_S = 0.005
"""Pause between so many and the next, for others on the loop: a quarter of a second for a thousand."""


class ClusterWatch:
    """Polls one cluster for all waiting triggers; a failed poll raises in each, and polling continues."""

    def __init__(self, cluster_name: str, connections: Connections) -> None:
        self.members = 0
        self._cluster_name = cluster_name
        self._connections = connections
        self._cluster: Cluster | None = None
        self._waiting: dict[str, list[asyncio.Future[JobStatus]]] = {}
        # An empty context: log lines of a trigger carry its task instance, and this belongs to none.
        self._polling = asyncio.create_task(self._poll_for_ever(), context=contextvars.Context())

    async def next_status(self, job_name: str) -> tuple[Cluster, JobStatus]:
        """Return the open cluster and a job's status from the next poll. Raises SystemFailure if it fails."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_name, []).append(answer)
        status: JobStatus = await answer
        if self._cluster is None:
            raise SystemFailure(f"the connection to the cluster '{self._cluster_name}' was lost")
        return self._cluster, status

    async def close(self) -> None:
        """Stop polling and close the connection."""
        self._polling.cancel()
        await asyncio.wait([self._polling])

    async def _poll_for_ever(self) -> None:
        failures = 0
        interval_s = _FIRST_RETRY_S
        while True:
            try:
                config = load_cluster(self._cluster_name)
                interval_s = config.poll_interval_s
                async with open_cluster(config, self._connections) as self._cluster:
                    while True:
                        await asyncio.sleep(interval_s)
                        if asked := tuple(self._waiting):
                            # Jobs registered during this poll are included in the next one.
                            await self._answer(asked, await self._cluster.poll(asked))
                        failures = 0
            except Exception as error:  # whatever it is, those who wait get it, and polling goes on
                failures += 1
                await self._answer(tuple(self._waiting), error)
                await asyncio.sleep(
                    backoff_s(failures, first_s=2 * interval_s, longest_s=_LONGEST_BACK_OFF_S)
                )
            finally:
                self._cluster = None

    async def _answer(self, job_names: Sequence[str], outcome: Mapping[str, JobStatus] | Exception) -> None:
        for place, job_name in enumerate(job_names, start=1):
            if place % _ANSWERED_AT_ONCE == 0:
                await asyncio.sleep(_BREATH_S)
            for answer in self._waiting.pop(job_name):
                if answer.done():  # its trigger was cancelled
                    continue
                if isinstance(outcome, Exception):
                    failure = SystemFailure(str(outcome) or type(outcome).__name__)
                    failure.__cause__ = outcome
                    answer.set_exception(failure)
                else:
                    answer.set_result(outcome.get(job_name, JobStatus(state=JobState.UNKNOWN)))


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, ClusterWatch]] = (
    weakref.WeakKeyDictionary()
)


@asynccontextmanager
async def watch(cluster_name: str, connections: Connections) -> AsyncIterator[ClusterWatch]:
    """Share this event loop's watch of a cluster: the first user opens it, the last one closes it."""
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    if cluster_name not in watches:
        watches[cluster_name] = ClusterWatch(cluster_name, connections)
    shared = watches[cluster_name]
    shared.members += 1
    try:
        yield shared
    finally:
        shared.members -= 1
        if shared.members == 0:
            del watches[cluster_name]
            await shared.close()
