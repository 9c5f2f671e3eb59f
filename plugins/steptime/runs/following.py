"""Follow a job: log its progress, and enforce the limits on how long it may queue and run.

All triggers that wait on a cluster share one connection, and one poll per interval.
"""

import asyncio
import contextvars
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from steptime.clusters.base import Cluster, Job, JobState, JobStatus
from steptime.clusters.config import ClusterConfig, load_cluster, open_cluster
from steptime.clusters.connections import Connections
from steptime.errors import Overdue, SystemFailure
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.runs.log_following import LogFollower
from steptime.runs.patience import Outage
from steptime.waiting import backoff_s, duration

_GRACE_S = 3600.0
"""Grace period after the time limit, in which the cluster ends the job and reports it."""

_UNKNOWN_FOR_S = 30.0
"""A job counts as lost if its cluster has not known it for this long: clusters may learn of it late."""

_FIRST_RETRY_S = 5.0
"""Poll interval until the cluster's file could be read; the pause before the first retry is twice as long."""
_LONGEST_BACK_OFF_S = 60.0
_ANSWERED_AT_ONCE = 20
"""Jobs that are answered between two pauses: all reading their logs at once would block the event loop."""
_BREATH_S = 0.005
"""Pause between two such groups of jobs: a quarter of a second for a thousand jobs."""


class WaitLimits(Frozen):
    """Time limits of waiting for a job, in seconds."""

    patience_s: float
    """Seconds for which the cluster may be out of reach."""
    queue_s: float
    """Seconds for which the job may wait, be held or be suspended."""
    run_s: float
    """Seconds that the job may run, including its start and a grace period."""


def wait_limits(run: Run, config: ClusterConfig) -> WaitLimits:
    """Return the limits on waiting for a run's job, from the run and the cluster's file."""
    return WaitLimits(
        patience_s=config.patience_h * 3600,
        queue_s=config.queue_patience_h * 3600,
        run_s=run.time_limit_s + config.seconds_before_training + _GRACE_S,
    )


async def follow(
    run: Run,
    job: Job,
    limits: WaitLimits,
    connections: Connections,
    *,
    info: Callable[[str], None],
    warn: Callable[[str], None],
) -> JobStatus:
    """Follow a job to its end, logging its states and training steps; return its last status.

    That is UNKNOWN if the cluster no longer knows the job.

    Args:
        run: what the job trains.
        job: the submitted job.
        limits: how long to wait for it.
        connections: returns the login of its cluster by name.
        info: gets each line of progress.
        warn: gets what needs attention.

    Raises:
        Overdue: the job exceeds one of its limits.
        OutOfReach: the cluster has not answered for longer than its patience.
    """
    log = LogFollower(run, job, info=info, warn=warn)
    follower = JobFollower(job, limits, log, info=info, warn=warn)
    try:
        async with watch(job.cluster, connections) as shared:
            while True:
                try:
                    cluster, status = await shared.next_status(job.name)
                except Exception as error:
                    follower.missed(error)
                    continue
                if (ended := await follower.observe(cluster, status)) is not None:
                    return ended
    finally:
        await log.stop()


