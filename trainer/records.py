"""Steptime's own lines in the training log: `steptime.<kind> {json}`, one line each, from rank 0 only."""

import json
import os
import socket
from typing import Any, TextIO

from trainer.spec import Parallelism, PlannedRun
from trainer.versions import versions


def emit(kind: str, fields: dict[str, Any]) -> None:
    """Print one record to the training log: `steptime.<kind>` and the fields as JSON."""
    print(f"steptime.{kind} {json.dumps(fields)}", flush=True)


def started(
    run: PlannedRun,
    parallelism: Parallelism,
    device: str,
    *,
    node_names: list[str],
    numa_bound_ranks: int,
    parameters: int | None = None,
    imports_s: float | None = None,
) -> dict[str, Any]:
    """Return the fields of the record `steptime.start`: actual parallelism, sizes, versions."""
    recipe = run.recipe
    return {
        "schema": 1,
        "experiment": run.experiment,
        "world_size": parallelism.world_size,
        "tensor_parallel": parallelism.tensor,
        "pipeline_parallel": parallelism.pipeline,
        "context_parallel": parallelism.context,
        "data_parallel": parallelism.data,
        "expert_parallel": parallelism.expert or 1,
        "micro_batch_size": recipe.micro_batch_size,
        "global_batch_size": recipe.global_batch_size,
        "seq_length": recipe.model.seq_length,
        "num_layers": recipe.model.num_layers,
        "num_parameters": parameters,
        "imports_s": imports_s,
        "device": device,
        "versions": versions(),
        "node_names": node_names,
        "launch": {"numa_bound_ranks": numa_bound_ranks, "vboost": "STEPTIME_VBOOST" in os.environ},
    }


def bound_to_numa_node() -> bool:
    """Return whether the job script bound this rank to the cores and memory of a NUMA node."""
    return "STEPTIME_NUMA_NODE" in os.environ


def own_node_name() -> str:
    """Return this node's name; Slurm's own name if it has one, as several Slurm nodes may share a host."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def write_step(
    file: TextIO,
    step: int,
    *,
    loss: float,
    learning_rate: float,
    step_time_s: float,
    wall_time_s: float | None,
) -> None:
    """Write a step as one JSON line; the first step has no wall time, as no step ended before it."""
    line = {
        "global_step": step,
        "loss": loss,
        "learning_rate": learning_rate,
        "step_time_s": step_time_s,
        "wall_time_s": wall_time_s,
    }
    print(json.dumps(line), file=file, flush=True)
