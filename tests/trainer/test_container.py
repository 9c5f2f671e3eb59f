"""Training in a container: a real squashfs image of the trainer's environment, run by bwrap in a job."""

import asyncio
import json
from pathlib import Path

import pytest

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.clusters.jobscript import job_spec
from steptime.clusters.local import Config, LocalCluster
from steptime.logs.reader import read_log
from steptime.staging import stage

from .jobs import planned

pytestmark = pytest.mark.trainer
IMAGE = "steptime/trainer:cpu"


@pytest.mark.timeout(600)
async def test_a_tiny_llama_is_trained_in_a_real_image(trainer_python: str, tmp_path: Path) -> None:
    venvs = Path(trainer_python).parents[2]
    config = Config.model_validate(
        {
            "name": "contained",
            "kind": "local",
            "gpu_type": "cpu",
            "container": "bwrap",
            "work_dir": str(tmp_path / "work"),
            "slots": 2,
            "python": str(Path(trainer_python).resolve()),
        }
    )
    Path(config.root).mkdir()
    (Path(config.root) / "venvs").symlink_to(venvs)  # built once for all tests; inside the image it is hidden
    run = planned(gpus=2, max_steps=12)
    run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": IMAGE})})
    cluster = LocalCluster(config)
    staged = await stage(cluster, config, run, print)
    assert (staged.python, staged.image) == (None, IMAGE)
    assert staged.image_path is not None
    record = json.loads(Path(config.root, "images", "steptime+trainer+cpu.sqsh.json").read_text())
    assert record["sha256"] == staged.image_sha256
    (Path(config.root) / "venvs").unlink()  # nothing but the image can give the packages
    job = await cluster.submit(job_spec(run, staged, config, identity="contained", started=1_790_000_000))
    status = await _end_of(cluster, job)
    text = Path(job.log_path).read_text()
    assert status.state is JobState.SUCCEEDED, text
    log = read_log(Path(job.log_path))
    assert [step.global_step for step in log.steps] == list(range(12))
    assert log.started is not None
    assert log.started["world_size"] == 2


async def _end_of(cluster: LocalCluster, job: Job) -> JobStatus:
    while True:
        status = (await cluster.poll([job.name]))[job.name]
        if not status.state.is_live:
            return status
        await asyncio.sleep(0.1)
