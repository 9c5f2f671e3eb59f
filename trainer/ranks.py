"""Collective calls that report what Megatron set up and combine values of all ranks."""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from megatron.core import parallel_state

from trainer.records import bound_to_numa_node, own_node_name
from trainer.spec import Parallelism

Value = TypeVar("Value")


def parallelism() -> Parallelism:
    """Return the tensor, pipeline, context, data and expert parallelism as Megatron set it up."""
    return Parallelism(
        tensor=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline=parallel_state.get_pipeline_model_parallel_world_size(),
        context=parallel_state.get_context_parallel_world_size(),
        data=parallel_state.get_data_parallel_world_size(),
        expert=parallel_state.get_expert_model_parallel_world_size(),
    )


def count_parameters(chunks: Iterable[torch.nn.Module]) -> int:
    """Count the parameters of the whole model, over its tensor-, expert- and pipeline-parallel ranks.

    `chunks` are the parts of the model on this rank.
    """
    tensor_ranks = parallel_state.get_tensor_model_parallel_world_size()
    expert_ranks = parallel_state.get_expert_model_parallel_world_size()
    expert_tensor_ranks = parallel_state.get_expert_tensor_parallel_world_size()
    parameters = 0
    for name, parameter in (named for chunk in chunks for named in chunk.named_parameters()):
        if getattr(parameter, "shared", False):
            continue  # the last pipeline stage's copy of the embedding
        of_expert, split = ".experts." in name, getattr(parameter, "tensor_model_parallel", False)
        spread = (expert_tensor_ranks if of_expert else tensor_ranks) if split else 1
        parameters += parameter.numel() * spread * (expert_ranks if of_expert else 1)
    total = torch.tensor(parameters, dtype=torch.int64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
    return int(total)


def node_names() -> list[str]:
    """Return the names of the nodes, in the order of their first rank."""
    return list(dict.fromkeys(gathered(own_node_name())))


def numa_bound() -> int:
    """Return how many ranks are bound to a NUMA node."""
    return sum(gathered(bound_to_numa_node()))


def gathered(value: Value) -> list[Value]:
    """Return every rank's `value`, in the order of ranks; all ranks must call this."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def work_group() -> int:
    """Return the index of the group that this rank is in: ranks with the same layers and experts.

    Compute times are comparable only within a group.
    """
    experts = parallel_state.get_expert_model_parallel_world_size()
    stage = parallel_state.get_pipeline_model_parallel_rank()
    return int(stage * experts + parallel_state.get_expert_model_parallel_rank())


def highest(value: float) -> float:
    """Return the maximum of a value over all ranks."""
    result = torch.tensor(value, dtype=torch.float64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(result, op=torch.distributed.ReduceOp.MAX)
    return float(result)
