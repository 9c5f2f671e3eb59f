"""How long a cluster may be out of reach before that is a failure; until then it is a warning in the log."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig, open_cluster
from steptime.clusters.connections import Connections
from steptime.durations import duration
from steptime.errors import OutOfReach

_LONGEST_PAUSE_S = 60.0
_WARNED_AGAIN_WITHIN_S = 600.0

Done = TypeVar("Done")


class Silence:
    """Counts for how long a cluster has not answered, and warns, less and less often."""

    def __init__(self, cluster_name: str, patience_s: float, warn: Callable[[str], None]) -> None:
        self._cluster_name = cluster_name
        self._patience_s = patience_s
        self._warn = warn
        self._answered_at = time.monotonic()
        self._warned_at: float | None = None

    def answered(self) -> None:
        """Note that the cluster has answered."""
        now = time.monotonic()
        if self._warned_at is not None:
            self._warn(
                f"the cluster '{self._cluster_name}' answers again, after {duration(now - self._answered_at)}"
            )
        self._answered_at, self._warned_at = now, None

    def missed(self, error: Exception) -> None:
        """Note that the cluster has not answered. Raises OutOfReach after longer than its patience."""
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


async def patiently(
    config: ClusterConfig,
    connections: Connections,
    work: Callable[[Cluster], Awaitable[Done]],
    warn: Callable[[str], None],
) -> Done:
    """Do `work` with the open cluster; begin it anew, with growing pauses, while that is out of reach.

    Whatever `work` does may be done twice. Raises OutOfReach when the cluster's `patience_h` is over.
    """
    silence = Silence(config.name, config.patience_h * 3600, warn)
    pause_s = 1.0
    while True:
        try:
            async with open_cluster(config, connections) as cluster:
                return await work(cluster)
        except OutOfReach as away:
            silence.missed(away)
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