class JobFollower:
    """Follows one job through the polls of its cluster, and logs its progress.

    `info` gets one line at a time, `warn` what needs attention. Only the polls decide whether the cluster is
    reachable; `log` reads the training's log separately.
    """

    def __init__(
        self,
        job: Job,
        limits: WaitLimits,
        log: LogFollower,
        *,
        info: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._job = job
        self._limits = limits
        self._log = log
        self._info = info
        self._silence = Outage(job.cluster, limits.patience_s, warn)
        self._last_logged: tuple[JobState, str] | None = None
        self._unknown_since: float | None = None
        self._phase: JobState | None = None
        self._seen_at = 0.0
        """When the job was last seen, by the monotonic clock."""
        self._lasted_s = dict.fromkeys((JobState.QUEUED, JobState.RUNNING), 0.0)
        self._started_at: float | None = None
        """Start time according to the cluster; it changes if the job is requeued."""

    async def observe(self, cluster: Cluster, status: JobStatus) -> JobStatus | None:
        """Process a poll's status and new log lines; return the status once the job has ended, else None.

        A job that its cluster has not known for a while counts as ended, with the status UNKNOWN. Raises
        Overdue if the job exceeds one of its time limits.
        """
        self._silence.answered()
        if status.state is not JobState.UNKNOWN:
            self._unknown_since = None
        elif self._unknown_since is None or time.monotonic() - self._unknown_since < _UNKNOWN_FOR_S:
            self._unknown_since = self._unknown_since or time.monotonic()
            self._log_state(status)
            return None
        if not status.state.is_live:
            await self._log.finish(cluster)
            self._log_state(status)
            return status
        self._log_state(status)
        self._check_limits(status)
        if status.state is not JobState.QUEUED:
            await self._log.look(cluster)
        return None

    def missed(self, error: Exception) -> None:
        """Record that a poll failed. Raises OutOfReach if polls have failed for too long."""
        self._silence.missed(error)

    def _log_state(self, status: JobStatus) -> None:
        now = (status.state, status.reason)
        if now == self._last_logged:
            return
        self._last_logged = now
        line = f"job {self._job.name}: {status.state}"
        if status.state is JobState.RUNNING and status.started_at is not None:
            line += f" since {datetime.fromtimestamp(status.started_at, UTC):%H:%M:%S} UTC"
            if status.nodes:
                line += f" on {', '.join(status.nodes)}"
        if status.exit_code is not None:
            line += f", exit code {status.exit_code}"
        self._info(f"{line}, {status.reason}" if status.reason else line)

    def _check_limits(self, status: JobStatus) -> None:
        """Raise Overdue if the job has queued or run for longer than allowed.

        Both are measured between polls by the monotonic clock of this machine, so that clock changes cannot
        end a job. A suspended job counts as queued, and its running time is paused.
        """
        now, phase = time.monotonic(), status.state
        if phase is self._phase:
            self._lasted_s[phase] += now - self._seen_at
        elif phase is JobState.QUEUED:
            is_new = self._phase is None and not status.nodes
            self._lasted_s[phase] = max(0.0, time.time() - self._job.submitted_at) if is_new else 0.0
        if status.started_at is not None and status.started_at != self._started_at:
            self._started_at, self._lasted_s[JobState.RUNNING] = status.started_at, 0.0
        self._phase, self._seen_at = phase, now
        lasted_s = self._lasted_s[phase]
        limits, job, cluster = self._limits, self._job.name, self._job.cluster
        why = f" ({status.reason})" if status.reason else ""
        if phase is JobState.QUEUED and lasted_s > limits.queue_s:
            raise Overdue(
                f"job '{job}' has waited in the queue for {duration(lasted_s)}{why}, and queue_patience_h of "
                f"cluster '{cluster}' allows {duration(limits.queue_s)}, so steptime ends it. "
                "Raise queue_patience_h in the cluster's file, or choose fewer or other nodes, and clear "
                "'submit'."
            )
        if phase is JobState.RUNNING and lasted_s > limits.run_s:
            raise Overdue(
                f"job '{job}' has been running for {duration(lasted_s)}{why}, longer than its time limit "
                f"plus {duration(_GRACE_S)} of grace ({duration(limits.run_s)}), and cluster '{cluster}' has "
                "not ended it, so steptime ends it. See on the cluster why, raise the run's time_limit if it "
                "needs more, and clear 'submit'."
            )


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
        """Wait for the next poll; return the open cluster and the job's status.

        Raises SystemFailure if the poll fails.
        """
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
                        if job_names := tuple(self._waiting):
                            # Jobs registered during this poll are included in the next one.
                            await self._answer(job_names, await self._cluster.poll(job_names))
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
        for number, job_name in enumerate(job_names, start=1):
            if number % _ANSWERED_AT_ONCE == 0:
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
