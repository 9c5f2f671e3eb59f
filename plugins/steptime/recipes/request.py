"""What somebody asks for, before it is checked against a recipe: flags, DAG params and JSON become this."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field, ValidationError

from steptime.errors import UserError, shown, unknown_value
from steptime.frozen import Frozen
from steptime.recipes.notation import NUMBERS_PATTERN, TIME_LIMIT_PATTERN, WINDOW_PATTERN
from steptime.refusals import in_words
from steptime.settings import default_cluster

SECTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Where": ("cluster",),  # it decides what of the rest can be run
        "Model": ("size", "dtype", "proxy"),
        "Scale": ("gpu_type", "gpus", "scaling", "tensor_parallel", "repeats"),
        "Run": (
            *("max_steps", "window", "time_limit"),
            *("checkpoint", "save_checkpoint", "load_checkpoint", "async_save"),
        ),
        "Profile and trace": (
            *("profile", "profile_start", "profile_stop", "profile_ranks", "gpu_metrics"),
            "nccl_trace",
        ),
        "Machines": ("image", "cuda_graphs", "tp_comm_overlap", "environment"),
        "Slurm": (
            *("gpus_per_node", "gres", "partition", "account", "nodelist", "exclude", "reservation"),
            *("segment", "additional_slurm_params"),
        ),
    }
)
"""Sections of the trigger form and panels of `steptime run --help`, in the order people read them."""


class PlanRequest(Frozen):
    """What somebody asks for. None means the default, which the description names."""

    workload: str = Field(
        description="Workload, with its release (llama3.1-25.04), or its family alone (llama3.1).",
        examples=["llama3.1", "nemotron4-340b-24.11"],
    )
    size: str | None = Field(
        None,
        description="Model size; by default tiny on a cluster without GPUs, else the document's default.",
        examples=["tiny", "8b", "405b"],
    )
    dtype: str | None = Field(
        None,
        description="Number format; by default the document's, or the only one of the size.",
        examples=["bf16", "fp8"],
    )
    gpu_type: str | None = Field(
        None, description="Type of GPU; by default the cluster's.", examples=["h100", "gb200", "cpu"]
    )
    gpus: str | None = Field(
        None,
        description="GPU counts: a list with commas, or FIRST-LAST for the documented scales within it; "
        "by default the size's own.",
        json_schema_extra={"pattern": NUMBERS_PATTERN},
    )
    scaling: str = Field(
        "weak",
        description="weak: the global batch size grows with the GPUs; strong: it stays.",
        examples=["weak", "strong"],
    )
    proxy: bool = Field(
        False,
        description="The proxy of the size, for small clusters: the same layers, but fewer (405b has one).",
    )
    tensor_parallel: int | None = Field(
        None,
        ge=1,
        description="Tensor parallelism, if the size leaves it open (tiny does).",
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Training steps; by default the document's.",
    )
    window: str | None = Field(
        None,
        description="Global steps to average, FIRST:LAST, both included; by default the document's.",
        json_schema_extra={"pattern": WINDOW_PATTERN},
    )
    time_limit: str | None = Field(
        None,
        description="Time after which the cluster ends a job, HH:MM:SS; by default the document's.",
        json_schema_extra={"pattern": TIME_LIMIT_PATTERN},
    )
    checkpoint: bool = Field(
        False,
        description="Also save a checkpoint, load it in a second job, and time both: "
        "on the largest of the GPU counts.",
    )
    save_checkpoint: bool = Field(
        False, description="Only save a checkpoint at the end of each run, and time it."
    )
    load_checkpoint: str | None = Field(
        None,
        description="Only load the checkpoint in this folder of the cluster (the one above weights/), "
        "time it, and train one step. Its step follows from its name; without one there it is max_steps.",
        examples=["/shared/checkpoints/default--None=0.0000-epoch=0-consumed_samples=12800.0"],
    )
    async_save: bool | None = Field(
        None,
        description="Save checkpoints asynchronously, or not: training waits only until a copy in memory is "
        "made, and another process writes it. Goes with checkpoint and save_checkpoint. By default on GPUs, "
        "as upstream, and not on the CPU.",
    )
    profile: bool = Field(
        False,
        description="Run under a profiler instead: Nsight Systems on GPUs that have it, else torch's. "
        "Its times are not for comparison.",
    )
    profile_start: int | None = Field(
        None, ge=0, le=1_000_000, description="Step at which profiling starts; by default the document's."
    )
    profile_stop: int | None = Field(
        None, ge=1, le=1_000_000, description="Step at which profiling stops; by default the document's."
    )
    profile_ranks: str | None = Field(
        None,
        description="Ranks to profile; by default the document's.",
        examples=["0"],
        json_schema_extra={"pattern": NUMBERS_PATTERN},
    )
    gpu_metrics: bool = Field(
        False,
        description="Sample the GPUs' hardware counters in the profile, too; the cluster must allow it.",
    )
    nccl_trace: bool = Field(
        False,
        description="Run a few steps and log every call of NCCL instead (of gloo's collectives on the CPU). "
        "Not together with profile.",
    )
    cuda_graphs: bool | None = Field(
        None, description="Record steps as CUDA graphs, or not; by default as the recipe does."
    )
    tp_comm_overlap: bool | None = Field(
        None,
        description="Overlap tensor-parallel communication with matrix products, or not; by default as the "
        "recipe does. To turn it off is the documents' cure for watchdog time-outs on GB200.",
    )
    repeats: int = Field(1, ge=1, le=100, description="How many times each run is made.", examples=[3])
    cluster: str = Field(
        default_factory=default_cluster,
        description="Where to run: a file of config/clusters.",
        examples=["local"],
    )
    image: str | None = Field(
        None,
        description="Another container image than the recipe's; the cluster must run containers.",
        examples=["nvcr.io/nvidia/nemo:25.04.01"],
    )
    gpus_per_node: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="GPUs that a job takes of each node; by default the cluster's, or else the recipe's.",
        examples=[4, 8],
    )
    partition: str | None = Field(
        None, description="Slurm partition; by default the cluster's.", examples=["batch"]
    )
    account: str | None = Field(
        None, description="Slurm account; by default the cluster's.", examples=["llm"]
    )
    nodelist: str | None = Field(
        None, description="Nodes that a Slurm job must have.", examples=["node001,node002", "node[001-016]"]
    )
    exclude: str | None = Field(
        None, description="Nodes that a Slurm job must not have.", examples=["node[003,007-009]"]
    )
    reservation: str | None = Field(None, description="Slurm reservation to run in.", examples=["llm_bench"])
    segment: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Nodes that Slurm must keep together in a block; by default, on GB200 and GB300, the "
        "largest number that fits in a rack and divides the nodes.",
        examples=[16],
    )
    gres: bool | None = Field(
        None, description="Ask Slurm for GPUs, or not; by default as in the cluster's file."
    )
    additional_slurm_params: str | None = Field(
        None,
        description="Further options of sbatch: option=value;option=value;option.",
        examples=["constraint=gpu&memory;exclusive"],
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the training processes. Not for secrets: they are recorded.",
        examples=[{"NCCL_DEBUG": "INFO"}],
    )


def parse_request(values: Mapping[str, Any]) -> PlanRequest:
    """Parse a request from named values (DAG params, JSON); None means the default.

    Raises UserError for unknown names and wrong types.
    """
    for name in values:
        if name not in PlanRequest.model_fields:
            raise unknown_value("parameter", name, PlanRequest.model_fields)
    try:
        return PlanRequest(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise UserError(f"the parameter {name} is missing: name it, as in {name}=llama3.1.") from None
        raise UserError(f"{name} {shown(repr(first['input']))}: {in_words(first)}.") from None
