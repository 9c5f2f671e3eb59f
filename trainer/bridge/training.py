"""Assemble one training job from Megatron-Bridge's parts, and run it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from megatron.bridge.training import comm_overlap
from megatron.bridge.training.callbacks import Callback, CallbackContext
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    OptimizerConfig,
    RerunStateMachineConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig, get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from megatron.core.utils import unwrap_model
from torch import nn

from trainer import devices, hyperparameters
from trainer.bridge.checkpoint import folder_size, saved_in
from trainer.bridge.data import synthetic_dataset
from trainer.bridge.model_providers import model_provider
from trainer.bridge.on_cpu import cpu_patches
from trainer.callbacks import Records, common_callbacks
from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.launch import Launch
from trainer.loop import Loop, LoopCallback
from trainer.progress import CheckpointTransfer
from trainer.run import Folders
from trainer.spec import BRIDGE, PlannedRun
from trainer.versions import has_option, tuned_buffers

PRECISIONS = {
    None: "bf16_mixed",
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "current": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Megatron-Bridge's name of each FP8 recipe, and of bf16 without one."""
FSDP = {
    "use_megatron_fsdp": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "keep_fp8_transpose_cache": False,
}
"""Megatron's FSDP as in upstream's performance scripts (scripts/performance/utils/overrides.py)."""
WEIGHTS_PREFIX = "module."
"""Prefix of names of weights with NeMo: initial weights are drawn from the names, equally in both."""


def train(run: PlannedRun, launch: Launch, folders: Folders, ending: Ending) -> None:
    """Train the planned steps.

    Raises:
        TrainerError: the plan does not fit this machine or the checkpoint.
        TrainingFailure: the training diverged.
    """
    with devices.planned_device(run.recipe, launch, ending, cpu_patches) as device:
        callbacks = [
            *([SaveAtEnd(folders, ending)] if run.mode == "checkpoint_save" and launch.rank == 0 else []),
            Records(run, device, ending),
            # Megatron-Bridge prints the steps, and has the loss, on the last rank.
            *common_callbacks(
                run, launch, folders, ending, device, logs_steps=launch.rank == launch.world_size - 1
            ),
        ]
        if device == "cpu" and folders.weights:
            _require_expert_parallel(folders.weights, run.recipe.parallelism.expert or 1)
        try:
            pretrain(configuration(run, folders, device), forward_step, [InBridge(callbacks)])
        except BaseException as error:
            for callback in callbacks:
                callback.on_exception(error)
            raise


def _require_expert_parallel(path: Path, ranks: int) -> None:
    """Raise TrainerError unless the newest checkpoint in `path` has this expert parallelism.

    For the CPU, where experts that are spread over ranks have their own optimizer, whose saved state fits no
    other number of ranks.
    """
    newest = max(path.glob("iter_*/run_config.yaml"))
    saved = yaml.safe_load(newest.read_text(encoding="utf-8"))["model"]["expert_model_parallel_size"]
    if saved != ranks:
        raise TrainerError(
            f"the checkpoint {path} was saved with expert parallel {saved}, but this run has {ranks}: on the "
            f"CPU, load it in a run with expert parallel {saved}."
        )


