"""Steps of staging that run as a job of the cluster."""

import asyncio
from pathlib import Path, PurePosixPath

import pytest

from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure
from steptime.staging.scripts import run_script

from .reported import Reported

pytestmark = pytest.mark.service


@pytest.fixture
def config(config):
    """Return a cluster that is polled often."""
    return config.model_copy(update={"poll_interval_s": 0.05})


WAITS = """
import pathlib, sys, time
print("begun", flush=True)
while pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


async def test_a_job_that_another_submits_after_ones_look_is_shared_too(config, tmp_path, monkeypatch):
    script, gate = tmp_path / "waits.py", tmp_path / "gate"
    script.write_text(WAITS)
    gate.touch()
    first, second = Reported(), Reported()

    async def run(reported):
        path = PurePosixPath(script)
        said = reported.lines.append
        return await run_script(
            LocalCluster(config), config, path, [str(gate)], in_job=True, job_options=(), report=said
        )

    look = LocalCluster.poll
    overtaking = []

    async def look_and_be_overtaken(cluster, names):
        seen = await look(cluster, names)
        if not overtaking:
            overtaking.append(asyncio.create_task(run(second)))
            await second.has_said("begun")
        return seen

    monkeypatch.setattr(LocalCluster, "poll", look_and_be_overtaken)
    waiting = asyncio.create_task(run(first))
    await first.has_said("begun")
    gate.unlink()
    assert [(await waiting).exit_code, (await overtaking[0]).exit_code] == [0, 0]
    assert first.lines[0] == second.lines[0]
    assert len(list(Path(config.root, "staging", "jobs").iterdir())) == 1


@pytest.mark.parametrize("in_job", [False, True])
@pytest.mark.parametrize("exit_code", [0, 1, 2])
async def test_a_script_has_two_hours_and_its_exit_code_is_told(
    config, tmp_path, monkeypatch, exit_code, in_job
):
    script = tmp_path / "ends.py"
    script.write_text(f"import sys; print('said'); sys.exit({exit_code})")
    submit, limits = LocalCluster.submit, []

    async def note_limit(self, spec):
        limits.append(spec.time_limit_s)
        return await submit(self, spec)

    monkeypatch.setattr(LocalCluster, "submit", note_limit)
    path, cluster = PurePosixPath(script), LocalCluster(config)
    ended = await run_script(cluster, config, path, [], in_job=in_job, job_options=(), report=print)
    assert (ended.exit_code, ended.last_lines[-1]) == (exit_code, "said")
    assert limits == [2 * 3600] * in_job


async def test_a_job_that_its_cluster_failed_is_no_success(config, tmp_path, monkeypatch):
    """The job has no exit code, as after a node failure or at a limit."""
    script = tmp_path / "waits.py"
    script.write_text("import time; time.sleep(600)")
    cluster, look = LocalCluster(config), LocalCluster.poll
    submitted = False

    async def look_at_a_failed_node(self, names):
        if not submitted:
            return await look(self, names)
        await self.cancel(names[0])
        return {name: JobStatus(state=JobState.FAILED, reason="a node failed") for name in names}

    def take(line):
        nonlocal submitted
        submitted = submitted or line.startswith("in job ")

    monkeypatch.setattr(LocalCluster, "poll", look_at_a_failed_node)
    with pytest.raises(SystemFailure, match=r"job stage-\w+-1 on here is failed \(a node failed\)"):
        await run_script(cluster, config, PurePosixPath(script), [], in_job=True, job_options=(), report=take)


async def test_a_reason_to_wait_is_reported_once(config, tmp_path, monkeypatch):
    script = tmp_path / "says.py"
    script.write_text("print('done', end='')")
    look, lines = LocalCluster.poll, []
    waits = [JobStatus(state=JobState.QUEUED, reason="Resources")] * 3 + [JobStatus(state=JobState.RUNNING)]

    async def look_at_a_queue(self, names):
        waiting = lines and waits
        return {names[0]: waits.pop(0)} if waiting else await look(self, names)

    monkeypatch.setattr(LocalCluster, "poll", look_at_a_queue)
    path, cluster, take = PurePosixPath(script), LocalCluster(config), lines.append
    await run_script(cluster, config, path, [], in_job=True, job_options=(), report=take)
    assert sorted(lines[1:]) == ["done", "queued: Resources"]
