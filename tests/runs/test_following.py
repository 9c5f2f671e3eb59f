"""What people read while they wait for a run."""

import asyncio
import re
import threading
import time

import pytest

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.errors import OutOfReach, Overdue
from steptime.recipes.models import OwnProgram
from steptime.runs import log_following
from steptime.runs.following import JobFollower, WaitLimits
from steptime.runs.log_following import LogFollower, StepFollower

from .scripted_cluster import ScriptedCluster

QUEUED = JobStatus(state=JobState.QUEUED, reason="waits for 2 of 2 slots")
RUNNING = JobStatus(state=JobState.RUNNING, started_at=1_790_000_000.0, nodes=("n1",))
FAILED = JobStatus(state=JobState.FAILED, exit_code=1)
_EVER_S = 1e12
_PATIENT = WaitLimits(patience_s=600, queue_s=_EVER_S, run_s=_EVER_S)
ANOTHER_LOG = "the training's log was cut or replaced: it is followed from its beginning"
_JOB = {"cluster": "local", "name": "job", "job_id": "1", "directory": "/d", "log_path": "/d/log"}


def step_lines(*steps, seconds=0.5):
    return b"".join(
        b"Training epoch 0, iteration %d/19 | lr: 3e-05 | global_batch_size: 8 | global_step: %d "
        b"| reduced_train_loss: 8.40 | train_step_timing in s: %.4f | consumed_samples: %d\n"
        % (step, step, seconds, 8 * (step + 1))
        for step in steps
    )


class CountingCluster(ScriptedCluster):
    """A cluster that counts the bytes read from the log."""

    bytes_read = 0

    async def read(self, path, offset=0, limit=1 << 20):
        data = await super().read(path, offset, limit)
        self.bytes_read += len(data)
        return data


class Watched:
    """A follower of a job on a cluster that the test scripts, and the lines that it prints."""

    def __init__(self, run, limits=_PATIENT, *, submitted_at=0):
        self.lines = []
        self.cluster = ScriptedCluster(RUNNING)
        job = Job.model_validate({**_JOB, "submitted_at": submitted_at})
        say = self.lines.append
        self.follower = JobFollower(
            job, limits, LogFollower(run, job, info=say, warn=say), info=say, warn=say
        )

    async def sees(self, status, log=b""):
        self.lines.clear()
        self.cluster.log += log
        return await self.follower.observe(self.cluster, status)


@pytest.fixture
def watched(a_run):
    return Watched(a_run())


async def test_states_are_told_when_they_change(watched):
    assert await watched.sees(QUEUED) is None
    assert watched.lines == ["job job: queued, waits for 2 of 2 slots"]
    await watched.sees(QUEUED)
    assert watched.lines == []
    await watched.sees(RUNNING)
    assert watched.lines == ["job job: running since 14:13:20 UTC on n1"]


async def test_a_job_is_unknown_once_its_cluster_has_not_known_it_for_half_a_minute(watched, clock):
    unknown = JobStatus(state=JobState.UNKNOWN, reason="no such job")
    assert await watched.sees(unknown) is None
    clock.now += 20
    assert await watched.sees(unknown) is None
    assert await watched.sees(RUNNING) is None
    clock.now += 20
    assert await watched.sees(unknown) is None, "it was known meanwhile"
    clock.now += 31
    assert await watched.sees(unknown) == unknown


async def test_steps_come_one_by_one_with_the_time_left(watched):
    await watched.sees(RUNNING, step_lines(0, 1))

    assert watched.lines[1:] == [
        "step 0 of 0-19 · 0.5 s · loss 8.4 · about 10 s left",
        "step 1 of 0-19 · 0.5 s · loss 8.4 · about 9 s left",
    ]


async def test_a_run_of_hours_is_told_sixty_times_an_hour_and_its_end_at_once(watched, clock):
    told = []
    for after_s in (0, 5, 120, 1, 2, 3600, 59, 1):
        clock.now += after_s
        await watched.sees(RUNNING, step_lines(len(told)))
        told.append(len([line for line in watched.lines if line.startswith("step")]))
    # Between two lines a sixtieth of the running time passes, but a minute at most.
    assert told == [1, 1, 1, 0, 2, 1, 0, 2]
    clock.now += 1
    await watched.sees(FAILED, step_lines(len(told)))
    assert watched.lines[0].startswith("step 8 of 0-19")


