"""NeMo's strategy for the planned parallelism."""

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from nemo.lightning.pytorch.strategies import MegatronStrategy

from trainer.spec import Parallelism, Settings
from trainer.versions import accepted


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
        virtual_pipeline_model_parallel_size=parallelism.interleaved_stages,
        **_uneven_stages(parallelism),
        account_for_embedding_in_pipeline_split=counts_embedding,
        account_for_loss_in_pipeline_split=counts_embedding,
        context_parallel_size=parallelism.context,
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
