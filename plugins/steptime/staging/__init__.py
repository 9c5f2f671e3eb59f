"""Putting on a cluster what a run needs there: the trainer's code and its environment."""

from collections.abc import Callable

from steptime.clusters.base import Cluster, Staged
from steptime.clusters.config import ClusterConfig
from steptime.errors import UserError
from steptime.recipes.models import Run
from steptime.settings import shipped
from steptime.staging.trainer_code import stage_trainer
from steptime.staging.venv import stage_venv


async def stage(cluster: Cluster, config: ClusterConfig, run: Run, report: Callable[[str], None]) -> Staged:
    """Make ready what `run` needs on the cluster, or find it there; `report` gets lines of progress.

    Raises UserError where the cluster cannot offer it, SystemFailure where it fails.
    """
    if run.recipe.image is not None:
        raise UserError(
            f"{run.label} runs in the container {run.recipe.image}, and cluster {config.name} runs none "
            f"(container: {config.container}): choose gpu type cpu, or another cluster"
        )
    trainer = shipped("trainer")
    trainer_path, trainer_sha256 = await stage_trainer(cluster, config, source=trainer, report=report)
    python, lock_sha256 = await stage_venv(
        cluster,
        config,
        lock=trainer / "requirements-cpu.lock.txt",
        bootstrap=trainer.parent / "requirements-bootstrap.txt",
        report=report,
    )
    return Staged(
        python=python,
        venv_lock_sha256=lock_sha256,
        trainer_path=trainer_path,
        trainer_sha256=trainer_sha256,
    )
