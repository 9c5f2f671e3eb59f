"""Training in a container on Slurm: a real squashfs image of the trainer's environment, run by bwrap."""

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import squash_venv

from steptime import settings, staging
from steptime.clusters.base import JobState
from steptime.clusters.config import open_cluster
from steptime.clusters.jobscript import job_spec
from steptime.clusters.slurm.cluster import SlurmConfig
from steptime.logs.reader import read_log
from steptime.staging.stage import stage

from .jobs import planned

pytestmark = [pytest.mark.trainer, pytest.mark.slurm, pytest.mark.exhaustive]
IMAGE = "steptime/trainer:cpu"


@pytest.fixture
def work_dir(trainer_python):
    """Return a cluster's folder where later test runs find the image, unless what makes it has changed.

    To squash and unpack two gigabytes takes a minute of CPU; tests/staging/test_container.py does both each
    time, with an almost empty environment.
    """
    programs = [Path(staging.__file__).with_name(f"{name}_image.py") for name in ("import", "unpack")]
    programs.append(Path(squash_venv.__file__))
    digest = hashlib.sha256(b"".join(program.read_bytes() for program in programs)).hexdigest()
    folder = settings.home() / "image-of-tests" / f"{Path(trainer_python).parents[1].name}-{digest[:16]}"
    for other in set(folder.parent.glob("*")) - {folder}:
        shutil.rmtree(other)
    for of_before in set(folder.glob("*")) - {folder / "images"}:
        of_before.unlink() if of_before.is_symlink() else shutil.rmtree(of_before)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.timeout(1500)
async def test_a_tiny_llama_is_trained_in_a_real_image(trainer_python, mini_slurm, work_dir):
    """The image was put there; the login node unpacks it, and srun starts a container for each rank."""
    config = SlurmConfig.model_validate(
        {
            "name": "contained",
            "kind": "slurm",
            "gpu_type": "cpu",
            "container": "bwrap",
            "work_dir": str(work_dir),
            "python": str(Path(trainer_python).resolve()),
            "connection": "mini_slurm",
            "poll_interval_s": 0.5,
        }
    )
    file = Path(config.root, "images", "steptime+trainer+cpu.sqsh")
    if not file.exists():
        file.parent.mkdir()
        venv = Path(trainer_python).parents[1]
        subprocess.run([sys.executable, squash_venv.__file__, venv, file], check=True)
    run = planned(gpus=2, max_steps=12)
    run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": IMAGE})})
    async with open_cluster(config, mini_slurm.connections) as cluster:
        staged = await stage(cluster, config, run, print)
        assert (staged.python, staged.image) == (None, IMAGE)
        record = json.loads(Path(f"{file}.json").read_text())
        assert record["sha256"] == staged.image_sha256
        spec = job_spec(run, staged, config, identity="contained", started=1_790_000_000)
        assert "  bwrap \\\n" in spec.script
        job = await cluster.submit(spec)
        status = await _end_of(cluster, job)
    assert status.state is JobState.SUCCEEDED, Path(job.log_path).read_text()
    log = read_log(Path(job.log_path))
    assert [step.global_step for step in log.steps] == list(range(12))
    assert log.started is not None
    assert log.started["world_size"] == 2


async def _end_of(cluster, job):
    while True:
        status = (await cluster.poll([job.name]))[job.name]
        if not status.state.is_live:
            return status
        await asyncio.sleep(0.1)
