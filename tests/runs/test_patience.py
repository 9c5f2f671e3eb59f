"""How long a cluster out of reach is waited for, and what a job's log says of its end."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.clusters.config import load_cluster
from steptime.clusters.connections import no_connections
from steptime.errors import LoginRefused, OutOfReach, Overdue, SubmitLimit, SystemFailure, UserError
from steptime.runs import conclusion, patience
from steptime.runs.conclusion import FailureReport, failed_end, find_causes, unknown_end, with_failed_nodes
from steptime.runs.patience import Outage, retry_while_unreachable

from .scripted_cluster import ScriptedCluster

JOB = Job(cluster="local", name="job", job_id="1", directory="/d", log_path="/d/log", submitted_at=0)


class Gate:
    """A cluster that cannot be reached for a number of tries, and the pauses between them."""

    def __init__(self, closed_for):
        self.closed_for = closed_for
        self.tries = 0
        self.pauses = []
        self.warnings = []

    @asynccontextmanager
    async def open(self, *_):
        self.tries += 1
        if self.tries <= self.closed_for:
            raise OutOfReach("no route to host")
        yield ScriptedCluster()

    async def work(self, cluster):
        return f"done on {cluster.name}"


@pytest.fixture
def through(home, clock, monkeypatch):
    """Return a function that works through a gate with patience, and returns the result or the error."""

    def go(gate, patience_h, work=None, **options):
        async def pause(seconds):
            gate.pauses.append(seconds)
            clock.now += seconds
            assert len(gate.pauses) < 1000, "it waits without end"

        monkeypatch.setattr(patience, "open_cluster", gate.open)
        config = load_cluster("local").model_copy(update={"patience_h": patience_h, "queue_patience_h": 2.0})
        with monkeypatch.context() as paused:
            paused.setattr(asyncio, "sleep", pause)
            try:
                return asyncio.run(
                    retry_while_unreachable(
                        config, no_connections, work or gate.work, gate.warnings.append, **options
                    )
                )
            except Exception as error:
                return error

    return go


def test_work_is_begun_anew_with_growing_pauses_until_the_cluster_answers(through):
    gate = Gate(closed_for=9)
    assert through(gate, 1) == "done on local"
    assert gate.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    away = "the cluster 'local' is out of reach for"
    silent_for = ("0 s", "1 s", "3 s", "7 s", "15 s", "31 s", "63 s", "3 min")
    asked = "it is asked again until 01 Jan 03:46 UTC, and what runs there runs on: no route to host"
    assert gate.warnings == [f"{away} {silent}; {asked}" for silent in silent_for]
    assert through(at_once := Gate(closed_for=0), 0) == "done on local"
    assert (at_once.pauses, at_once.warnings) == ([], [])


def test_patience_ends_as_the_clusters_file_says(through):
    gate = Gate(closed_for=99)
    gone = through(gate, 63 / 3600)
    assert isinstance(gone, OutOfReach)
    assert str(gone) == (
        "the cluster 'local' has been out of reach for 2 min, and patience_h in its file allows 63 s: "
        "no route to host"
    )
    assert gate.pauses == [1, 2, 4, 8, 16, 32, 60]


def test_a_login_that_is_refused_is_waited_for_unless_it_never_worked(through):
    async def work(_):
        if len(gate.pauses) < 3:
            raise LoginRefused("refuses the login 'me'")
        return "done"

    gate = Gate(closed_for=0)
    assert through(gate, 1, work) == "done"

    async def was_never_reached():
        return False

    gate = Gate(closed_for=0)
    refused = through(gate, 1, work, was_reached=was_never_reached)
    assert (type(refused), str(refused), gate.pauses) == (UserError, "refuses the login 'me'", [])


def test_what_the_work_itself_cannot_do_is_not_tried_again(through):
    for error in (UserError("no such partition"), SystemFailure("the disk is full")):

        async def work(_, error=error):
            raise error

        gate = Gate(closed_for=0)
        assert through(gate, 1, work) is error
        assert gate.pauses == []


def test_a_job_is_submitted_again_while_a_submit_limit_is_reached(through):
    reasons = ["limit of 2 jobs"] * 12 + ["limit of 1 job"] * 2

    async def work(_):
        if reasons:
            raise SubmitLimit(reasons.pop(0))
        return "submitted"

    gate = Gate(closed_for=0)
    assert through(gate, 0, work) == "submitted"
    assert gate.pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, *[300] * 5]
    since = "It waits since 01 Jan 02:46 UTC and is submitted again until 01 Jan 04:46 UTC"
    assert [line.partition(" (")[0] for line in gate.warnings] == [
        f"limit of 2 jobs. {since}",
        f"limit of 1 job. {since}",
    ]


def test_a_submit_limit_is_waited_for_as_long_as_a_job_may_queue(through):
    async def work(_):
        raise SubmitLimit("no more than 2 jobs")

    gate = Gate(closed_for=0)
    gone = through(gate, 0, work)
    assert isinstance(gone, Overdue)
    assert (
        "steptime has tried to submit the job for 2.1 h, and queue_patience_h of cluster 'local' allows 2.0 h"
        in str(gone)
    )
    assert len(gate.warnings) == 1


def test_a_refusal_at_a_submit_limit_is_an_answer_and_ends_an_outage(through):
    """Out of reach, an answer for longer than `patience_h`, out of reach again: a new outage begins."""
    answers = [OutOfReach("away"), *[SubmitLimit("2 jobs")] * 12, OutOfReach("away")]

    async def work(_):
        if answers:
            raise answers.pop(0)
        return "submitted"

    assert through(Gate(closed_for=0), 0.25, work) == "submitted"


def test_a_cluster_that_answers_again_is_told_once_and_its_patience_begins_anew(clock):
    told = []
    silence = Outage("local", 60, told.append)
    silence.answered()
    assert told == []
    clock.now += 60
    silence.missed(OSError("a"))
    silence.answered()
    silence.answered()
    assert [line.rpartition(", ")[0] for line in told[1:]] == ["the cluster 'local' answers again"]
    assert told[-1].endswith("after 60 s")
    clock.now += 60
    silence.missed(OSError("b"))
    clock.now += 1
    with pytest.raises(OutOfReach, match="out of reach for 61 s"):
        silence.missed(OSError("c"))


@pytest.fixture
def causes(home, monkeypatch):
    """Return a function that finds the causes in a log, or handles an error in fetching it."""

    def find(log):
        async def collected(*_):
            if isinstance(log, Exception):
                raise log
            return log

        monkeypatch.setattr("steptime.runs.conclusion.collect_log", collected)
        monkeypatch.setattr(
            conclusion, "open_cluster", lambda *_: ScriptedCluster(JobStatus(state=JobState.FAILED))
        )
        return asyncio.run(find_causes(JOB, no_connections))

    return find


@pytest.mark.long
def test_the_causes_and_the_last_lines_of_a_log_are_told(causes, tmp_path):
    log = tmp_path / "log.out"
    many = "".join(f"line {number:03} {'x' * 90}\n" for number in range(60))
    log.write_text(f"{many}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.\n1\r2\rend")
    report = causes(log)
    assert "out of memory" in report.causes.lower()
    lines = report.last_lines.split("\n")
    assert len(lines) == 20
    assert lines[-4:] == [
        *("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.", "1", "2", "end")
    ]
    assert lines[0].startswith("line 044 ")
    log.write_bytes(b"x" * 5000 + b"\xff\n")
    assert causes(log).last_lines == "x" * 4094 + "\ufffd"


NODE_FAILURE = (
    "slurmstepd: error: *** STEP 7.0 ON node2 CANCELLED AT 2026-05-12T10:30:00 DUE TO NODE FAILURE, SEE X ***"
)


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        (NODE_FAILURE, ("node2",)),
        (f"{NODE_FAILURE}\nsrun: error: Node failure on node[3-4]", ("node3",)),
        ("srun: error: Node failure on other7", ()),
        ("srun: error: Node failure on node[0-999999999]n[0-999999999]", ()),
        ("srun: error: Node failure on node[3-100002]", ("node3",)),
        ("srun: error: Node failure on node[3-100003]", ()),  # more than are kept
        ("RuntimeError: CUDA out of memory", ()),
    ],
)
def test_the_nodes_that_failed_by_the_log_are_the_clusters_fault(causes, tmp_path, line, failed):
    """Only nodes of the job count; srun's own message comes before that of the node."""
    log = tmp_path / "log.out"
    log.write_text(f"{line}\n")
    status = JobStatus(state=JobState.FAILED, exit_code=1, nodes=("node1", "node2", "node3"))
    marked = with_failed_nodes(status, causes(log))
    assert (marked.cluster_fault, marked.failed_nodes) == (bool(failed), failed)
    assert marked.reason == (f"by its log, {causes(log).failed_nodes} failed" if failed else "")


