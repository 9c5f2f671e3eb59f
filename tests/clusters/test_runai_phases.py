"""How a job's state follows from Run:ai's phase and the pods' notes."""

from pathlib import PurePosixPath

import pytest

from steptime.clusters.base import JobState
from steptime.clusters.runai.answers import RunaiWorkload
from steptime.clusters.runai.phases import Notes, PodEnd, Stop, vanished, workload_status
from steptime.clusters.runai.volume import JobNotes, Volume

STARTED = {0: (100.0, "node-a"), 1: (101.0, "node-b")}
CANCELLED = Stop(JobState.CANCELLED, "cancelled")
SEGMENTATION_FAULT, TIME_LIMIT = "pod 1: exit code 139 (SIGSEGV)", "the time limit of 60 s was reached"
POD_1 = "pod 1: exit code 7"
DEGRADED = Stop(JobState.FAILED, "its workload was degraded")


def workload(**fields):
    return RunaiWorkload.model_validate({"id": "1", "name": "job", **fields})


def ends(*pods):
    """Return notes of pods that ended a second apart: rank, exit code, and how."""
    noted = tuple(PodEnd(rank, 200.0 + second, code, how) for second, (rank, code, how) in enumerate(pods))
    return Notes(starts=STARTED, ends=noted)


@pytest.mark.parametrize(
    ("phase", "notes", "state", "reason", "exit_code"),
    [
        ("Creating", Notes(), JobState.QUEUED, "creating", None),
        ("Pending", Notes(), JobState.QUEUED, "pending", None),
        ("Initializing", Notes(), JobState.QUEUED, "initializing", None),
        ("Resuming", Notes(STARTED), JobState.QUEUED, "resuming", None),
        ("Running", Notes(STARTED), JobState.RUNNING, "", None),
        ("Updating", Notes(STARTED), JobState.RUNNING, "updating", None),
        ("Stopping", Notes(STARTED, stop=CANCELLED), JobState.RUNNING, "stopping", None),
        ("Deleting", Notes(STARTED), JobState.RUNNING, "deleting", None),
        ("Terminating", Notes(STARTED), JobState.RUNNING, "terminating", None),
        ("Degraded", Notes(STARTED), JobState.RUNNING, "degraded", None),
        ("Unknown", Notes(STARTED), JobState.RUNNING, "unknown", None),
        ("Hibernating", Notes(STARTED), JobState.RUNNING, "hibernating", None),
        ("Stopped", Notes(STARTED, stop=CANCELLED), JobState.CANCELLED, "cancelled", None),
        ("Stopped", Notes(stop=CANCELLED), JobState.CANCELLED, "cancelled before it started", None),
        ("Stopped", Notes(STARTED), JobState.CANCELLED, "stopped in Run:ai, not by steptime", None),
        ("Stopped", Notes(STARTED, stop=DEGRADED), JobState.FAILED, "its workload was degraded", None),
        ("Completed", ends((0, 0, "itself"), (1, 143, "told")), JobState.SUCCEEDED, "", 0),
        ("Completed", Notes(), JobState.SUCCEEDED, "", 0),
        ("Completed", Notes(STARTED, stop=CANCELLED), JobState.SUCCEEDED, "", 0),
        ("Completed", ends((0, 3, "itself")), JobState.FAILED, "exit code 3", 3),
        ("Completed", ends((1, 0, "itself"), (0, 3, "itself")), JobState.FAILED, "exit code 3", 3),
        ("Completed", ends((0, 0, "itself"), (1, 3, "itself")), JobState.SUCCEEDED, "", 0),
        ("Completed", ends((1, 3, "itself")), JobState.SUCCEEDED, "", 0),
        ("Failed", ends((0, 3, "itself")), JobState.FAILED, "exit code 3", 3),
        ("Failed", ends((0, 143, "told"), (1, 139, "itself")), JobState.FAILED, SEGMENTATION_FAULT, 139),
        ("Failed", ends((2, 0, "itself"), (1, 7, "itself"), (0, 5, "itself")), JobState.FAILED, POD_1, 7),
        ("Failed", ends((0, 200, "itself")), JobState.FAILED, "exit code 200", 200),
        ("Failed", ends((1, 124, "time-limit")), JobState.TIMED_OUT, TIME_LIMIT, None),
        ("Failed", Notes(STARTED, stop=CANCELLED), JobState.CANCELLED, "cancelled", None),
        ("Failed", Notes(), JobState.FAILED, "Run:ai calls it failed and gives no reason", None),
    ],
    ids=str,
)  # fmt: skip
def test_a_phase_and_its_notes(phase, notes, state, reason, exit_code):
    status = workload_status(workload(phase=phase), notes, time_limit_s=60)
    assert (status.state, status.reason, status.exit_code) == (state, reason, exit_code)