def configuration(run: PlannedRun, folders: Folders, device: str) -> ConfigContainer:
    """Return Megatron-Bridge's configuration of the planned run on `cpu` or `cuda`."""
    recipe, settings, on_gpus = run.recipe, run.settings, device == "cuda"
    checkpoints = saved_in(folders.output) if run.mode == "checkpoint_save" else None
    rate, warmup = hyperparameters.highest_rate(run), hyperparameters.warmup_steps(run)
    return ConfigContainer(
        model=model_provider(run, device),
        train=TrainingConfig(
            train_iters=run.max_steps,
            global_batch_size=recipe.global_batch_size,
            micro_batch_size=recipe.micro_batch_size,
            eval_iters=0,
            manual_gc=settings.gc_interval is not None,
            manual_gc_interval=settings.gc_interval or 0,
        ),
        optimizer=OptimizerConfig(
            optimizer="adam",
            lr=rate,
            min_lr=0.0,
            weight_decay=hyperparameters.WEIGHT_DECAY,
            adam_beta1=hyperparameters.BETAS[0],
            adam_beta2=hyperparameters.BETAS[1],
            adam_eps=hyperparameters.EPSILON,
            clip_grad=hyperparameters.CLIP_GRADIENT,
            bf16=recipe.dtype != "fp32",
            use_distributed_optimizer=on_gpus,
            use_precision_aware_optimizer=settings.use_precision_aware_optimizer,
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="constant",
            lr_decay_iters=warmup + run.max_steps,  # has to be above the warm-up
            override_opt_param_scheduler=True,  # else a load refuses another number of steps
            lr_warmup_iters=warmup,
            lr_warmup_init=rate / (warmup + 1),
            start_weight_decay=hyperparameters.WEIGHT_DECAY,
            end_weight_decay=hyperparameters.WEIGHT_DECAY,
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=on_gpus,  # as in NeMo's backend, so that both take the same steps
            grad_reduce_in_fp32=recipe.dtype == "fp32",
            overlap_grad_reduce=settings.overlap_grad_reduce,
            overlap_param_gather=settings.overlap_param_gather,
            average_in_collective=settings.average_in_collective,
            check_for_nan_in_grad=settings.check_for_nan_in_grad,
            **(FSDP if settings.use_megatron_fsdp else {}),
        ),
        dataset=synthetic_dataset(run),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=recipe.model.vocab_size - 1),
        logger=LoggerConfig(log_interval=1, log_throughput=True, save_config_filepath=None),
        checkpoint=CheckpointConfig(
            save=str(checkpoints) if checkpoints else None,
            save_interval=run.max_steps,
            load=str(folders.weights) if folders.weights else None,
            async_save=settings.async_save,
            exit_on_missing_checkpoint=True,
            load_rng=run.recipe.model.moe is None,  # those of experts fit no other number of ranks
            **_async_writer(device),
        ),
        rng=RNGConfig(seed=run.seed, te_rng_tracker=settings.cuda_graphs),
        rerun_state_machine=RerunStateMachineConfig(check_for_nan_in_loss=False),  # steptime checks the loss
        dist=DistributedInitConfig(
            distributed_backend="nccl" if on_gpus else "gloo", use_gloo_process_groups=not on_gpus
        ),
        comm_overlap=_overlap(run) if on_gpus else None,
        mixed_precision=None if recipe.dtype == "fp32" else _precision(run),
    )


def _precision(run: PlannedRun) -> MixedPrecisionConfig:
    settings = run.settings
    precision = get_mixed_precision_config(PRECISIONS[settings.fp8_recipe])
    precision.grad_reduce_in_fp32 = False  # as in NeMo's backend and in upstream's performance scripts
    if settings.fp8_recipe == "current":  # by itself Megatron-Bridge keeps them in bf16
        precision.first_last_layers_bf16 = settings.first_last_layers_bf16
        if run.recipe.model.hybrid is not None:  # as in its recipes of Nemotron-H
            precision.num_layers_at_start_in_bf16 = precision.num_layers_at_end_in_bf16 = 2
    return precision


def _async_writer(device: str) -> dict[str, Any]:
    """Return whose code writes asynchronous saves, where Megatron-Bridge has the choice (from 0.6 on).

    On the CPU it is Megatron-Core's: the default needs nvidia_resiliency_ext 0.6, which is not on PyPI.
    """
    has_choice = device == "cpu" and has_option(CheckpointConfig, "async_strategy")
    return {"async_strategy": "mcore"} if has_choice else {}


