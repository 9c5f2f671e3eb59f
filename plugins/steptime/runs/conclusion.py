"""Describe a job that ended without success: how it ended, and the causes of failure in its log."""

import math
import re

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.clusters.collecting import collect_log
from steptime.clusters.config import load_cluster, open_cluster
from steptime.clusters.connections import Connections
from steptime.errors import SystemFailure, UserError
from steptime.files import open_regular
from steptime.frozen import Frozen
from steptime.logs.reader import read_log
from steptime.recipes.node_lists import expand_nodes

_TAIL_BYTES = 4096
_TAIL_LINES = 20
_MOST_NODES = 100_000
"""Most nodes that are kept: a log may name any number of them."""
_HOW_IT_ENDED = {
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMED_OUT: "timed out",
}


class FailureReport(Frozen):
    """The causes of failure that a job's log shows."""

    causes: str
    """Causes of failure in one sentence; empty if the log names none."""
    last_lines: str
    failed_nodes: str = ""
    """The nodes that Slurm says have failed, as it writes them: `h[001-003,7]`."""


async def find_causes(job: Job, connections: Connections, *, step_line: str | None = None) -> FailureReport:
    """Fetch and read a job's log. If that fails, there are no causes, and `last_lines` is the error.

    `step_line` is how its program prints a step, if it is none of the known formats.
    """
    try:
        async with open_cluster(load_cluster(job.cluster), connections) as cluster:
            path = await collect_log(cluster, job)
        log = read_log(path, step_line=step_line)
    except (UserError, SystemFailure) as error:  # ended before it began it has none; `parse` asks once more
        return FailureReport(causes="", last_lines=str(error))
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read().decode(errors="replace").replace("\r", "\n").splitlines()[-_TAIL_LINES:]
    fatal = [problem for problem in log.problems if problem.fatal]
    return FailureReport(
        causes="; ".join(problem.message.rstrip(".") for problem in fatal),
        last_lines="\n".join(tail),
        failed_nodes=",".join(problem.nodes for problem in fatal if problem.nodes),
    )


def with_failed_nodes(status: JobStatus, failure: FailureReport) -> JobStatus:
    """Return the status, marked as a fault of the cluster if the log says that nodes of the job failed.

    Otherwise it is unchanged. Nodes that the job did not have are ignored.
    """
    brackets = re.findall(r"\[([^\]]*)\]", failure.failed_nodes)
    ranges = [re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", text) for text in brackets]
    count = math.prod(
        sum(int(last or first) - int(first) + 1 for first, last in bracket) for bracket in ranges
    )
    named = set(expand_nodes(failure.failed_nodes)) if count <= _MOST_NODES else set()
    failed = tuple(node for node in status.nodes if node in named)
    if not failed:
        return status
    return status.model_copy(
        update={
            "cluster_fault": True,
            "failed_nodes": failed,
            "reason": status.reason or f"by its log, {failure.failed_nodes} failed",
        }
    )


def failed_end(job: Job, status: JobStatus, causes: str) -> str:
    """Say in one sentence how a job failed, was cancelled or timed out, and the `causes`."""
    code = f"exit code {status.exit_code}"
    exit_code = "" if status.exit_code is None or code in status.reason else f", {code}"
    remedy = "; give it a longer time_limit" if status.state is JobState.TIMED_OUT else ""
    return (
        f"job '{job.name}' {_HOW_IT_ENDED[status.state]}{_reason(status)}{exit_code}"
        f"{': ' + causes if causes else ''}{remedy}; its log: {job.log_path}"
    )


def unknown_end(job: Job, status: JobStatus) -> str:
    """Say in one sentence that the cluster no longer knows a job, so that its end is unknown."""
    return (
        f"the cluster '{job.cluster}' does not know job '{job.name}' any more{_reason(status)}: whether it "
        f"succeeded is not known; its log: {job.log_path}. Clear 'submit' to train it again"
    )


def _reason(status: JobStatus) -> str:
    return f" ({status.reason})" if status.reason else ""
