"""Retry while a cluster is unreachable or accepts no jobs, and give up when its patience is over."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig, open_cluster
from steptime.clusters.connections import Connections
from steptime.errors import LoginRefused, OutOfReach, Overdue, SubmitLimit, UserError
from steptime.waiting import backoff_s, duration

_LONGEST_PAUSE_S = 60.0
_LONGEST_PAUSE_AT_A_LIMIT_S = 300.0
_WARNED_AGAIN_WITHIN_S = 600.0

Done = TypeVar("Done")


class Outage:
    """Measures for how long a cluster has not answered, and warns at growing intervals."""

    def __init__(self, cluster_name: str, patience_s: float, warn: Callable[[str], None]) -> None:
        self._cluster_name = cluster_name
        self._patience_s = patience_s
        self._warn = warn
        self._answered_at = time.monotonic()
        self._warned_at: float | None = None

    def answered(self) -> None:
        """Record that the cluster answered; warn that it does so again after an outage."""
        now = time.monotonic()
        if self._warned_at is not None:
            self._warn(
                f"the cluster '{self._cluster_name}' answers again, after {duration(now - self._answered_at)}"
            )
        self._answered_at, self._warned_at = now, None

    def missed(self, error: Exception) -> None:
        """Record that the cluster did not answer. Raises OutOfReach after more than `patience_s` of that."""
        now = time.monotonic()
        silent_s = now - self._answered_at
        if silent_s > self._patience_s:
            raise OutOfReach(
                f"the cluster '{self._cluster_name}' has been out of reach for {duration(silent_s)}, and "
                f"patience_h in its file allows {duration(self._patience_s)}: {error}"
            ) from error
        if self._warned_at is None or now - self._warned_at >= min(silent_s / 2, _WARNED_AGAIN_WITHIN_S):
            self._warned_at = now
            until = datetime.fromtimestamp(time.time() + self._patience_s - silent_s, UTC)
            self._warn(
                f"the cluster '{self._cluster_name}' is out of reach for {duration(silent_s)}; it is asked "
                f"again until {until:%d %b %H:%M} UTC, and what runs there runs on: {error}"
            )


class SubmitQueue:
    """Measures for how long a submit limit has refused jobs, and warns when the cluster's reason changes."""

    def __init__(self, cluster_name: str, patience_s: float, warn: Callable[[str], None]) -> None:
        self._cluster_name = cluster_name
        self._patience_s = patience_s
        self._warn = warn
        self._since: float | None = None
        self._reason = ""

    def refused(self, limit: SubmitLimit) -> None:
        """Record that a submit limit refused the job. Raises Overdue after more than `patience_s` of that."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        refused_s = now - self._since
        if refused_s > self._patience_s:
            raise Overdue(
                f"{limit}. steptime has tried to submit the job for {duration(refused_s)}, and "
                f"queue_patience_h of cluster '{self._cluster_name}' allows {duration(self._patience_s)}. "
                "Raise queue_patience_h in the cluster's file, or wait until fewer jobs queue, and clear "
                "this task."
            ) from limit
        if str(limit) != self._reason:
            self._reason = str(limit)
            since = datetime.fromtimestamp(time.time() - refused_s, UTC)
            until = since + timedelta(seconds=self._patience_s)
            self._warn(
                f"{limit}. It waits since {since:%d %b %H:%M} UTC and is submitted again until "
                f"{until:%d %b %H:%M} UTC (queue_patience_h of cluster '{self._cluster_name}')"
            )


async def retry_while_unreachable(
    config: ClusterConfig,
    connections: Connections,
    work: Callable[[Cluster], Awaitable[Done]],
    warn: Callable[[str], None],
    was_reached: Callable[[], Awaitable[bool]] | None = None,
) -> Done:
    """Call `work` with the open cluster; retry after growing pauses while the cluster is unavailable.

    It is unavailable if it is out of reach or a submit limit is reached. `work` must be idempotent.
    `was_reached` returns whether the login has worked before, and is called when a login is refused; without
    it, a refused login counts as out of reach.

    Raises:
        UserError: the cluster refuses the login, and was never reached before.
        OutOfReach: the cluster has not answered for its `patience_h`.
        Overdue: it has refused the job at a submit limit for its `queue_patience_h`.
    """
    silence = Outage(config.name, config.patience_h * 3600, warn)
    queue = SubmitQueue(config.name, config.queue_patience_h * 3600, warn)
    failures = 0
    while True:
        longest_s = _LONGEST_PAUSE_S
        try:
            async with open_cluster(config, connections) as cluster:
                return await work(cluster)
        except OutOfReach as away:
            if isinstance(away, LoginRefused) and was_reached is not None and not await was_reached():
                raise UserError(str(away)) from None
            silence.missed(away)
        except SubmitLimit as limit:
            silence.answered()
            queue.refused(limit)
            longest_s = _LONGEST_PAUSE_AT_A_LIMIT_S
        failures += 1
        await asyncio.sleep(backoff_s(failures, longest_s=longest_s))
