"""What a job's script records of its own end: the source that is left if Slurm does not know (yet).

`job.sh.j2` writes it beside the log. A script that Slurm is ending, as at the time limit, can come to any
exit code: a training that ends in good order on a signal ends with 0. So the record has Slurm's state of the
job at that moment, and if that is not RUNNING the record does not decide how the job ended.
"""

import posixpath
from collections.abc import Sequence

from pydantic import ValidationError

from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.slurm.states import JobRecord
from steptime.frozen import Frozen

_FILE = "ended.json"
_ITSELF = "RUNNING"
_BY_SIGNAL = 128
"""Exit codes above it are deaths by a signal, and who sent that the script does not know."""


class EndRecord(Frozen):
    """The end of a job's script, as it recorded it."""

    job_id: str
    exit_code: int
    state: str
    """Slurm's word for the job when its script ended; empty if Slurm did not answer."""
    started_at: float
    ended_at: float

    @property
    def is_conclusive(self) -> bool:
        """Whether the job has ended by itself, and by no signal, as the exit code shows."""
        return self.state == _ITSELF and self.exit_code <= _BY_SIGNAL

    @property
    def description(self) -> str:
        """In words."""
        while_it = f" while it was {self.state}" if self.state else ""
        return f"its script ended with exit code {self.exit_code}{while_it}"

    def status(self, nodes: Sequence[str]) -> JobStatus:
        """Return what a conclusive record means for a job that was on these nodes."""
        exit_code = f"exit code {self.exit_code}, " if self.exit_code else ""
        return JobStatus(
            state=JobState.FAILED if self.exit_code else JobState.SUCCEEDED,
            reason=f"{exit_code}as its script recorded",
            exit_code=self.exit_code,
            started_at=self.started_at,
            ended_at=self.ended_at,
            nodes=tuple(nodes),
        )


def end_record_path(directory: str) -> str:
    """Return where the script of a job writes its end, in the job's folder."""
    return posixpath.join(directory, _FILE)


def read_end_record(text: bytes, job_id: str) -> EndRecord | None:
    """Read the end of that job; None if there is no record, or it is of another job."""
    try:
        record = EndRecord.model_validate_json(text)
    except ValidationError:
        return None
    return record if record.job_id == job_id else None


def status_by_script(
    end: EndRecord | None,
    taken: JobRecord,
    accounted: JobRecord | None,
    without: str,
    *,
    time_limit_s: float,
    settled_after: float,
    within_s: float,
    now: float,
) -> JobStatus:
    """Return the status of a job that is not in the queue and whose end the accounting does not have.

    Args:
        end: what its script wrote down.
        taken: the job as Slurm took it.
        accounted: the job as the accounting has it.
        without: why the accounting does not have it.
        time_limit_s: the job's, in seconds.
        settled_after: when it was last in the queue.
        within_s: for how many seconds after it must have ended its end may stay open, and it counts as live.
        now: by the clock of the cluster, as all these times.
    """
    nodes = accounted.nodes if accounted else ()
    if end is not None and end.is_conclusive:
        return end.status(nodes)
    known = without if accounted is None else f"in the accounting it is {accounted.state}"
    if end is not None:
        ended_by, known = end.ended_at, f"{known}; {end.description}"
    else:
        ended_by = ((accounted and accounted.started_at) or taken.submitted_at) + time_limit_s
    if now < max(ended_by, settled_after) + within_s:
        reason = "it has left the queue, and neither the accounting nor its script has its end yet"
        return JobStatus(state=JobState.RUNNING, reason=f"{reason} ({known})", nodes=nodes)
    reason = f"Slurm took it as job {taken.job_id}, and its end is not known: {known}"
    return JobStatus(state=JobState.UNKNOWN, reason=reason, nodes=nodes)
