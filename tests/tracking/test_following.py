"""What people read while they wait."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.clusters.config import load_cluster
from steptime.errors import OutOfReach
from steptime.recipes.models import Run
from steptime.tracking.following import JobFollower, Overdue, WaitLimits, limits_of
from steptime.tracking.log_following import LogFollower
from steptime.tracking.log_place import LogPlace

from .scripted_cluster import ScriptedCluster

QUEUED = JobStatus(state=JobState.QUEUED, reason="waits for 2 of 2 slots")
RUNNING = JobStatus(state=JobState.RUNNING, started_at=1_790_000_000.0, nodes=("n1",))
FAILED = JobStatus(state=JobState.FAILED, exit_code=1)
_PATIENT = WaitLimits(patience_s=600)
_JOB = {"cluster": "local", "name": "job", "job_id": "1", "directory": "/d", "log_path": "/d/log"}


def step_lines(*steps: int) -> bytes:
    return b"".join(
        b"Training epoch 0, iteration %d/19 | lr: 3e-05 | global_batch_size: 8 | global_step: %d "
        b"| reduced_train_loss: 8.40 | train_step_timing in s: 0.5000 | consumed_samples: %d\n"
        % (step, step, 8 * (step + 1))
        for step in steps
    )


class CountingCluster(ScriptedCluster):
    """Counts the bytes of the log that were read."""

    bytes_read = 0

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        data = await super().read(path, offset, limit)
        self.bytes_read += len(data)
        return data


class Watched:
    """A follower of a job whose cluster says what a test wants, and the lines that it said."""

    def __init__(self, run: Run, limits: WaitLimits = _PATIENT, *, submitted_at: float = 0) -> None:
        self.lines: list[str] = []
        self.cluster = ScriptedCluster(RUNNING)
        job = Job.model_validate({**_JOB, "submitted_at": submitted_at})
        say = self.lines.append
        self.follower = JobFollower(
            job, limits, LogFollower(run, job, info=say, warn=say), info=say, warn=say
        )

    async def sees(self, status: JobStatus, log: bytes = b"") -> JobStatus | None:
        self.lines.clear()
        self.cluster.log += log
        return await self.follower.observe(self.cluster, status)


@pytest.fixture
def watched(a_run: Callable[..., Run]) -> Watched:
    return Watched(a_run())


async def test_states_are_told_when_they_change(watched: Watched) -> None:
    assert await watched.sees(QUEUED) is None
    assert watched.lines == ["job job: queued, waits for 2 of 2 slots"]
    await watched.sees(QUEUED)
    assert watched.lines == []
    await watched.sees(RUNNING)
    assert watched.lines == ["job job: running since 14:13:20 UTC on n1"]


async def test_steps_come_one_by_one_with_the_time_left(watched: Watched) -> None:
    await watched.sees(RUNNING, step_lines(0, 1))

    assert watched.lines[1:] == [
        "step 0 of 0-19 · 0.5 s · loss 8.4 · about 10 s left",
        "step 1 of 0-19 · 0.5 s · loss 8.4 · about 9 s left",
    ]


async def test_many_steps_at_once_are_summed_up(watched: Watched) -> None:
    await watched.sees(RUNNING, step_lines(*range(12)))

    assert watched.lines[1:] == ["steps 0-11 of 0-19 · mean 0.5 s · loss 8.4 · about 4 s left"]


async def test_a_line_that_is_half_written_waits_for_its_end(watched: Watched) -> None:
    line = step_lines(0)
    await watched.sees(RUNNING, line[:-30])
    assert watched.lines[1:] == []
    await watched.sees(RUNNING, line[-30:])
    assert watched.lines == ["step 0 of 0-19 · 0.5 s · loss 8.4 · about 10 s left"]


async def test_trouble_in_the_log_is_told_at_once(watched: Watched) -> None:
    await watched.sees(RUNNING, b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.\n")

    assert any("memory" in line for line in watched.lines[1:])


async def test_the_end_is_told_with_the_last_steps(watched: Watched) -> None:
    assert await watched.sees(FAILED, step_lines(0)[:-1]) == FAILED

    assert watched.lines == [
        "step 0 of 0-19 · 0.5 s · loss 8.4 · about 10 s left",
        "job job: failed, exit code 1",
    ]


async def test_a_cluster_out_of_reach_is_told_and_no_failure_until_its_patience_is_over(
    a_run: Callable[..., Run],
) -> None:
    patient, impatient = Watched(a_run()), Watched(a_run(), WaitLimits(patience_s=-1))

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


async def test_whichever_limit_runs_out_is_told_with_its_value(a_run: Callable[..., Run]) -> None:
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
    with pytest.raises(Overdue, match=r"running for 0 s, its time limit with 60 min of grace is 0 s"):
        await runs.sees(RUNNING)


def test_the_limits_follow_from_the_run_and_the_clusters_file(a_run: Callable[..., Run]) -> None:
    run = a_run()
    file = load_cluster("local").model_copy(update={"patience_h": 2, "queue_patience_h": 3})

    assert limits_of(run, file) == WaitLimits(patience_s=7200, queue_s=10800, run_s=run.time_limit_s + 3600)


@pytest.mark.parametrize("fault", ["refused", "hangs"])
async def test_a_log_that_cannot_be_read_is_told_and_holds_nothing_up(watched: Watched, fault: str) -> None:
    """The log's own file system hangs, or refuses: the polls go on, and so does the news of the end."""
    read, broken = watched.cluster.read, True

    async def unreadable(path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        if broken and fault == "hangs":
            await asyncio.Event().wait()
        if broken:
            raise PermissionError("Permission denied: /d/log")
        return await read(path, offset, limit)

    watched.cluster.read = unreadable  # type: ignore[method-assign]
    began = time.monotonic()
    for _ in range(3):
        assert await watched.sees(RUNNING, step_lines(0)) is None
    assert await watched.sees(FAILED) == FAILED
    assert time.monotonic() - began < 20, "a hanging read is waited for once for 2 s, and at the end for 10 s"
    told = "cannot be followed" if fault == "refused" else "is slow to come and not told here"
    assert any(told in line for line in watched.lines), watched.lines
    assert watched.lines[-1] == "job job: failed, exit code 1"


async def test_who_goes_on_after_a_restart_reads_only_what_is_new(a_run: Callable[..., Run]) -> None:
    kept: list[Any] = [None]

    async def get() -> Any:
        return kept[0]

    async def keep(told: Any) -> None:
        kept[0] = told

    run, job = a_run(), Job.model_validate({**_JOB, "submitted_at": 0})
    cluster = CountingCluster(RUNNING, log=b"setting up\n" * 100_000 + step_lines(0, 1)[:-20])
    lines: list[str] = []

    def after_a_restart() -> LogFollower:
        lines.clear()
        cluster.bytes_read = 0
        return LogFollower(run, job, info=lines.append, warn=lines.append, place=LogPlace(get, keep))

    await after_a_restart().look(cluster)
    assert [line.partition(" of")[0] for line in lines] == ["step 0"]
    assert cluster.bytes_read == len(cluster.log)
    cluster.log += step_lines(0, 1)[-20:] + step_lines(1, 2)
    follower = after_a_restart()
    await follower.look(cluster)
    assert [line.partition(" of")[0] for line in lines] == ["step 1", "step 2"], (
        "each once, also a broken line"
    )
    assert cluster.bytes_read < 70_000, "of a log of more than a megabyte"
    cluster.log = b""
    await after_a_restart().look(cluster)
    assert lines == [], "a log that was cut is followed from its beginning"
