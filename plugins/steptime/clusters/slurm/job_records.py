"""Parse the output of squeue, sacct and job scripts into records, and derive job states from them.

The commands print text, because sacct's JSON has wrong exit codes in some releases and takes 10 times as
long. Times are Unix seconds, which squeue and sacct print as SLURM_TIME_FORMAT is `%s` (see `ssh.py`).
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from pydantic import ValidationError

from steptime.clusters.base import JobState, JobStatus, described_exit
from steptime.frozen import Frozen
from steptime.recipes.node_lists import expand_nodes

SQUEUE_FORMAT = ",".join(
    f"{field}:|"
    for field in (
        *("JobID", "State", "exit_code", "SubmitTime", "StartTime", "EndTime"),
        *("NodeList", "Name", "Reason", "WorkDir"),
    )
)
SACCT_FORMAT = "JobIDRaw,State,ExitCode,Submit,Start,End,NodeList,JobName,Reason,WorkDir"
_FIELDS = 10
_NO_NODES = ("", "(null)", "None assigned", "None")

_QUEUED = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "SUSPENDED",  # keeps its nodes, and Slurm does not count the time against its limit
}
_RUNNING = {
    *("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"),
    *("POWER_UP_NODE", "EXPEDITING"),
}
HELD_BY_USER = "JobHeldUser"
"""The reason of a job that its owner holds; steptime submits each job held, and then releases it."""
PREEMPTED = "preempted by another job"
_CLUSTER_FAULTS = {
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node did not boot",
    "LAUNCH_FAILED": "its nodes could not launch it",
    "RECONFIG_FAIL": "its nodes could not be set up",
    "PREEMPTED": PREEMPTED,
}
_ENDED = {
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMED_OUT,
    "DEADLINE": JobState.TIMED_OUT,
    **dict.fromkeys(_CLUSTER_FAULTS, JobState.FAILED),
}
_EXPLAINED = {
    "CONFIGURING": "its nodes are being made ready",
    "REQUEUE_HOLD": "held after it was requeued: 'scontrol release' lets it go",
    "SPECIAL_EXIT": "held after it was requeued: 'scontrol release' lets it go",
    "RESV_DEL_HOLD": "held because its reservation was deleted: 'scontrol release' lets it go",
    HELD_BY_USER: "'scontrol release' lets it go",
    "JobHeldAdmin": "an administrator can release it",
    "launch_failed_requeued_held": "a node could not launch it, and Slurm requeued and holds it: it never "
    "starts by itself; 'scontrol release' lets it go, or cancel it",
    "DependencyNeverSatisfied": "it can never start",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives",
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "COMPLETING": "its nodes are being cleared",
    "SUSPENDED": "suspended",
    "STOPPED": "stopped",
    "OUT_OF_MEMORY": "out of memory",
    "TIMEOUT": "the time limit was reached",
    "DEADLINE": "its deadline was reached",
    **_CLUSTER_FAULTS,
}
_COULD_NOT_OPEN = 53
"""The signal that Slurm records if a node could not open the job's folder or log file."""
_END_FILE = "ended.json"
_ITSELF = "RUNNING"
_BY_SIGNAL = 128
"""Exit codes above this mean death by a signal; the script does not know who sent it."""


class JobRecord(Frozen):
    """One job as squeue or sacct reports it. Ids can be reused: only id and name identify the job."""

    job_id: str
    name: str
    state: str
    """Slurm's state in one word: `CANCELLED` where Slurm shows `CANCELLED by 1000`."""
    exit_code: int
    signal: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    nodes: tuple[str, ...]
    reason: str
    """Slurm's reason; empty if that is `None`."""
    directory: str
    """The folder that its script runs in."""

    @property
    def in_queue(self) -> bool:
        """Whether the job waits, runs, or is still completing on its nodes."""
        return self.state in _QUEUED | _RUNNING

    @property
    def is_settled(self) -> bool:
        """Whether the job has ended and its end time is known, which Slurm's accounting stores last."""
        return not self.in_queue and self.ended_at is not None

    @property
    def never_started(self) -> bool:
        """Whether the job waits and was not started before, as by a requeue."""
        return self.state == "PENDING" and self.started_at is None