async def test_many_steps_at_once_are_summed_up(watched):
    await watched.sees(RUNNING, step_lines(*range(12)))

    assert watched.lines[1:] == ["steps 0-11 of 0-19 · mean 0.5 s · loss 8.4 · about 4 s left"]


async def test_a_line_that_is_half_written_waits_for_its_end(watched):
    line = step_lines(0)
    await watched.sees(RUNNING, line[:-30])
    assert watched.lines[1:] == []
    await watched.sees(RUNNING, line[-30:])
    assert watched.lines == ["step 0 of 0-19 · 0.5 s · loss 8.4 · about 10 s left"]


async def test_trouble_in_the_log_is_told_at_once(watched):
    await watched.sees(RUNNING, b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.\n")

    assert any("memory" in line for line in watched.lines[1:])


async def test_the_end_is_told_with_the_last_steps(watched):
    assert await watched.sees(FAILED, step_lines(0)[:-1]) == FAILED

    assert watched.lines == [
        "step 0 of 0-19 · 0.5 s · loss 8.4 · about 10 s left",
        "job job: failed, exit code 1",
    ]


async def test_a_cluster_out_of_reach_is_told_and_no_failure_until_its_patience_is_over(
    a_run,
):
    patient, impatient = Watched(a_run()), Watched(a_run(), _PATIENT.model_copy(update={"patience_s": -1}))

    patient.follower.missed(ConnectionError("no route to host"))

    assert re.fullmatch(
        r"the cluster 'local' is out of reach for 0 s; it is asked again until \d\d \w+ \d\d:\d\d UTC, and "
        "what runs there runs on: no route to host",
        patient.lines[0],
    )
    await patient.sees(RUNNING)
    assert patient.lines[0] == "the cluster 'local' answers again, after 0 s"
    with pytest.raises(OutOfReach, match="no route to host"):
        impatient.follower.missed(ConnectionError("no route to host"))


async def test_whichever_limit_runs_out_is_told_with_its_value(a_run):
    limits = WaitLimits(patience_s=600, queue_s=3600, run_s=0)
    queued_for = time.time() - 7200
    with pytest.raises(
        Overdue, match=r"in the queue for 2.0 h \(waits for .*queue_patience_h .* allows 60 min"
    ):
        await Watched(a_run(), limits, submitted_at=queued_for).sees(QUEUED)
    suspended = QUEUED.model_copy(update={"nodes": ("n1",)})
    assert await Watched(a_run(), limits, submitted_at=queued_for).sees(suspended) is None, (
        "it has run before"
    )
    runs = Watched(a_run(), limits, submitted_at=queued_for)
    assert await runs.sees(RUNNING) is None, "its time begins when it is first seen to run"
    with pytest.raises(
        Overdue, match=r"running for 0 s, longer than its time limit plus 60 min of grace \(0 s\)"
    ):
        await runs.sees(RUNNING)


@pytest.mark.parametrize("fault", ["refused", "hangs"])
async def test_a_log_that_cannot_be_read_is_told_and_holds_nothing_up(watched, monkeypatch, fault):
    """The log's file system hangs or refuses: polling goes on, and the job's end is reported."""
    read, broken = watched.cluster.read, True
    waits = []
    wait = asyncio.wait

    async def wait_shorter(tasks, **limits):
        waits.extend(limits.values())
        return await wait(tasks, **{name: seconds / 100 for name, seconds in limits.items()})

    async def unreadable(path, offset=0, limit=1 << 20):
        if broken and fault == "hangs":
            await asyncio.Event().wait()
        if broken:
            raise PermissionError("Permission denied: /d/log")
        return await read(path, offset, limit)

    watched.cluster.read = unreadable  # type: ignore[method-assign]
    monkeypatch.setattr(log_following.asyncio, "wait", wait_shorter)
    for _ in range(3):
        assert await watched.sees(RUNNING, step_lines(0)) is None
    assert await watched.sees(FAILED) == FAILED
    assert waits == [2, 10], (
        "a look waits for 2 s at most, but not again for what still hangs; the end for 10 s"
    )
    told = "cannot be followed" if fault == "refused" else "is slow to come and not shown here"
    assert any(told in line for line in watched.lines), watched.lines
    assert watched.lines[-1] == "job job: failed, exit code 1"


async def test_an_unreadable_log_is_tried_again_after_growing_pauses(watched, clock):
    read = watched.cluster.read

    async def refuse(*_):
        raise PermissionError("Permission denied: /d/log")

    watched.cluster.read = refuse  # type: ignore[method-assign]
    for pause_s in (5, 10, 20):
        await watched.sees(RUNNING)
        assert f"is tried again in {pause_s} s;" in watched.lines[-1]
        clock.now += pause_s - 1
        await watched.sees(RUNNING)
        assert watched.lines == []
        clock.now += 1
    watched.cluster.read = read  # type: ignore[method-assign]
    await watched.sees(RUNNING)
    assert watched.lines == ["the training's log can be followed again"]


async def test_time_in_which_a_job_is_suspended_does_not_count_as_running(a_run, clock):
    """Slurm subtracts that time as well and keeps the start time; a requeued job has a new start time."""
    suspended = QUEUED.model_copy(update={"nodes": ("n1",), "reason": "suspended"})
    requeued = RUNNING.model_copy(update={"started_at": 1_790_009_000.0})
    watched = Watched(a_run(), WaitLimits(patience_s=600, queue_s=7200, run_s=3600))
    for status, lasts_s in (
        *((RUNNING, 1800), (suspended, 7200), (RUNNING, 0), (RUNNING, 900), (suspended, 7200), (RUNNING, 0)),
        *((RUNNING, 900), (requeued, 3600), (suspended, 7201)),
    ):
        assert await watched.sees(status) is None, status
        clock.now += lasts_s
        if lasts_s and lasts_s != 7201:
            assert await watched.sees(status) is None, status
    with pytest.raises(Overdue, match=r"in the queue for 2.0 h \(suspended\)"):
        await watched.sees(suspended)
    await watched.sees(requeued)
    clock.now += 1
    with pytest.raises(Overdue, match=r"running for 60 min"):
        await watched.sees(requeued)


async def test_a_job_that_comes_back_to_the_queue_waits_from_then_on(a_run, clock):
    watched = Watched(
        a_run(), WaitLimits(patience_s=600, queue_s=3600, run_s=_EVER_S), submitted_at=clock.now
    )
    await watched.sees(RUNNING)
    clock.now += 7200
    assert await watched.sees(QUEUED) is None


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("size", [1 << 18, (1 << 22) + 1])
async def test_after_a_restart_the_end_of_a_long_log_is_told_again(a_run, size, monkeypatch):
    monkeypatch.setattr(log_following, "_WITHIN_S", 300)  # long enough on a busy machine
    run, job = a_run().model_copy(update={"max_steps": 4000}), Job.model_validate({**_JOB, "submitted_at": 0})
    cluster = CountingCluster(RUNNING, log=b"")
    whole = b"".join(step_lines(step) for step in range(3000)) + b"setting up\n" * (size // 11)
    tail = step_lines(3001) + step_lines(3000) + step_lines(3002)  # of ranks, one of which is a step behind
    cluster.log = whole[:size] + b"\n" + tail
    lines = []
    follower = LogFollower(run, job, info=lines.append, warn=lines.append)

    await follower.look(cluster)

    skipped = int(lines[0].removeprefix("the first ").partition(" KiB")[0].replace(",", ""))
    assert 0 <= len(cluster.log) - (1 << 18) - (skipped << 10) + (1 << 16) <= (1 << 16) + 1024
    assert lines[-1].startswith("step"), lines
    assert lines[-1].endswith(" left"), lines
    assert not [line for line in lines if "restarted" in line]
    assert cluster.bytes_read < (1 << 18) + 1000
    cluster.log += step_lines(3003)
    await follower.look(cluster)
    assert lines[-1] == "step 3003 of 0-3999 · 0.5 s · loss 8.4 · about 8 min left"


@pytest.mark.usefixtures("clock")
async def test_a_log_that_is_cut_or_replaced_is_followed_from_its_beginning(a_run):
    """A log that is only shorter is read twice first, as one login node may lag behind another."""
    job, lines = Job.model_validate({**_JOB, "submitted_at": 0}), list[str]()
    cluster = ScriptedCluster(RUNNING, log=step_lines(0, 1))
    follower = LogFollower(a_run(), job, info=lines.append, warn=lines.append)

    async def told(log):
        lines.clear()
        cluster.log = log
        await follower.look(cluster)
        return [line.partition(" of")[0] for line in lines]

    assert await told(step_lines(0, 1)) == ["step 0", "step 1"]
    assert await told(step_lines(0)) == []
    assert await told(step_lines(0, 1, 2)) == ["step 2"], "it was there all the time"
    assert await told(step_lines(0)) == []
    assert await told(step_lines(0)) == [ANOTHER_LOG, "step 0"]
    assert await told(step_lines(0, 1, seconds=7)) == [ANOTHER_LOG, "step 0", "step 1"]


@pytest.mark.usefixtures("clock")
async def test_a_replaced_log_of_a_form_of_its_own_is_followed(a_run):
    launcher = OwnProgram(kind="command", command=("train",), step_line="iter {step}: {s} s")
    run = a_run()
    run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"launcher": launcher})})
    lines = list[str]()
    cluster = ScriptedCluster(RUNNING, log=b"iter 0: 1.5 s\n")
    job = Job.model_validate({**_JOB, "submitted_at": 0})
    follower = LogFollower(run, job, info=lines.append, warn=lines.append)

    await follower.look(cluster)
    cluster.log = b"iter 3: 2.5 s\n"
    await follower.look(cluster)

    assert [line.partition(" of")[0] for line in lines] == ["step 0", ANOTHER_LOG, "step 3"]


