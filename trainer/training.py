"""One training job, put together from NeMo's parts and run."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import seed_everything
from nemo.lightning import NeMoLogger, Trainer
from nemo.utils.exp_manager import TimingCallback

from trainer import checkpoint, devices, families, parallelism
from trainer.callbacks import FiniteLoss, History, ModelParallelSeed, Records, StepLines
from trainer.data import SyntheticData
from trainer.launch import Launch
from trainer.optimizer import optimizer
from trainer.run import PlannedRun


def train(run: PlannedRun, launch: Launch, output: Path, weights: Path | None, history: Path | None) -> None:
    """Train the planned steps.

    Args:
        run: what to train.
        launch: this process among the ranks.
        output: the job's folder; NeMo's files and checkpoints go below it.
        weights: the checkpoint's `weights` folder, for a run that loads one.
        history: a file for every step's loss and time with all digits, written by rank 0.

    Raises:
        TrainerError: the plan does not fit this machine or the checkpoint.
        TrainingFailure: the training diverged.
    """
    device = devices.training_device(run.recipe.gpu_type)
    parallelism.check_dtype(run.recipe.dtype, device)
    with devices.cpu_as_cuda() if device == "cpu" else contextlib.nullcontext():
        if device == "cpu":
            torch.set_num_threads(launch.threads)
        _fit(run, launch, device, output, weights, history)


def _fit(
    run: PlannedRun, launch: Launch, device: str, output: Path, weights: Path | None, history: Path | None
) -> None:
    recipe = run.recipe
    seed_everything(run.seed, verbose=False)
    saves = run.mode == "checkpoint_save"
    trainer = Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=launch.local_world_size,
        num_nodes=launch.nodes,
        max_steps=run.max_steps,
        strategy=parallelism.strategy(recipe.parallelism, device),
        # Named, as Lightning would otherwise take Slurm's variables for the launcher wherever it sees them.
        plugins=[
            TorchElasticEnvironment() if launch.elastic else LightningEnvironment(),
            *parallelism.precision(recipe.dtype),
        ],
        callbacks=_callbacks(run, launch, device, history),
        enable_checkpointing=saves,
        log_every_n_steps=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # NeMo's data module brings Megatron's
        enable_model_summary=False,
        logger=False,
    )
    NeMoLogger(
        log_dir=str(output / checkpoint.EXPERIMENT_FOLDER),
        use_datetime_version=False,
        log_global_rank_0_only=True,
        ckpt=checkpoint.save_at_end(run.max_steps) if saves else None,
    ).setup(trainer)
    model = families.builder(recipe.model.architecture)(recipe.model, parallelism.model_options(device))
    optimizer(recipe.dtype, distributed=device == "cuda").connect(model)
    trainer.fit(
        model,
        datamodule=SyntheticData(run, attention_mask=device == "cpu"),
        ckpt_path=str(weights) if weights else None,
    )


def _callbacks(run: PlannedRun, launch: Launch, device: str, history: Path | None) -> list[Any]:
    """In the order in which they act at the end of a step: the time first, as the lines after it show it."""
    timing = TimingCallback()
    callbacks = [timing, ModelParallelSeed(run.seed), Records(run, device), StepLines(log_interval=1)]
    if history and launch.rank == 0:
        callbacks.append(History(history, timing))
    return [*callbacks, FiniteLoss()]
