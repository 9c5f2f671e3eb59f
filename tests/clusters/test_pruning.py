"""What `steptime clean` takes away: notes of ended jobs of a real local cluster, old copies, nothing else."""

import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from filelock import FileLock

from steptime.cli.clean import Old, prune
from steptime.clusters.base import Cluster, JobSpec, JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.clusters.local.state import JobFolder, locked

from .conftest import GatedJob

MakeSpec = Callable[..., JobSpec]
EndOf = Callable[[Cluster, str], Awaitable[JobStatus]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]
RunToEnd = Callable[[JobSpec], Awaitable[None]]


@pytest.fixture(autouse=True)
def configured(
    tmp_path: Path, make_config: Callable[..., LocalConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster `here` of the fixtures in a configuration of its own, and a state folder."""
    (tmp_path / "config" / "clusters").mkdir(parents=True)
    (tmp_path / "config" / "clusters" / "here.yaml").write_text(make_config().model_dump_json())
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))


@pytest.fixture
def run_to_end(
    local: LocalCluster, end_of: EndOf, eventually: Eventually, make_config: Callable[..., LocalConfig]
) -> RunToEnd:
    """Runs a job until its runner is gone as well, which is a moment after the job's end."""

    async def run(spec: JobSpec) -> None:
        await local.submit(spec)
        await end_of(local, spec.name)
        job = JobFolder(Path(make_config().root, "clusters", "here"), spec.name)
        await eventually(lambda: not job.runner_lives())

    return run


def notes(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "work" / "clusters" / "here" / "jobs").iterdir()}


def names(found: list[Old]) -> list[str]:
    return [old.name for old in found]


async def test_notes_of_ended_jobs_go_and_those_of_live_ones_stay(
    *,
    local: LocalCluster,
    make_spec: MakeSpec,
    make_gated: Callable[..., GatedJob],
    end_of: EndOf,
    eventually: Eventually,
    run_to_end: RunToEnd,
    tmp_path: Path,
) -> None:
    runs, waits = make_gated("runs", slots=2), make_gated("waits", slots=2)
    for job in (make_spec("good", "true"), make_spec("bad", "false")):
        await run_to_end(job)
    for gated in (runs, waits):
        await local.submit(gated.spec)
    await eventually(lambda: runs.pid)

    assert prune(before=time.time() + 1, dry_run=False) == [], "their folders are there"
    for spec in (make_spec("good", ""), make_spec("bad", ""), runs.spec, waits.spec):
        Path(spec.directory).rename(Path(spec.directory).with_suffix(".gone"))
    assert prune(before=time.time() - 3600, dry_run=False) == [], "they have just ended"
    assert names(prune(before=time.time() + 1, dry_run=True)) == ["bad", "good"]
    assert notes(tmp_path) == {"bad", "good", "runs", "waits"}

    assert names(prune(before=time.time() + 1, dry_run=False)) == ["bad", "good"]
    assert notes(tmp_path) == {"runs", "waits"}
    assert sorted(path.name for path in (tmp_path / "work" / "clusters" / "here").iterdir()) == [
        *("jobs", "queue", "slots", "submit.lock", "tickets")
    ]
    assert await local.find("good") is None
    for gated in (runs, waits):
        gated.folder.with_suffix(".gone").rename(gated.folder)
    for gated in (runs, waits):
        gated.let_go()
        assert (await end_of(local, gated.spec.name)).state is JobState.SUCCEEDED


async def test_a_job_whose_runner_still_lives_keeps_its_notes(
    run_to_end: RunToEnd, make_spec: MakeSpec, tmp_path: Path
) -> None:
    await run_to_end(make_spec("ends", "true"))
    shutil.rmtree(make_spec("ends", "").directory)

    with locked(JobFolder(tmp_path / "work" / "clusters" / "here", "ends").runner_lock):
        assert prune(before=time.time() + 1, dry_run=False) == []
    assert names(prune(before=time.time() + 1, dry_run=False)) == ["ends"]


def test_copies_of_logs_go_by_their_age_unless_one_is_being_made(tmp_path: Path) -> None:
    copies = tmp_path / "home" / "logs-collected" / "far"
    for name, age_s in (("old", 900), ("young", 0), ("copying", 900)):
        (copies / name).mkdir(parents=True)
        (copies / name / "log.out").write_text("step\n")
        os.utime(copies / name / "log.out", (time.time() - age_s,) * 2)
    (copies / "old" / "empty").mkdir()

    with FileLock(copies / "copying" / ".lock"):
        os.utime(copies / "copying" / ".lock", (time.time() - 900,) * 2)
        assert names(prune(before=time.time() - 600, dry_run=True)) == ["copying", "old"]
        [gone] = prune(before=time.time() - 600, dry_run=False)

    assert (gone.what, gone.name, gone.size_bytes) == ("copy of a log", "old", 5)
    assert sorted(path.name for path in copies.iterdir()) == ["copying", "young"]
