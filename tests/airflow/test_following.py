"""What people read while they wait."""

from collections.abc import Callable

import pytest

from steptime.airflow.following import JobFollower
from steptime.clusters.base import Job, JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.recipes.models import Run

from .scripted_cluster import ScriptedCluster

QUEUED = JobStatus(state=JobState.QUEUED, reason="waits for 2 of 2 slots")
RUNNING = JobStatus(state=JobState.RUNNING, started_at=1_790_000_000.0, nodes=("n1",))
FAILED = JobStatus(state=JobState.FAILED, exit_code=1)
UNKNOWN = JobStatus(state=JobState.UNKNOWN)


def step_lines(*steps: int) -> bytes:
    return b"".join(
        b"Training epoch 0, iteration %d/19 | lr: 3e-05 | global_batch_size: 8 | global_step: %d "
        b"| reduced_train_loss: 8.40 | train_step_timing in s: 0.5000 | consumed_samples: %d\n"
        % (step, step, 8 * (step + 1))
        for step in steps
    )


class Watched:
    """A follower of a job whose cluster says what a test wants, and the lines that it said."""

    def __init__(self, run: Run, patience_s: float) -> None:
        self.lines: list[str] = []
        self.cluster = ScriptedCluster(RUNNING)
        job = Job(cluster="local", name="job", job_id="1", directory="/d", log_path="/d/log", submitted_at=0)
        self.follower = JobFollower(
            run, job, say=self.lines.append, warn=self.lines.append, patience_s=patience_s
        )

    async def sees(self, status: JobStatus, log: bytes = b"") -> JobStatus | None:
        self.lines.clear()
        self.cluster.log += log
        return await self.follower.observe(self.cluster, status)


@pytest.fixture
def watched(a_run: Callable[..., Run]) -> Watched:
    return Watched(a_run(), patience_s=600)


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


async def test_a_job_must_be_missed_several_times_before_it_is_gone(watched: Watched) -> None:
    seen = [await watched.sees(status) for status in (UNKNOWN, UNKNOWN, RUNNING, UNKNOWN, UNKNOWN, UNKNOWN)]

    assert seen == [None, None, None, None, None, UNKNOWN]


async def test_failed_polls_are_forgiven_for_a_while(a_run: Callable[..., Run]) -> None:
    patient, impatient = Watched(a_run(), patience_s=600), Watched(a_run(), patience_s=-1)

    patient.follower.missed(ConnectionError("no route to host"))

    assert "no route to host" in patient.lines[0]
    with pytest.raises(SystemFailure, match=r"nothing heard of job 'job'.*no route to host"):
        impatient.follower.missed(ConnectionError("no route to host"))
