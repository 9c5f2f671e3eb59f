"""Resubmit a run whose job the cluster failed: a node died, it was preempted, it was never launched.

A failure of the training itself is never resubmitted.
"""

from collections.abc import Callable

from steptime.clusters.base import Cluster, JobState, JobStatus
from steptime.clusters.config import ClusterConfig
from steptime.runs.launch import add_job
from steptime.runs.ledger import LedgerJob


def may_resubmit(job: LedgerJob, status: JobStatus, config: ClusterConfig) -> bool:
    """Return whether a job failed by its cluster, and the cluster's file allows to submit the run again."""
    is_fault = status.state is JobState.FAILED and status.cluster_fault
    return is_fault and job.resubmission < config.resubmissions


async def add_resubmission(
    cluster: Cluster, config: ClusterConfig, job: LedgerJob, status: JobStatus, warn: Callable[[str], None]
) -> LedgerJob:
    """Insert the job that replaces one that the cluster failed, without the nodes that failed."""
    excluded = tuple(dict.fromkeys((*job.excluded_nodes, *status.failed_nodes)))
    warn(
        f"the cluster failed job {job.name} ({status.reason}): resubmitting the run, {job.resubmission + 1} "
        f"of at most {config.resubmissions} times" + (f", without {', '.join(excluded)}" if excluded else "")
    )
    new = {
        "attempt": job.attempt + 1,
        "resubmission": job.resubmission + 1,
        "excluded_nodes": excluded,
        "state": JobState.UNKNOWN,
        "reason": "",
        **dict.fromkeys(("job_id", "submitted_at", "started_at", "ended_at")),
    }
    return await add_job(cluster, config, job.model_copy(update=new), warn)
