"""Derive a job's state from Run:ai's phase and from what the job's pods wrote on the volume.

Run:ai knows whether pods run, but not how the script ended (exit code, time limit): each pod records that in
files on the volume, its notes. The phase shows whether the job has ended and succeeded; the notes show why,
when and on which node. A failure in the first pod's note overrules the phase.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.clusters.base import JobState, JobStatus, described_exit
from steptime.clusters.runai.answers import RunaiWorkload

MEANING: Mapping[str, JobState | None] = {
    # Accepted by the control plane; the cluster has not made its objects.
    "Creating": JobState.QUEUED,
    # Waits for the scheduler: quota, a free node. Also after a preemption.
    "Pending": JobState.QUEUED,
    # Has its nodes; images are pulled and volumes attached. It holds GPUs and cannot have failed yet.
    "Initializing": JobState.QUEUED,
    # Somebody woke a suspended workload: it queues anew. (The pods' notes forbid a second start.)
    "Resuming": JobState.QUEUED,
    "Running": JobState.RUNNING,
    # Its description is being changed while it runs.
    "Updating": JobState.RUNNING,
    # Still has pods, and so holds GPUs: it is over only when they are gone.
    "Stopping": JobState.RUNNING,
    "Deleting": JobState.RUNNING,
    "Terminating": JobState.RUNNING,
    # Some pods are missing or not as asked for. Often it passes; a training that has lost a pod only waits
    # for it, so after a while the backend ends it. Until then it is live.
    "Degraded": JobState.RUNNING,
    # The control plane has lost sight of the cluster. The job goes on there, so it is neither failed nor to
    # be submitted again; after a while nobody knows, and that is an error.
    "Unknown": JobState.RUNNING,
    # Suspended: it has no pods and its name is still taken. By us, or by somebody in Run:ai.
    "Stopped": None,
    "Failed": None,
    "Completed": None,
}
"""State of a job in each phase of Run:ai; None if it has ended. An unknown phase is treated as `Unknown`."""

ENDED = tuple(phase for phase, state in MEANING.items() if state is None)
"""Phases of workloads that have ended."""


@dataclass(frozen=True)
class PodEnd:
    """What a pod recorded when its script ended."""

    rank: int
    at: float
    exit_code: int
    how: str
    """How the pod ended: by `itself`, at the `time-limit`, or `told` by a SIGTERM."""


@dataclass(frozen=True)
class Stop:
    """What steptime recorded before it ended a workload: the job's resulting state, and the reason."""

    state: JobState
    reason: str


@dataclass(frozen=True)
class Notes:
    """What pods and steptime have recorded about a job on the volume: starts, ends, and a requested stop."""

    starts: Mapping[int, tuple[float, str]] = field(default_factory=dict)
    """Time and node of each pod's start, by rank."""
    ends: tuple[PodEnd, ...] = ()
    stop: Stop | None = None

    def started(self) -> dict[str, Any]:
        """Return the fields of a status that tell when the first pod started, and the nodes by rank."""
        return {
            "started_at": min((at for at, _ in self.starts.values()), default=None),
            "nodes": tuple(dict.fromkeys(node for _, (_, node) in sorted(self.starts.items()))),
        }


def workload_status(workload: RunaiWorkload, notes: Notes, *, time_limit_s: int) -> JobStatus:
    """Return the status of a job by its workload's phase and its pods' notes."""
    phase = workload.phase
    meaning = MEANING.get(phase, MEANING["Unknown"])
    times = notes.started()
    if meaning is JobState.QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=_why(workload) or phase.lower(), **times)
    if meaning is JobState.RUNNING:
        reason = "" if phase == "Running" else f"{phase.lower()}: {_why(workload)}".removesuffix(": ")
        return JobStatus(state=JobState.RUNNING, reason=reason, **times)
    times["ended_at"] = _end_time(workload, notes)
    if phase == "Completed":
        return _completed(notes, times)
    if phase == "Failed":
        return _failed(workload, notes, times, time_limit_s)
    return _stopped(
        notes, notes.stop or Stop(JobState.CANCELLED, "stopped in Run:ai, not by steptime"), times
    )


def vanished(name: str, notes: Notes, *, where: str) -> JobStatus:
    """Return the status of a job that is gone from Run:ai: as recorded if steptime ended it, else UNKNOWN.

    `where` is the cluster's name.
    """
    times = notes.started()
    if notes.stop is not None:
        return _stopped(notes, notes.stop, times)
    return JobStatus(
        state=JobState.UNKNOWN,
        reason=f"the workload of job {name} is gone from {where}, deleted by somebody else",
        **times,
    )


def _completed(notes: Notes, times: dict[str, Any]) -> JobStatus:
    """Return the status of a job that Run:ai calls completed: failed if the first pod recorded a failure."""
    first = next((end for end in notes.ends if end.rank == 0), None)
    if first is not None and first.exit_code:
        return JobStatus(
            state=JobState.FAILED, reason=_exit_reason(first), exit_code=first.exit_code, **times
        )
    return JobStatus(state=JobState.SUCCEEDED, exit_code=0, **times)


def _failed(workload: RunaiWorkload, notes: Notes, times: dict[str, Any], time_limit_s: int) -> JobStatus:
    bad = _culprit(notes)
    if notes.stop is not None:
        # Ended at our request, which Run:ai reports in another way.
        return _stopped(notes, notes.stop, times)
    if bad is None or bad.how == "told":
        # Not the script's own doing: its node went away, it was preempted or evicted, or it never started.
        reason = _why(workload) or "Run:ai calls it failed and gives no reason"
        described = f"pod {bad.rank} was ended from outside: {reason}" if bad else reason
        return JobStatus(state=JobState.FAILED, reason=described, cluster_fault=bool(notes.starts), **times)
    if bad.how == "time-limit":
        reason = f"the time limit of {time_limit_s} s was reached"
        return JobStatus(state=JobState.TIMED_OUT, reason=reason, **times)
    return JobStatus(state=JobState.FAILED, reason=_exit_reason(bad), exit_code=bad.exit_code, **times)


def _stopped(notes: Notes, stop: Stop, times: dict[str, Any]) -> JobStatus:
    """Return the status of a job that steptime ended; if `stop` says FAILED, the cluster is to blame."""
    before = "" if notes.starts else " before it started"
    fault = stop.state is JobState.FAILED
    return JobStatus(state=stop.state, reason=f"{stop.reason}{before}", cluster_fault=fault, **times)


def _culprit(notes: Notes) -> PodEnd | None:
    """Return the pod that failed first on its own, else the first that failed when told to end, else None."""
    failed = (end for end in notes.ends if end.exit_code)
    return min(failed, key=lambda end: (end.how == "told", end.at), default=None)


def _exit_reason(end: PodEnd) -> str:
    reason = described_exit(end.exit_code)
    return reason if end.rank == 0 else f"pod {end.rank}: {reason}"


def _end_time(workload: RunaiWorkload, notes: Notes) -> float | None:
    """Return when the last pod ended, by its own note or else by Run:ai."""
    last_pod_at = max((end.at for end in notes.ends), default=None)
    return last_pod_at or workload.completed_at or workload.phase_updated_at


def _why(workload: RunaiWorkload) -> str:
    """Return Run:ai's own explanation of the phase, in one line."""
    messages = [workload.phase_message or ""]
    messages += [condition.message or "" for condition in workload.conditions or ()]
    return " ".join(next((text for text in messages if text.strip()), "").split())
