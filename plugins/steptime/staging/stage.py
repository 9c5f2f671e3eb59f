"""Makes ready on a cluster all that a run needs there: the trainer's code, its packages or an image."""

from collections.abc import Callable
from pathlib import PurePosixPath

from steptime.clusters.base import Cluster, Staged
from steptime.clusters.config import ClusterConfig
from steptime.clusters.containers import ImageForm
from steptime.errors import UserError
from steptime.recipes.image import parse_image
from steptime.recipes.models import Run
from steptime.settings import shipped
from steptime.staging.hub import require_hub_files
from steptime.staging.image import stage_image
from steptime.staging.trainer_code import stage_trainer
from steptime.staging.venv import stage_venv


def _fetched_by_nodes(staged: Staged, name: str) -> Staged:
    """The nodes fetch the image themselves, when a job comes that wants it."""
    image = parse_image(name)
    if image.is_own:
        raise UserError(
            f"image {name} is made on a cluster, and nodes that fetch their images have it from nowhere"
        )
    return staged.model_copy(update={"image": name, "image_path": name, "image_digest": image.digest})


async def stage(cluster: Cluster, config: ClusterConfig, run: Run, report: Callable[[str], None]) -> Staged:
    """Make ready what `run` needs on the cluster, or find it there; `report` gets lines of progress.

    Raises UserError if the cluster cannot offer it, SystemFailure if it fails.
    """
    if run.recipe.image is not None and config.image_form is None:
        raise UserError(
            f"{run.label} runs in the container {run.recipe.image}, and cluster {config.name} runs none "
            f"(container: {config.container}): choose gpu type cpu, or another cluster"
        )
    await require_hub_files(cluster, config, run)
    trainer = shipped("trainer")
    trainer_path, trainer_sha256 = await stage_trainer(cluster, config, source=trainer, report=report)
    staged = Staged(
        python=None, venv_lock_sha256=None, trainer_path=trainer_path, trainer_sha256=trainer_sha256
    )
    name = run.recipe.image
    if name is not None and config.image_form is ImageForm.NAME:
        return _fetched_by_nodes(staged, name)
    venv: str | None = None
    if name is None or parse_image(name).is_own:
        python, lock_sha256 = await stage_venv(
            cluster,
            config,
            lock=trainer / "requirements-cpu.lock.txt",
            bootstrap=trainer.parent / "requirements-bootstrap.txt",
            report=report,
        )
        staged = staged.model_copy(update={"python": python, "venv_lock_sha256": lock_sha256})
        venv = str(PurePosixPath(python).parents[1])
    if name is None:
        return staged
    image = await stage_image(
        cluster,
        config,
        name,
        venv=venv,
        mounts=config.mounts(run),
        job_options=config.staging_job_options(run),
        report=report,
    )
    return staged.model_copy(
        update={
            "python": None,
            "image": name,
            "image_path": image.path,
            "image_digest": image.digest,
            "image_sha256": image.sha256,
            "image_environment": image.environment,
        }
    )
