"""What somebody asks for, before it is checked against a recipe: flags, DAG params and JSON become this."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from steptime.errors import UserError, shown, unknown_value
from steptime.frozen import Frozen


class PlanRequest(Frozen):
    """What somebody asks for. None means the default, which the description names."""

    workload: str = Field(
        description="Workload, with its release (llama3.1-25.04) or without for the newest (llama3.1).",
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
        description="GPU counts: a list (8,16), or a range (8-128) for the documented scales within it; "
        "by default the size's own.",
        examples=["8,16", "8-128"],
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
        description="Tensor parallelism, where the size leaves it open (tiny does).",
        examples=[1, 2],
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Training steps; by default the document's.",
        examples=[50],
    )
    window: str | None = Field(
        None,
        description="Global steps to average, FIRST:LAST, both included; by default the document's.",
        examples=["35:44", "10:19"],
    )
    time_limit: str | None = Field(
        None,
        description="Time after which the cluster ends a job, HH:MM:SS; by default the document's.",
        examples=["00:30:00"],
    )
    checkpoint: bool = Field(
        False,
        description="Also save a checkpoint, load it in a second job, and time both: "
        "on the largest of the GPU counts.",
    )
    repeats: int = Field(1, ge=1, le=100, description="How many times each run is made.", examples=[3])
    cluster: str = Field("local", description="Where to run: a file of config/clusters.", examples=["local"])
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the training processes. Not for secrets: they are recorded.",
        examples=[{"TP_COMM_OVERLAP": "False"}],
    )


def parse_request(values: Mapping[str, Any]) -> PlanRequest:
    """A request from named values (DAG params, JSON). Raises UserError for unknown names and wrong types."""
    for name in values:
        if name not in PlanRequest.model_fields:
            raise unknown_value("parameter", name, PlanRequest.model_fields)
    try:
        return PlanRequest(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise UserError(f"the parameter {name} is missing: name it, as in {name}=llama3.1.") from None
        raise UserError(f"{name} {shown(repr(first['input']))}: {first['msg']}.") from None