async def test_a_piece_of_the_log_is_waited_for_a_time_only(watched, monkeypatch):
    async def hangs(*_):
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(log_following, "_READ_WITHIN_S", 0.01)
    watched.cluster.read = hangs  # type: ignore[method-assign]
    await watched.sees(RUNNING)
    assert "the job is waited for without it: /d/log could not be read within 0 s" in watched.lines[-1]


async def test_a_look_at_a_log_that_grows_faster_than_it_is_read_ends(a_run, monkeypatch):
    piece = 1 << 14
    monkeypatch.setattr(log_following, "_PIECE_BYTES", piece)
    monkeypatch.setattr(log_following, "_MOST_BYTES_A_LOOK", 2 * piece)

    class Growing(CountingCluster):
        async def read(self, path, offset=0, limit=1 << 20):
            if self.bytes_read < 9 * piece:
                self.log += (b"." * 99 + b"\n") * 330
            return await super().read(path, offset, limit)

    job, lines = Job.model_validate({**_JOB, "submitted_at": 0}), list[str]()
    cluster = Growing(RUNNING, log=step_lines(0))
    await LogFollower(a_run(), job, info=lines.append, warn=lines.append)._read(cluster)
    assert cluster.bytes_read < 5 * piece


@pytest.mark.long
@pytest.mark.usefixtures("clock")
async def test_a_flood_of_lines_is_neither_parsed_on_the_event_loop_nor_read_whole(a_run, monkeypatch):
    job, lines = Job.model_validate({**_JOB, "submitted_at": 0}), list[str]()
    cluster = CountingCluster(RUNNING, log=step_lines(0))
    follower = LogFollower(a_run(), job, info=lines.append, warn=lines.append)
    await follower.look(cluster)
    loop_is_free, feed = threading.Event(), StepFollower.feed

    def slow(steps, data):
        assert loop_is_free.wait(60), "the event loop waits for a piece to be parsed"
        return feed(steps, data)

    monkeypatch.setattr(StepFollower, "feed", slow)
    asyncio.get_running_loop().call_later(0.1, loop_is_free.set)
    cluster.bytes_read = 0
    for step in (1, 2):
        line = b"torch.OutOfMemoryError: CUDA out of memory." + b" " * 399 + b".\n"
        cluster.log += line * 20_000 + step_lines(step)
        while not lines[-1].startswith(f"step {step}"):
            await follower.look(cluster)
            await asyncio.sleep(0.01)  # it does not wait for the reader
    assert cluster.bytes_read < 6 << 20, "of 17 MiB"
    assert [line.partition(":")[0] for line in lines if "step" not in line] == [
        "in the training's log",
        "the training's log grows by more than is read here, and parts of it are skipped",
    ]
    assert [line.partition(" of")[0] for line in lines if "step" in line] == ["step 0", "step 1", "step 2"]
