"""Megatron's strategy for the planned parallelism, and model options that depend on the device."""

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from nemo.lightning.pytorch.strategies import MegatronStrategy

from trainer.errors import TrainerError
from trainer.spec import NUMBER_FORMATS, Parallelism, Recipe, Settings
from trainer.versions import accepted


def check_device_trains(recipe: Recipe, device: str) -> None:
    """Raise TrainerError if the trainer does not support the recipe's dtype or parallelism on the device."""
    if recipe.dtype not in NUMBER_FORMATS[device]:
        raise TrainerError(
            f"this trainer cannot train dtype '{recipe.dtype}' on {device}; "
            f"choose one of: {', '.join(NUMBER_FORMATS[device])}."
        )
    if device == "cpu" and recipe.parallelism.context > 1:
        raise TrainerError(
            f"context parallel {recipe.parallelism.context} needs Transformer Engine's attention, which runs "
            "on GPUs only; on the CPU it must be 1."
        )


def model_options(device: str) -> dict[str, Any]:
    """Return the TransformerConfig fields that depend on the device; GPUs keep NeMo's defaults.

    The layers of a CPU model, which lack Transformer Engine, are chosen by its family.
    """
    if device == "cuda":
        return {}
    return {
        # None of the kernels that are fused for CUDA.
        "apply_rope_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "cross_entropy_loss_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "use_cpu_initialization": True,
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        "deallocate_pipeline_outputs": False,
    }


def _uneven_stages(parallelism: Parallelism) -> dict[str, Any]:
    """Return MegatronStrategy's arguments for uneven pipeline stages.

    Raises TrainerError if the installed NeMo does not have them (2.2).
    """
    options: dict[str, Any] = {}
    if parallelism.first_stage_layers is not None:
        first = parallelism.first_stage_layers
        options |= accepted(MegatronStrategy, num_layers_in_first_pipeline_stage=first)
    if parallelism.last_stage_layers is not None:
        last = parallelism.last_stage_layers
        options |= accepted(MegatronStrategy, num_layers_in_last_pipeline_stage=last)
    return options


def strategy(
    parallelism: Parallelism,
    num_layers: int,
    device: str,
    settings: Settings,
    *,
    records_graphs: bool = False,
) -> MegatronStrategy:
    """Return NeMo's MegatronStrategy for the planned parallelism.

    `records_graphs`: whether steps are recorded as CUDA graphs, which need Transformer Engine's random state.
    """
    cuda = device == "cuda"
    counts_embedding = parallelism.counts_embedding(num_layers)
    return MegatronStrategy(
        tensor_model_parallel_size=parallelism.tensor,
        pipeline_model_parallel_size=parallelism.pipeline,
        # Documents print 1 if layers are not interleaved, and Megatron takes 1 for a schedule that is.
        virtual_pipeline_model_parallel_size=None
        if parallelism.virtual_pipeline == 1
        else parallelism.virtual_pipeline,
        **_uneven_stages(parallelism),
        account_for_embedding_in_pipeline_split=counts_embedding,
        account_for_loss_in_pipeline_split=counts_embedding,
        context_parallel_size=parallelism.context,
        expert_model_parallel_size=parallelism.expert or 1,
        expert_tensor_parallel_size=parallelism.expert_tensor,
        # Needs Transformer Engine's norms: Megatron's own RMSNorm does not know sequence parallelism.
        sequence_parallel=cuda and parallelism.tensor > 1,
        pipeline_dtype=None if cuda else torch.float32,
        use_te_rng_tracker=records_graphs,
        ckpt_async_save=settings.async_save,
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=cuda,  # its checkpoint format needs CUDA
            grad_reduce_in_fp32=True,  # unless the number format sets it otherwise
            overlap_grad_reduce=settings.overlap_grad_reduce,
            overlap_param_gather=settings.overlap_param_gather,
            average_in_collective=settings.average_in_collective,
            check_for_nan_in_grad=settings.check_for_nan_in_grad,
        ),
        gradient_as_bucket_view=True,
    )