def test_causes_are_parts_of_one_sentence(causes, tmp_path):
    log = tmp_path / "log.out"
    log.write_text('steptime.start {}\nsteptime.result {"state": "terminated", "error": "by SIGTERM."}\n')
    assert causes(log).causes.endswith("'terminated': by SIGTERM")


def test_a_log_that_cannot_be_fetched_is_a_failure_without_causes(causes):
    for error in (UserError("there is no log"), OutOfReach("no route to host")):
        assert causes(error) == FailureReport(causes="", last_lines=str(error))


def test_an_end_is_told_with_what_is_known():
    failed = JobStatus(state=JobState.FAILED, exit_code=0, reason="JobLaunchFailure")
    assert failed_end(JOB, failed, "CUDA out of memory") == (
        "job 'job' failed (JobLaunchFailure), exit code 0: CUDA out of memory; its log: /d/log"
    )
    cancelled = JobStatus(state=JobState.CANCELLED)
    assert failed_end(JOB, cancelled, "") == "job 'job' was cancelled; its log: /d/log"
    timed_out = JobStatus(state=JobState.TIMED_OUT, reason="the time limit was reached")
    assert failed_end(JOB, timed_out, "") == (
        "job 'job' timed out (the time limit was reached); give it a longer time_limit; its log: /d/log"
    )
    assert "does not know job 'job' any more: " in unknown_end(JOB, JobStatus(state=JobState.UNKNOWN))