def read_records(text: str) -> list[JobRecord]:
    """Parse the output of `squeue --Format=SQUEUE_FORMAT`, or of `sacct --parsable2 --format=SACCT_FORMAT`.

    Lines with an exit code of another form than theirs are left out.
    """
    ends = ((fields, _exit_of(fields[2])) for fields in _rows(text))
    return [_record(fields, *end) for fields, end in ends if end is not None]


def _exit_of(text: str) -> tuple[int, int] | None:
    """Return the exit code and the signal of `exit code:signal`, or of a status of wait(2).

    squeue prints the status up to Slurm 22.05.
    """
    if text.isdecimal():
        return int(text) >> 8, int(text) & 0x7F
    code, _, by_signal = text.partition(":")
    return (int(code), int(by_signal)) if code.isdecimal() and by_signal.isdecimal() else None


def group_by_name(records: Iterable[JobRecord]) -> dict[str, list[JobRecord]]:
    """Group jobs by name, in order of submission; of a requeued job only the last record counts."""
    jobs: dict[str, dict[str, list[JobRecord]]] = {}
    for record in records:  # of one id, sacct lists the records in the order in which they came to be
        jobs.setdefault(record.name, {}).setdefault(record.job_id, []).append(record)
    return {
        name: [same_id[-1] for same_id in sorted(by_id.values(), key=_first_submitted)]
        for name, by_id in jobs.items()
    }


def _first_submitted(same_id: list[JobRecord]) -> tuple[float, int]:
    return same_id[0].submitted_at, int(same_id[0].job_id)


def record_status(record: JobRecord) -> JobStatus:
    """Return the job status for a record; an unknown state is UNKNOWN, with Slurm's word as the reason."""
    if record.state in _QUEUED:
        return JobStatus(state=JobState.QUEUED, reason=_why_it_waits(record), nodes=record.nodes)
    started_at = record.started_at if record.nodes else None
    if record.state in _RUNNING:
        reason = _EXPLAINED.get(record.state, "")
        return JobStatus(state=JobState.RUNNING, reason=reason, started_at=started_at, nodes=record.nodes)
    state = _ENDED.get(record.state, JobState.UNKNOWN)
    exit_code, reason = _how_it_ended(record, state)
    return JobStatus(
        state=state,
        reason=reason,
        exit_code=exit_code,
        started_at=started_at,
        ended_at=record.ended_at,
        nodes=record.nodes,
        cluster_fault=record.state in _CLUSTER_FAULTS,
    )


def lost_before_it_started(record: JobRecord) -> JobStatus:
    """Return the status of a job that waits in the accounting and that the controller does not have."""
    reason = (
        f"Slurm has lost job {record.job_id}: it is not in the queue, has no log, and waits in the accounting"
    )
    return JobStatus(state=JobState.UNKNOWN, reason=reason)


def _why_it_waits(record: JobRecord) -> str:
    if record.state in _EXPLAINED:
        return _EXPLAINED[record.state]
    explained = _EXPLAINED.get(record.reason.replace(" ", "_"))
    return f"{record.reason}: {explained}" if explained else record.reason


def _how_it_ended(record: JobRecord, state: JobState) -> tuple[int | None, str]:
    """Return the script's exit code, None if it has none, and the reason."""
    if state is JobState.SUCCEEDED:
        return record.exit_code, ""
    if state is JobState.CANCELLED:
        why = f": {record.reason}" if record.reason in _EXPLAINED else ""  # else it only waited its turn
        return None, "cancelled" if record.nodes else f"cancelled before it started{why}"
    if state is JobState.UNKNOWN:
        if not record.state:
            return None, "Slurm gives no state for it"
        return None, f"its state is {record.state}, which steptime does not know"
    return _how_it_failed(record) if record.state == "FAILED" else (None, _EXPLAINED[record.state])


