"""Steptime's own lines in the training log: `steptime.<kind> {json}`, one line each, from rank 0 only."""

import json
import os
import socket
from typing import Any

import torch
from megatron.core import parallel_state

from trainer.peak import Peak
from trainer.run import PlannedRun
from trainer.versions import versions


def emit(kind: str, fields: dict[str, Any]) -> None:
    """Write one record."""
    print(f"steptime.{kind} {json.dumps(fields)}", flush=True)


def started(
    run: PlannedRun, device: str, peak: Peak | None, parameters: int | None, node_names: list[str]
) -> dict[str, Any]:
    """What really runs: parallelism as Megatron set it up, sizes, versions, the measured peak."""
    recipe = run.recipe
    return {
        "schema": 1,
        "experiment": run.experiment,
        "world_size": torch.distributed.get_world_size(),
        "tensor_parallel": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_parallel": parallel_state.get_pipeline_model_parallel_world_size(),
        "context_parallel": parallel_state.get_context_parallel_world_size(),
        "data_parallel": parallel_state.get_data_parallel_world_size(),
        "micro_batch_size": recipe.micro_batch_size,
        "global_batch_size": recipe.global_batch_size,
        "seq_length": recipe.model.seq_length,
        "num_layers": recipe.model.num_layers,
        "num_parameters": parameters,
        "device": device,
        "peak_tflops_per_rank": peak.tflops if peak else None,
        "peak_source": peak.source if peak else None,
        "versions": versions(),
        "node_names": node_names,
    }


def count_parameters(model: torch.nn.Module) -> int:
    """Parameters of the whole model, over its tensor- and pipeline-parallel ranks (a collective call)."""
    tensor_ranks = parallel_state.get_tensor_model_parallel_world_size()
    own = sum(
        parameter.numel() * (tensor_ranks if getattr(parameter, "tensor_model_parallel", False) else 1)
        for parameter in model.parameters()
    )
    total = torch.tensor(own, dtype=torch.int64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
    return int(total)


def node_names() -> list[str]:
    """The names of the nodes, in the order of their first rank (a collective call).

    Slurm's own names where it has them: several of its nodes may be on one host.
    """
    names: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(names, os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    return list(dict.fromkeys(name for name in names if name is not None))


def highest(value: float) -> float:
    """The highest of all ranks' values (a collective call)."""
    result = torch.tensor(value, dtype=torch.float64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(result, op=torch.distributed.ReduceOp.MAX)
    return float(result)
