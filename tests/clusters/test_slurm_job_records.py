"""Recorded output of real squeues and saccts (22.05, 23.11 and 26.05), and how steptime reads it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.clusters.base import CommandResult, JobState, JobStatus
from steptime.clusters.slurm.cluster import connect
from steptime.clusters.slurm.commands import SlurmCommands
from steptime.clusters.slurm.job_records import (
    PREEMPTED,
    EndRecord,
    JobRecord,
    group_by_name,
    read_records,
    record_status,
    status_by_script,
)
from steptime.errors import LoginRefused, OutOfReach, SystemFailure

DATA = Path(__file__).parents[1] / "data" / "slurm"
EARLY = group_by_name(read_records((DATA / "squeue-early.txt").read_text()))
LATE = group_by_name(read_records((DATA / "squeue-late.txt").read_text()))
ACCOUNTED = group_by_name(read_records((DATA / "sacct.txt").read_text()))


@pytest.mark.parametrize(
    ("state", "started_at", "never"),
    [("PENDING", None, True), ("PENDING", 1e9, False), ("RUNNING", 1e9, False), ("CANCELLED", None, False)],
)
def test_a_job_that_waits_again_has_started(state, started_at, never):
    record = LATE["run-ok"][0].model_copy(update={"state": state, "started_at": started_at})
    assert record.never_started is never


@pytest.mark.parametrize(
    ("nodes", "reason", "down", "avoided"),
    [
        (("n1",), "node failure", {}, ("n1",)),
        (("n1", "n2"), "node failure", {}, ()),
        (("n1", "n2"), "node failure", {"n2": "down"}, ("n2",)),
        (("n1",), PREEMPTED, {"n1": "down"}, ()),
    ],
)
async def test_of_a_failed_job_those_nodes_are_avoided_that_may_be_its_cause(
    make_slurm_config, monkeypatch, nodes, reason, down, avoided
):
    async def unusable(*_):
        return down

    cluster = connect(make_slurm_config())
    monkeypatch.setattr(cluster._slurm, "unusable_nodes", unusable)
    assert (
        await cluster._failed_nodes(JobStatus(state=JobState.FAILED, reason=reason, nodes=nodes)) == avoided
    )


MORE = "it asks for more"
NEVER = "DependencyNeverSatisfied"
FOLDER = "its node could not open its folder or its log: is work_dir there on every node?"


@pytest.mark.parametrize(
    ("listed", "name", "state", "reason", "exit_code"),
    [
        ("EARLY", "pend", "queued", "BeginTime", None),
        ("EARLY", "big", "queued", f"PartitionNodeLimit: {MORE} nodes than its partition gives", None),
        ("EARLY", "toolong", "queued", f"PartitionTimeLimit: {MORE} time than its partition gives", None),
        ("EARLY", "requeued", "queued", "BeginTime", None),
        ("EARLY", "special", "queued", "held after it was requeued: 'scontrol release' lets it go", None),
        ("EARLY", "nodefail", "running", "", None),
        ("EARLY", "nodefail4", "running", "its nodes are being cleared", None),
        ("EARLY", "suspended", "queued", "suspended", None),
        ("LATE", "run-ok", "succeeded", "", 0),
        ("LATE", "exit3", "failed", "exit code 3", 3),
        ("LATE", "kill9", "failed", "exit code 137 (SIGKILL)", 137),
        ("LATE", "oomstep", "failed", "exit code 137", 137),
        ("LATE", "gres99", "failed", "Slurm could not start it: BadConstraints", None),
        ("LATE", "preempted", "failed", "preempted by another job", None),
        ("LATE", "nodefail", "failed", "a node failed", None),
        ("LATE", "suspended", "cancelled", "cancelled", None),
        ("LATE", "never-killed", "cancelled", f"cancelled before it started: {NEVER}", None),
        ("LATE", "never", "queued", f"{NEVER}: it can never start", None),
        ("LATE", "held", "queued", "JobHeldUser: 'scontrol release' lets it go", None),
        ("LATE", "rqh", "queued", "job requeued in held state", None),
        ("LATE", "deadline", "timed_out", "its deadline was reached", None),
        ("LATE", "limit", "timed_out", "the time limit was reached", None),
        ("ACCOUNTED", "run-ok", "succeeded", "", 0),
        ("ACCOUNTED", "exit3", "failed", "exit code 3", 3),
        ("ACCOUNTED", "kill9", "failed", "exit code 137 (SIGKILL)", 137),
        ("ACCOUNTED", "nodir", "failed", FOLDER, None),
        ("ACCOUNTED", "gres99", "failed", "Slurm could not start it: it gives no reason", None),
        ("ACCOUNTED", "preempted", "failed", "preempted by another job", None),
        ("ACCOUNTED", "nodefail4", "failed", "a node failed", None),
        ("ACCOUNTED", "multi", "cancelled", "cancelled", None),
        ("ACCOUNTED", "limit", "timed_out", "the time limit was reached", None),
        ("ACCOUNTED", "deadline", "timed_out", "its deadline was reached", None),
    ],
)
def test_a_recorded_job(listed, name, state, reason, exit_code):
    """The records are two outputs of squeue, while jobs lived and after their ends, and one of sacct."""
    status = record_status({"EARLY": EARLY, "LATE": LATE, "ACCOUNTED": ACCOUNTED}[listed][name][0])
    assert (status.state, status.reason, status.exit_code) == (state, reason, exit_code)


HELD = "held after it was requeued: 'scontrol release' lets it go"
STATES = {
    "PENDING": ("queued", "Resources"),
    "CONFIGURING": ("queued", "its nodes are being made ready"),
    "REQUEUED": ("queued", "Resources"),
    "REQUEUE_HOLD": ("queued", HELD),
    "SPECIAL_EXIT": ("queued", HELD),
    "RESV_DEL_HOLD": ("queued", "held because its reservation was deleted: 'scontrol release' lets it go"),
    "SUSPENDED": ("queued", "suspended"),
    **dict.fromkeys(
        ("RUNNING", "RESIZING", "SIGNALING", "STAGE_OUT", "POWER_UP_NODE", "EXPEDITING"), ("running", "")
    ),
    "COMPLETING": ("running", "its nodes are being cleared"),
    "STOPPED": ("running", "stopped"),
    "COMPLETED": ("succeeded", ""),
    "FAILED": ("failed", "exit code 7"),
    "OUT_OF_MEMORY": ("failed", "out of memory"),
    "CANCELLED by 1000": ("cancelled", "cancelled"),
    "TIMEOUT": ("timed_out", "the time limit was reached"),
    "DEADLINE": ("timed_out", "its deadline was reached"),
    "NODE_FAIL": ("cluster", "a node failed"),
    "BOOT_FAIL": ("cluster", "a node did not boot"),
    "LAUNCH_FAILED": ("cluster", "its nodes could not launch it"),
    "RECONFIG_FAIL": ("cluster", "its nodes could not be set up"),
    "PREEMPTED": ("cluster", "preempted by another job"),
    "REVOKED": ("unknown", "its state is REVOKED, which steptime does not know"),
    "": ("unknown", "Slurm gives no state for it"),
}
"""By Slurm's state: the job's state, `cluster` for a failure of the cluster, and the reason."""


@pytest.mark.parametrize("word", STATES)
def test_every_state_of_slurm(word):
    """squeue guesses when a waiting job starts and when a running one ends; these times are left out."""
    state, reason = STATES[word]
    fault, in_queue = state == "cluster", state in ("queued", "running")
    line = f"5|{word}|7:0|1000|1100|1200|n[1-2]|name|Resources|/there\n"
    [record] = read_records(line)
    assert record_status(record) == JobStatus(
        state=JobState("failed" if fault else state),
        reason=reason,
        exit_code=7 if word in ("COMPLETED", "FAILED") else None,
        started_at=None if state == "queued" else 1100,
        ended_at=None if in_queue else 1200,
        nodes=("n1", "n2"),
        cluster_fault=fault,
    )
    assert (record.in_queue, record.is_settled) == (in_queue, not in_queue)
    [unsettled] = read_records(line.replace("1200", "Unknown").replace("n[1-2]", "None assigned"))
    assert not unsettled.is_settled
    assert record_status(unsettled).started_at is None


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("None", ""),
        ("Resources", "Resources"),
        ("JobHeldUser", "JobHeldUser: 'scontrol release' lets it go"),
        ("JobHeldAdmin", "JobHeldAdmin: an administrator can release it"),
        ("DependencyNeverSatisfied", "DependencyNeverSatisfied: it can never start"),
        ("PartitionNodeLimit", f"PartitionNodeLimit: {MORE} nodes than its partition gives"),
        ("PartitionTimeLimit", f"PartitionTimeLimit: {MORE} time than its partition gives"),
    ],
)
def test_why_a_job_waits_or_was_cancelled_before_it_started(reason, said):
    def of(state):
        [record] = read_records(f"5|{state}|0:0|1000|Unknown|1200|None assigned|name|{reason}|/there\n")
        return record_status(record).reason

    assert of("PENDING") == said
    explained = f": {reason}" if ": " in said else ""
    assert of("CANCELLED by 0") == f"cancelled before it started{explained}"


@pytest.mark.parametrize(
    ("wait_status", "ended"), [(9, (0, 9)), (139, (0, 11)), (134, (0, 6)), (3 << 8, (3, 0))]
)
def test_a_core_dump_is_no_part_of_the_signal(wait_status, ended):
    """squeue prints the status of wait(): a signal, 128 more with a core dump, or 256 times the code."""
    line = next(line for line in (DATA / "squeue-late.txt").read_text().splitlines() if "kill9" in line)
    fields = line.split("|")
    assert fields[2] == "9"
    [killed] = read_records("|".join([*fields[:2], str(wait_status), *fields[3:]]) + "\n")
    assert (killed.exit_code, killed.signal) == ended


def test_times_nodes_and_folder_are_read():
    (record,) = ACCOUNTED["nodefail4"]
    assert (record.job_id, record.directory) == ("28", "/scratch/experiments")
    status = record_status(record)
    assert (status.started_at, status.ended_at, status.nodes) == (1795289882, 1795289915, ("n3", "n4"))
    waiting = record_status(EARLY["pend"][0])  # squeue lists the expected start and end
    assert (waiting.started_at, waiting.ended_at, waiting.nodes) == (None, None, ())
    running = record_status(EARLY["multi"][0])
    assert (running.started_at, running.ended_at) == (1795289882, None)


def test_of_a_requeued_job_the_last_record_counts():
    """sacct also lists the record before the requeue: PREEMPTED, then the same id again."""
    assert [record.state for record in ACCOUNTED["requeued"]] == ["RUNNING"]
    assert [record.state for record in ACCOUNTED["rqh"]] == ["PENDING"]


def record(**fields):
    defaults = {
        "job_id": "7",
        "name": "a",
        "state": "RUNNING",
        "exit_code": 0,
        "signal": 0,
        "submitted_at": 100,
        "started_at": 101,
        "ended_at": 102,
        "nodes": ("n1",),
        "reason": "",
        "directory": "/scratch/a",
    }
    return JobRecord.model_validate({**defaults, **fields})


FIELD = st.text(alphabet=st.sampled_from("ABC|:019[]-,\n by+é"), max_size=8)


@given(st.lists(FIELD, min_size=7, max_size=11))
def test_no_text_breaks_the_reading(fields):
    line = "|".join(["1", *fields])
    for job in read_records(line):
        assert record_status(job).state is JobState.UNKNOWN


@pytest.mark.parametrize("version", ["23.11", "26.05"])
@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_newer_slurms_are_read(version, command):
    """From 23.02 on, squeue prints exit codes as sacct does."""
    records = read_records((DATA / f"{command}-{version}.txt").read_text())
    ends = {
        record.name: (record.state, record.exit_code, record.signal, len(record.nodes)) for record in records
    }
    shown = {
        "run-ok": ("COMPLETED", 0, 0, 1),
        "nodir": ("COMPLETED", 0, 0, 1),
        "exit3": ("FAILED", 3, 0, 1),
        "kill9": ("FAILED", 0, 9, 1),
        "cancelled": ("CANCELLED", 0, 15 if command == "squeue" else 0, 1),
        "many": ("PENDING", 0, 0, 0),
        "two": ("RUNNING", 0, 0, 2),
    }
    only_in_the_queue = dict.fromkeys(("waits", "held"), ("PENDING", 0, 0, 0))
    only_in_the_queue["never"] = ("CANCELLED", 0, 0, 0)
    assert ends == (shown | only_in_the_queue if command == "squeue" else shown)


LINES = [
    # as squeue prints them (a bar at the end, and wait(2)'s exit code up to Slurm 22.05)
    (
        "17|RUNNING|0|1700000000|1700000010|1700003610|n[1-2]|name|None|/a b|",
        record(
            **{"job_id": "17", "name": "name", "submitted_at": 1700000000, "started_at": 1700000010},
            **{"ended_at": 1700003610, "nodes": ("n1", "n2"), "directory": "/a b"},
        ),
    ),
    (
        "3|FAILED|777|100|101|102|n1|a|NonZeroExitCode|/scratch/a|",
        record(job_id="3", state="FAILED", exit_code=3, signal=9, reason="NonZeroExitCode"),
    ),
    (  # it dumped core: wait(2) sets a bit for that beside the signal
        "3|FAILED|139|100|101|102|n1|a|NonZeroExitCode|/scratch/a|",
        record(job_id="3", state="FAILED", signal=11, reason="NonZeroExitCode"),
    ),
    (
        "3|PENDING|0|N/A|N/A|N/A||a|Resources|/x|y|",
        record(
            **{"job_id": "3", "state": "PENDING", "submitted_at": 0, "started_at": None, "ended_at": None},
            **{"nodes": (), "reason": "Resources", "directory": "/x|y"},
        ),
    ),
    (
        "9|FAILED|3:0|100|101|102|n1|a|NonZeroExitCode|/scratch/a|",
        record(job_id="9", state="FAILED", exit_code=3, reason="NonZeroExitCode"),
    ),
    (
        "7677|PENDING|0:0|100|N/A|N/A||a|JobHeldUser|/scratch/a|",
        record(
            **{"job_id": "7677", "state": "PENDING", "started_at": None, "ended_at": None},
            **{"nodes": (), "reason": "JobHeldUser"},
        ),
    ),
    # as sacct prints them
    (
        "3|CANCELLED by 1000|0:15|100|101|102|n1|a|None|/scratch/a",
        record(job_id="3", state="CANCELLED", signal=15),
    ),
    (
        "3|OUT_OF_ME+|1:0|100|Unknown|0|None assigned|a|None|/scratch/a",
        record(
            **{"job_id": "3", "state": "OUT_OF_ME", "exit_code": 1, "started_at": None, "ended_at": None},
            nodes=(),
        ),
    ),
]


def test_a_line_is_read_whole():
    for line, expected in LINES:
        assert read_records(line) == [expected]
        assert read_records(f"garbage\n{line}\n\n7|RUNNING") == [expected]
    for line in (
        *("x|RUNNING|0|1|1|1|n|a|None|/x|", "7|RUNNING|0|1|1|1|n|a|None", "7|RUNNING|0:|1|1|1|n|a|None|/x"),
        *(
            "7|RUNNING|:0|1|1|1|n|a|None|/x",
            "7|RUNNING||1|1|1|n|a|None|/x",
            "7_1|RUNNING|0|1|1|1|n|a|None|/x",
        ),
    ):
        assert read_records(line) == [], line


def test_a_time_limit_counts_from_the_start_and_not_from_the_submission():
    """Nobody knows how the job ended: it counts as running until its limit and the patience are over."""
    submitted = record(submitted_at=0, started_at=None, ended_at=None)

    def state_at(now, *, accounted):
        times = {"time_limit_s": 3600, "settled_after": 7300, "within_s": 100, "now": now}
        return status_by_script(None, submitted, accounted, "sacct is away", **times).state

    started = record(submitted_at=0, started_at=7200, ended_at=None)
    assert state_at(7200 + 3600 + 99, accounted=started) is JobState.RUNNING
    assert state_at(7200 + 3600 + 100, accounted=started) is JobState.UNKNOWN
    assert state_at(7300 + 99, accounted=None) is JobState.RUNNING
    assert state_at(7300 + 100, accounted=None) is JobState.UNKNOWN


@pytest.mark.parametrize(
    ("exit_code", "slurms_state", "state"),
    [
        (0, "RUNNING", JobState.SUCCEEDED),
        (1, "RUNNING", JobState.FAILED),
        (128, "RUNNING", JobState.FAILED),  # what a script may itself end with
        (129, "RUNNING", JobState.UNKNOWN),  # SIGHUP ended it
        (0, "TIMEOUT", JobState.UNKNOWN),
        (0, "", JobState.UNKNOWN),
    ],
)
def test_a_scripts_own_record_tells_how_it_ended_unless_something_ended_it(exit_code, slurms_state, state):
    end = EndRecord(job_id="1", exit_code=exit_code, state=slurms_state, started_at=10, ended_at=20)
    times = {"time_limit_s": 60, "settled_after": 0, "within_s": 0, "now": 1000}
    status = status_by_script(end, record(submitted_at=0), None, "sacct is away", **times)
    assert status.state is state
    if state is not JobState.UNKNOWN:
        reason = (
            "as its script recorded" if exit_code == 0 else f"exit code {exit_code}, as its script recorded"
        )
        assert status == JobStatus(
            **{"state": state, "reason": reason, "exit_code": exit_code},
            **{"started_at": 10, "ended_at": 20},
        )


def test_of_jobs_submitted_at_once_the_smaller_id_comes_first():
    jobs = [record(job_id="10"), record(job_id="9"), record(job_id="11", submitted_at=99)]
    assert [job.job_id for job in group_by_name(jobs)["a"]] == ["11", "9", "10"]
    again = [record(job_id="5"), record(job_id="6", submitted_at=150), record(job_id="5", submitted_at=200)]
    assert [(job.job_id, job.submitted_at) for job in group_by_name(again)["a"]] == [("5", 200), ("6", 150)]


async def test_sacct_looks_back_sixty_days_for_all_jobs_of_a_name():
    """Airflow may be away for weeks; without a start time sacct lists only today's jobs."""
    commands_run = []

    async def run(argv, **_):
        commands_run.append(argv)
        return CommandResult(exit_code=0, stdout="", stderr="")

    commands = SlurmCommands(run, cluster="eos", root="/shared")
    assert await commands.sacct("--name", ["one", "two"], ["one", "two"]) == {}
    (argv,) = commands_run
    assert {"sacct", "--duplicates", "--starttime=now-60days", "--name=one,two"} <= set(argv)