def _how_it_failed(record: JobRecord) -> tuple[int | None, str]:
    if not record.nodes:  # Slurm gave it none, whatever exit code it wrote down
        return None, f"Slurm could not start it: {record.reason or 'it gives no reason'}"
    if record.signal == _COULD_NOT_OPEN:
        return None, "its node could not open its folder or its log: is work_dir there on every node?"
    if not record.signal:
        return record.exit_code, f"exit code {record.exit_code}"  # above 128, the script's own
    exit_code = 128 + record.signal
    return exit_code, described_exit(exit_code)


def _rows(text: str) -> Iterator[list[str]]:
    """Yield the fields of each line; skip other lines, such as the rest of a job name with a line break."""
    for line in text.splitlines():
        fields = line.removesuffix("|").split("|", _FIELDS - 1)
        if len(fields) == _FIELDS and fields[0].isdecimal():
            yield fields


def _record(fields: Sequence[str], exit_code: int, by_signal: int) -> JobRecord:
    job_id, state, _, submitted, started, ended, nodes, name, reason, directory = fields
    return JobRecord(
        job_id=job_id,
        name=name,
        state=state.partition(" ")[0].rstrip("+"),
        exit_code=exit_code,
        signal=by_signal,
        submitted_at=_time(submitted) or 0,
        started_at=_time(started),
        ended_at=_time(ended),
        nodes=() if nodes in _NO_NODES else expand_nodes(nodes),
        reason="" if reason == "None" else reason,
        directory=directory,
    )


def _time(text: str) -> float | None:
    """Parse Unix seconds; None for `N/A`, `Unknown` and the like."""
    return float(text) if text.isdecimal() and text != "0" else None


class EndRecord(Frozen):
    """How a job's script ended, as `job.sh.j2` records it beside the log, in case Slurm forgets the job.

    The exit code alone is not enough: a script that Slurm ends, for instance at the time limit, can still
    exit with 0. So the record also has the state that Slurm gave the job when its script ended. The record
    tells how the job ended only if that state is RUNNING.
    """

    job_id: str
    exit_code: int
    state: str
    """Slurm's state of the job when its script ended; empty if Slurm did not answer."""
    started_at: float
    ended_at: float

    @property
    def is_conclusive(self) -> bool:
        """Whether the record shows how the job ended: the job was running, and no signal ended its script."""
        return self.state == _ITSELF and self.exit_code <= _BY_SIGNAL

    @property
    def description(self) -> str:
        """The end of the script in words: its exit code, and the state that the job then had in Slurm."""
        while_it = f" while it was {self.state}" if self.state else ""
        return f"its script ended with exit code {self.exit_code}{while_it}"

    def status(self, nodes: Sequence[str]) -> JobStatus:
        """Return the status of a job that ran on `nodes`; this record must be conclusive."""
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
    """Return the path of the file in the job's folder `directory` where its script records its end."""
    return posixpath.join(directory, _END_FILE)


def read_end_record(text: bytes, job_id: str) -> EndRecord | None:
    """Parse the end record of a job; None if there is none, or it belongs to another job."""
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
    """Return the status of a job that left the queue and whose end is missing in Slurm's accounting.

    All times are Unix seconds on the cluster's clock.

    Args:
        end: how the script ended, as it recorded that itself; None if it did not.
        taken: the job as squeue showed it right after its submission.
        accounted: the job as sacct shows it; None if sacct does not.
        without: why sacct does not show the job; used in the status's reason.
        time_limit_s: the job's time limit in seconds.
        settled_after: when the job was last seen in the queue.
        within_s: for how many seconds after its latest possible end the job still counts as running.
        now: the current time.
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
