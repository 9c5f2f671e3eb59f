"""Assemble one training job from NeMo's parts, and run it."""

from typing import Any

from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import seed_everything
from megatron.core.optimizer import OptimizerConfig
from nemo.lightning import NeMoLogger, Trainer
from nemo.lightning.io import pl as nemo_checkpoint_io
from nemo.lightning.pytorch.optim import MegatronOptimizerModule
from nemo.lightning.pytorch.optim.lr_scheduler import WarmupPolicyScheduler
from nemo.utils.exp_manager import TimingCallback

from trainer import checkpoint, devices, families, gpu_performance, hyperparameters, parallelism
from trainer.callbacks import Records, common_callbacks
from trainer.checkpoint_io import MeasuredCheckpointIO
from trainer.cpu.cpu_as_cuda import Patch
from trainer.data import SyntheticData
from trainer.ending import Ending
from trainer.launch import Launch
from trainer.loop import LoopCallback
from trainer.nemo_callbacks import (
    InNemo,
    ModelFlops,
    ModelParallelSeed,
    StepBar,
    StepLines,
    WallTime,
)
from trainer.run import Folders
from trainer.spec import PlannedRun
from trainer.versions import accepted

try:
    from nemo.lightning.callback_group import CallbackGroup
except ModuleNotFoundError:  # NeMo 2.5.0 and before
    CallbackGroup = None


def _cpu_patches() -> list[Patch]:
    # After a load NeMo asserts that CUDA is initialised and moves tensors from a GPU to this rank's GPU.
    return [(nemo_checkpoint_io, "_fix_tensors_device", lambda checkpoint: checkpoint)]


def train(run: PlannedRun, launch: Launch, folders: Folders, ending: Ending) -> None:
    """Train the planned steps.

    Raises:
        TrainerError: the plan does not fit this machine or the checkpoint.
        TrainingFailure: the training diverged.
    """
    with devices.planned_device(run.recipe, launch, ending, _cpu_patches) as device:
        fit(run, launch, folders, ending, device)


def fit(run: PlannedRun, launch: Launch, folders: Folders, ending: Ending, device: str) -> None:
    """Build NeMo's trainer, model, optimizer and data for `cpu` or `cuda`, and train."""
    recipe = run.recipe
    seed_everything(run.seed, verbose=False)
    strategy = parallelism.strategy(
        recipe.parallelism,
        recipe.model.num_layers,
        device,
        run.settings,
        records_graphs=run.settings.cuda_graphs,
    )
    progress = ending.progress if launch.rank == 0 else None
    strategy.checkpoint_io = MeasuredCheckpointIO(strategy.checkpoint_io, progress)
    trainer = Trainer(
        accelerator="cpu" if device == "cpu" else "gpu",
        devices=launch.local_world_size,
        num_nodes=launch.nodes,
        max_steps=run.max_steps,
        strategy=strategy,
        # Named, as Lightning would otherwise take Slurm's variables for the launcher wherever it sees them.
        plugins=[
            TorchElasticEnvironment() if launch.by_launcher else LightningEnvironment(),
            *gpu_performance.precision(run),
        ],
        callbacks=_callbacks(run, launch, folders, ending, device),
        enable_checkpointing=run.mode == "checkpoint_save",
        log_every_n_steps=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # NeMo's data module brings Megatron's
        enable_model_summary=False,
        logger=False,
    )
    NeMoLogger(
        log_dir=str(folders.output / checkpoint.EXPERIMENT_FOLDER),
        use_datetime_version=False,
        log_global_rank_0_only=True,
    ).setup(trainer)
    build_model = families.builder(recipe.model.architecture)
    options = devices.model_options(device) | gpu_performance.model_options(run)
    model = build_model(recipe.model, device, options)
    optimizer(run, distributed=device == "cuda").connect(model)
    data = SyntheticData(run, attention_mask=device == "cpu")
    if CallbackGroup is not None:
        # NeMo's telemetry, which exports nothing unless set to, must know the run before a save.
        CallbackGroup.get_instance().update_config(nemo_version="v2", trainer=trainer, data=data)
    trainer.fit(
        model,
        datamodule=data,
        ckpt_path=str(folders.weights) if folders.weights else None,
    )


def _callbacks(run: PlannedRun, launch: Launch, folders: Folders, ending: Ending, device: str) -> list[Any]:
    """Return the callbacks, in the order in which they act at the end of a step.

    The timing comes first, because the lines that other callbacks print show it.
    """
    timing = TimingCallback()

    def in_nemo(*callbacks: LoopCallback) -> list[Any]:
        return [InNemo(callback, timing) for callback in callbacks]

    callbacks = [timing, ModelParallelSeed(run.seed), *in_nemo(Records(run, device, ending))]
    if run.recipe.step_log == "bar":
        callbacks.append(StepBar())
    else:  # the bar of release 24.11 had neither flops nor wall times
        callbacks += [WallTime(ending.progress), ModelFlops(run, timing), StepLines(log_interval=1)]
    callbacks += in_nemo(*common_callbacks(run, launch, folders, ending, device, logs_steps=launch.rank == 0))
    if device == "cuda":
        # Left alone, older releases of Transformer Engine take MPI wherever torch was built with it. That is
        # upstream's way if srun has started it; torchrun (Run:ai) starts none, nor does srun --mpi=none.
        bootstrap = None if launch.has_mpi else "nccl"
        callbacks += gpu_performance.callbacks(run, bootstrap=bootstrap)
    if run.mode == "checkpoint_save":
        callbacks.append(checkpoint.save_at_end(run.max_steps))
    return callbacks


def optimizer(run: PlannedRun, *, distributed: bool) -> MegatronOptimizerModule:
    """Return Megatron's Adam optimizer, with a linear warm-up and then a constant learning rate.

    `distributed`: whether its state is split over the data-parallel ranks.
    """
    dtype = run.recipe.dtype
    precision_aware: dict[str, Any] = {}
    if run.settings.use_precision_aware_optimizer:
        precision_aware = accepted(OptimizerConfig, use_precision_aware_optimizer=True)
    return MegatronOptimizerModule(
        config=OptimizerConfig(
            optimizer="adam",
            lr=hyperparameters.highest_rate(run),
            weight_decay=hyperparameters.WEIGHT_DECAY,
            adam_beta1=hyperparameters.BETAS[0],
            adam_beta2=hyperparameters.BETAS[1],
            adam_eps=hyperparameters.EPSILON,
            clip_grad=hyperparameters.CLIP_GRADIENT,
            bf16=dtype != "fp32",
            use_distributed_optimizer=distributed,
            **precision_aware,
        ),
        lr_scheduler=WarmupPolicyScheduler(warmup_steps=hyperparameters.warmup_steps(run)),
    )