@pytest.mark.parametrize(
    ("notes", "fault"),
    [
        (Notes(STARTED), True),  # pods started and noted no end: their node is lost
        (ends((0, 143, "told")), True),  # preempted, evicted
        (ends((0, 143, "itself")), False),
        (ends((0, 137, "itself")), False),  # out of memory
        (ends((0, 143, "told"), (1, 1, "itself")), False),
        (Notes(), False),  # no image: a retry would not find it either
        (Notes(STARTED, stop=DEGRADED), True),
        (Notes(STARTED, stop=CANCELLED), False),
    ],
)
def test_whose_fault_a_failure_is(notes, fault):
    assert workload_status(workload(phase="Failed"), notes, time_limit_s=60).cluster_fault is fault


@pytest.mark.parametrize(
    ("notes", "state"),
    [
        (Notes(STARTED), JobState.UNKNOWN),
        (ends((0, 0, "itself")), JobState.UNKNOWN),  # the script succeeded, but the rest is unknown
        (Notes(STARTED, stop=CANCELLED), JobState.CANCELLED),
    ],
)
def test_a_workload_that_is_gone_is_never_success(notes, state):
    assert vanished("job", notes, where="dgx").state is state


def test_a_pod_that_was_ended_from_outside_is_named():
    words = workload(phase="Failed", phaseMessage="preempted", conditions=[{"message": "not this"}])
    told = workload_status(words, ends((1, 143, "told")), time_limit_s=60)
    assert (told.reason, told.exit_code) == ("pod 1 was ended from outside: preempted", None)
    assert workload_status(words, Notes(STARTED), time_limit_s=60).reason == "preempted"
    unsaid = workload(phase="Failed", conditions=[{"message": None}, {}, {"message": "  out of\nquota"}])
    assert workload_status(unsaid, Notes(STARTED), time_limit_s=60).reason == "out of quota"


def test_a_job_that_vanished_has_its_nodes_by_rank_as_one_that_is_there():
    notes = Notes({1: (100.0, "node-b"), 0: (101.0, "node-a")})
    there = workload_status(workload(phase="Running"), notes, time_limit_s=60)
    gone = vanished("job", notes, where="dgx")
    assert gone.nodes == there.nodes == ("node-a", "node-b")
    assert gone.started_at == there.started_at == 100.0


@pytest.mark.parametrize(
    ("phase", "notes", "ended_at"),
    [
        ("Completed", ends((0, 0, "itself"), (1, 0, "itself")), 201.0),
        ("Failed", ends((1, 3, "itself")), 200.0),
        ("Stopped", Notes(STARTED, stop=CANCELLED), 1_790_000_000.0),
        ("Running", Notes(STARTED), None),
        ("Pending", Notes(), None),
    ],
)
def test_a_job_ended_when_its_last_pod_did_or_when_runai_says(phase, notes, ended_at):
    times = {"completedAt": "2026-09-21T14:13:20Z", "phaseUpdatedAt": "2026-09-21T15:13:20Z"}
    assert workload_status(workload(phase=phase, **times), notes, time_limit_s=60).ended_at == ended_at
    del times["completedAt"]
    later = None if ended_at is None else ended_at + 3600 * (ended_at > 1e9)
    status = workload_status(workload(phase=phase, **times), notes, time_limit_s=60)
    assert (status.ended_at, status.started_at) == (later, 100.0 if notes.starts else None)


def test_the_first_reason_for_ending_a_job_is_kept(tmp_path):
    notes = JobNotes(Volume(str(tmp_path), str(tmp_path)), PurePosixPath(tmp_path), "a-job")
    for stop in (DEGRADED, CANCELLED):
        notes.write_stop(stop)
    assert notes.notes().stop == DEGRADED
