"""Planned models built for real but without weights: on torch's meta device, among fake ranks."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

import torch
from megatron.core import parallel_state, tensor_parallel
from nemo.lightning import _strategy_lib
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from trainer import devices, families, parallelism
from trainer.spec import ModelShape, Parallelism, Settings

META = torch.device("meta")
ONE_RANK = Parallelism(tensor=1, pipeline=1, context=1, data=1)


@contextlib.contextmanager
def one_rank(
    shape: ModelShape, spread: Parallelism, stage: int
) -> Iterator[Callable[[int], torch.nn.Module]]:
    """Yield a function that builds a virtual stage of a rank, in Megatron's layers for the CPU."""
    torch.distributed.init_process_group(
        "fake",
        store=FakeStore(),
        # Megatron numbers the ranks by tensor, context and data, then by pipeline.
        rank=stage * spread.tensor * spread.context,
        world_size=spread.pipeline * spread.tensor * spread.context,
    )
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=spread.tensor,
            pipeline_model_parallel_size=spread.pipeline,
            virtual_pipeline_model_parallel_size=spread.virtual_pipeline,
            context_parallel_size=spread.context,
            create_gloo_process_groups=False,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
            os.environ.pop(name, None)  # Megatron sets these, and refuses those of another family
        model = families.builder(shape.architecture)(shape, "cpu", devices.model_options("cpu"))
        strategy = parallelism.strategy(spread, shape.num_layers, "cpu", Settings())
        _strategy_lib.set_model_parallel_attributes(model, strategy.parallelism)
        model.config.context_parallel_size = 1  # splits no weight; the CPU's attention refuses it

        def part(virtual_stage: int) -> torch.nn.Module:
            with META:
                return model.config.configure_model(
                    model.tokenizer, vp_stage=virtual_stage if spread.virtual_pipeline else None
                )

        yield part
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def parameters(shape: ModelShape, spread: Parallelism) -> int:
    """Return the parameters of the whole model: those of every stage and of all its tensor-parallel ranks."""
    total = 0
    for stage in range(spread.pipeline):
        with one_rank(shape, spread, stage) as part:
            for virtual_stage in range(spread.virtual_pipeline or 1):
                for parameter in part(virtual_stage).parameters():
                    split = getattr(parameter, "tensor_model_parallel", False)
                    total += parameter.numel() * (spread.tensor if split else 1)
    return total


def matrix_product_flops(shape: ModelShape) -> int:
    """Return the operations of all matrix products in one step on one sample, forward and backward.

    One layer is counted, and then a further layer of each kind.
    """
    if shape.hybrid is None:
        first_flops, two_flops = (
            _counted(dataclasses.replace(shape, num_layers=layers)) for layers in (1, 2)
        )
        return first_flops + (shape.num_layers - 1) * (two_flops - first_flops)
    assert shape.hybrid.pattern is not None

    def of_layers(pattern: str) -> int:
        hybrid = dataclasses.replace(shape.hybrid, pattern=pattern)
        return _counted(dataclasses.replace(shape, num_layers=len(pattern), hybrid=hybrid))

    first, *further = shape.hybrid.pattern
    first_flops = of_layers(first)
    more = {kind: of_layers(first + kind) - first_flops for kind in set(further)}
    return first_flops + sum(more[kind] for kind in further)


def _counted(shape: ModelShape) -> int:
    with one_rank(shape, ONE_RANK, 0) as part, META, FlopCounterMode(display=False) as counter:
        model = part(0)
        if hasattr(model, "rotary_pos_emb"):
            model.rotary_pos_emb.inv_freq = model.rotary_pos_emb.inv_freq.to(META)
        tokens = torch.zeros(1, shape.seq_length, dtype=torch.int64)
        mask = torch.zeros(1, 1, shape.seq_length, shape.seq_length, dtype=torch.bool)
        logits = model(input_ids=tokens, position_ids=tokens, attention_mask=mask)
        logits.sum().backward()
    kinds = counter.get_flop_counts()["Global"]
    # Without Mamba's short convolutions, which are per channel: torch counts them as across all channels.
    return sum(flops for kind, flops in kinds.items() if "convolution" not in str(kind))
