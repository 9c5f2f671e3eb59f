"""The node check of a Slurm cluster: its thresholds, its command, and the nodes that it refused.

The check itself is in `trainer/node_check.py`. It writes a report into the job's folder, and if it refuses a
node, the job ends with a special exit code. The default thresholds are steptime's own choice, not from a
published source.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveFloat, ValidationError

from steptime.durations import Hours
from steptime.frozen import Frozen
from steptime.recipes.gpus import load_gpu_type, peak_tflops

REFUSED = 69
"""Exit code of a job whose node check refuses a node; `EX_UNAVAILABLE` of sysexits.h."""
REPORT = "node_check.json"
"""Name of the check's report in the job's folder."""
_DTYPE = "bf16"
"""Data type of the matrix product on GPUs."""


class NodeCheck(Frozen):
    """Thresholds that the nodes of a job must meet before it trains."""

    time_limit_s: Annotated[int, Field(gt=0, le=86_400)] = 600
    """Time limit in seconds, including the container's start; a check that exceeds it refuses no node."""
    product: str | None = Field(default=None, min_length=1)
    """A word that the GPUs' names must contain; if left out, that of the GPU type in config/gpus.yaml."""
    least_matmul_percent: PositiveFloat = 50
    """The least rate of a matrix product, in percent of the GPU type's peak in bf16."""
    least_matmul_tflops: PositiveFloat | None = None
    """The least rate of a matrix product in TFLOPS, instead of in percent; the only form on CPU clusters."""
    least_free_memory_percent: PositiveFloat = 10
    """Least free memory of a node, in percent."""
    least_free_gpu_memory_percent: PositiveFloat = 95
    """Least free memory of each GPU, in percent: with less, another program is using the GPU."""
    least_power_limit_percent: PositiveFloat = 100
    """Least power limit of each GPU, in percent of its default."""
    least_clock_percent: PositiveFloat = 100
    """Least application clock of each GPU, in percent of its default."""
    xid_within_h: Hours = 24
    """Hours for which a GPU's hardware error (Xid) in the kernel's log counts against its node."""


def check_command(demands: NodeCheck, gpu_type: str, python: str) -> tuple[str, ...]:
    """Return the node check's command, which every rank runs, for nodes with GPUs of this type."""
    on_cpu = gpu_type == "cpu"
    options: dict[str, Any] = {
        "device": "cpu" if on_cpu else "cuda",
        "time-limit-s": demands.time_limit_s,
        "product": demands.product or (None if on_cpu else load_gpu_type(gpu_type).product),
        "least-matmul-tflops": demands.least_matmul_tflops or _share_of_peak(demands, gpu_type),
        "least-free-memory-percent": demands.least_free_memory_percent,
        "least-free-gpu-memory-percent": demands.least_free_gpu_memory_percent,
        "least-power-limit-percent": demands.least_power_limit_percent,
        "least-clock-percent": demands.least_clock_percent,
        "xid-within-h": demands.xid_within_h,
    }
    arguments = [
        f"--{name}={value:g}" if isinstance(value, int | float) else f"--{name}={value}"
        for name, value in options.items()
        if value is not None
    ]
    return (python, "-m", "trainer.node_check", *arguments)


def _share_of_peak(demands: NodeCheck, gpu_type: str) -> float | None:
    """Return the required TFLOPS of a matrix multiplication; None on the CPU and if the peak is unknown."""
    if gpu_type == "cpu":
        return None
    peak = peak_tflops(gpu_type, _DTYPE).tflops
    return None if peak is None else peak * demands.least_matmul_percent / 100


class _Node(BaseModel):
    """A node in the node check's report; the report's other fields are not needed here."""

    node: str
    faults: tuple[str, ...]


class _CheckedNodes(BaseModel):
    nodes: tuple[_Node, ...]


def refused_nodes(report: bytes) -> Mapping[str, str]:
    """Return the faults of each node that the check's JSON report refuses; empty without a valid report."""
    try:
        nodes = _CheckedNodes.model_validate_json(report).nodes
    except ValidationError:
        return {}
    return {node.node: "; ".join(node.faults) for node in nodes if node.faults}