def _overlap(run: PlannedRun) -> CommOverlapConfig | None:
    settings = run.settings
    if not (
        settings.comm_overlap_callback
        or settings.tp_comm_overlap
        or settings.overlap_moe_expert_parallel_comm
    ):
        return None
    return CommOverlapConfig(
        tp_comm_overlap=settings.tp_comm_overlap,
        tp_comm_overlap_cfg=tuned_buffers(comm_overlap, BRIDGE, settings.tp_comm_overlap_cfg),
        overlap_grad_reduce=settings.overlap_grad_reduce,
        overlap_param_gather=settings.overlap_param_gather,
        overlap_param_gather_with_optimizer_step=settings.overlap_param_gather_with_optimizer_step,
        defer_embedding_wgrad_compute=settings.defer_embedding_wgrad_compute,
        wgrad_deferral_limit=settings.wgrad_deferral_limit,
        overlap_moe_expert_parallel_comm=settings.overlap_moe_expert_parallel_comm,
        delay_wgrad_compute=settings.overlap_moe_expert_parallel_comm,  # together, as in upstream's scripts
    )


class BridgeLoop:
    """Megatron-Bridge's training loop as a `Loop`."""

    def __init__(self, context: CallbackContext, learning_rate: float = 0.0, step_time_s: float = 0.0):
        self._context = context
        self.learning_rate = learning_rate
        self.step = int(context.state.train_state.step)
        self.rank = torch.distributed.get_rank()
        self.chunks: Sequence[nn.Module] = context.model
        self.config = context.state.cfg.model
        self.consumed_samples = int(context.state.train_state.consumed_train_samples)
        self.step_time_s = step_time_s

    @property
    def loss(self) -> float:
        """The loss of the step, over all ranks; only the last pipeline stage has it."""
        losses = self._context.loss_dict
        if not losses:
            raise ValueError("only ranks of the last pipeline stage have the loss of a step that has ended")
        return float(losses["lm loss"])

    def sharded_state_dicts(self) -> list[dict[str, Any]]:
        """Return Megatron's description of the weights of each chunk."""
        of_ranks = ensure_metadata_has_dp_cp_group(None)
        return [
            unwrap_model(chunk).sharded_state_dict(prefix=WEIGHTS_PREFIX, metadata=of_ranks)
            for chunk in self.chunks
        ]


class InBridge(Callback):
    """Calls steptime's callbacks, in their order, from Megatron-Bridge's training loop."""

    def __init__(self, callbacks: Sequence[LoopCallback]):
        self._callbacks = callbacks
        self._step_began_at = 0.0
        self._learning_rate = 0.0

    def on_train_start(self, context: CallbackContext) -> None:
        """Pass on that training starts."""
        for callback in self._callbacks:
            callback.on_train_start(BridgeLoop(context))

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Pass on that a step begins."""
        for callback in self._callbacks:
            callback.on_step_start(BridgeLoop(context))
        # At the end of a step the optimizer has the rate of the next one.
        self._learning_rate = float(context.optimizer.param_groups[0]["lr"])
        self._step_began_at = time.perf_counter()

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Pass on that a step has ended; its number is still the current one."""
        step_time_s = time.perf_counter() - self._step_began_at
        for callback in self._callbacks:
            callback.on_step_end(BridgeLoop(context, self._learning_rate, step_time_s))

    def on_train_end(self, context: CallbackContext) -> None:
        """Pass on that training has ended."""
        for callback in self._callbacks:
            callback.on_train_end(BridgeLoop(context))
        # The step's checkpoint is complete, and Megatron-Bridge would save the same one again after training.
        context.state.cfg.checkpoint.save = None


class SaveAtEnd(LoopCallback):
    """Records the checkpoint that Megatron-Bridge saves after the last step.

    Its time is that from the end of the last step to the end of training, in which only the step's line is
    printed besides. Megatron-Bridge waits for an asynchronous save there, too.
    """

    def __init__(self, folders: Folders, ending: Ending):
        self._folder = saved_in(folders.output)
        self._progress = ending.progress

    def on_train_end(self, loop: Loop) -> None:
        """Record the save, which is complete."""
        duration_s = round(time.perf_counter() - self._progress.moved_at, 3)
        size = folder_size(self._folder)
        self._progress.checkpoints.append(CheckpointTransfer("save", size, duration_s, duration_s))