@pytest.mark.parametrize(
    ("failure", "becomes"),
    [(SystemFailure("slurmctld is away"), OutOfReach), (LoginRefused("me"), LoginRefused)],
)
async def test_a_failed_squeue_is_out_of_reach_and_a_refused_login_stays_one(failure, becomes):
    """A login refused before the cluster was ever reached is for the user to correct: nothing waits."""

    async def run(*_, **_options):
        raise failure

    with pytest.raises(OutOfReach, match=str(failure)) as raised:
        await SlurmCommands(run, cluster="eos", root="/shared").squeue(["one"])
    assert raised.type is becomes


@pytest.mark.parametrize("directory", ["/shared2/runs/a", "/shared", "/other/shared/a", ""])
def test_a_job_whose_folder_is_not_below_the_clusters_is_anothers(directory):
    async def run(*_, **_options):
        raise AssertionError

    commands = SlurmCommands(run, cluster="eos", root="/shared")
    of_cluster = record(job_id="1", directory="/shared/runs/a")
    assert commands.ours([of_cluster, record(job_id="2", directory=directory)], ["a"]) == {"a": [of_cluster]}


@pytest.mark.parametrize("reason", ["launch_failed_requeued_held", "launch failed requeued held"])
def test_a_job_that_a_node_could_not_launch_is_said_to_wait_for_its_release(reason):
    (record,) = read_records(f"80634|PENDING|0|1700000000|N/A|N/A||name|{reason}|/w\n")
    status = record_status(record)
    assert status.state is JobState.QUEUED
    assert "could not launch it" in status.reason
    assert "scontrol release" in status.reason
