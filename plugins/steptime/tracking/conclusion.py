"""Sentences about a job that has ended without success: how it ended, and the causes in its log."""

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.clusters.config import load_cluster, open_cluster
from steptime.clusters.connections import Connections
from steptime.errors import SystemFailure, UserError
from steptime.frozen import Frozen

_TAIL_BYTES = 4096
_TAIL_LINES = 20
_HOW_IT_ENDED = {
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMED_OUT: "ran into its time limit",
}


class FailureReport(Frozen):
    """What is in the log of a failed job."""

    causes: str
    """In a sentence; empty if the log names none."""
    last_lines: str


async def find_causes(job: Job, connections: Connections) -> FailureReport:
    """Fetch a job's log and read it. A log that cannot be read is a failure without causes."""
    from steptime.clusters.collecting import collect_log
    from steptime.logs.reader import read_log

    try:
        async with open_cluster(load_cluster(job.cluster), connections) as cluster:
            path = await collect_log(cluster, job)
        log = read_log(path)
    except (UserError, SystemFailure) as error:  # ended before it began it has none; `parse` asks once more
        return FailureReport(causes="", last_lines=str(error))
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read().decode(errors="replace").replace("\r", "\n").splitlines()[-_TAIL_LINES:]
    causes = (problem.message for problem in log.problems if problem.fatal)
    return FailureReport(causes="; ".join(causes), last_lines="\n".join(tail))


def failed_end(job: Job, status: JobStatus, causes: str) -> str:
    """Describe a job that failed, was cancelled or ran into its time limit."""
    exit_code = "" if status.exit_code is None else f", exit code {status.exit_code}"
    return (
        f"job '{job.name}' {_HOW_IT_ENDED[status.state]}{_reason(status)}{exit_code}"
        f"{': ' + causes if causes else ''}; its log: {job.log_path}"
    )


def unknown_end(job: Job, status: JobStatus) -> str:
    """Describe a job that its cluster does not know any more."""
    return (
        f"the cluster '{job.cluster}' does not know job '{job.name}' any more{_reason(status)}: whether it "
        f"succeeded is not known; its log: {job.log_path}"
    )


def _reason(status: JobStatus) -> str:
    return f" ({status.reason})" if status.reason else ""
