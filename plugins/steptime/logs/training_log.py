"""The content of one training log: the result of the package `logs`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, PositiveInt, TypeAdapter

from steptime.frozen import Frozen
from steptime.recipes.models import Mode
from steptime.wording import counted, first_names

_MOST_NAMED = 6
"""Maximum number of nodes named in a sentence."""


@dataclass(slots=True)
class Step:
    """One training step as logged; None for values that the format lacks.

    Not a pydantic model: a log may have a million steps, and a dataclass is made in a tenth of the time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Frozen.model_config

    global_step: int
    step_time_s: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    tflops_per_gpu: float | None = None
    tokens_per_s_per_gpu: float | None = None
    peak_memory_bytes: int | None = None
    wall_time_s: float | None = None
    """Seconds from the end of the previous step to the end of this one, as steptime's own trainer logs it."""


STEP = TypeAdapter(Step)
"""Writes a step as JSON, and reads it."""


class CheckpointTiming(Frozen):
    """One saved or loaded checkpoint, as far as the log describes it."""

    kind: str
    """`save` or `load`."""
    iteration: int | None
    """Iteration as counted by the log (NeMo 2.7: the last global step); None if it states none."""
    started_at: float | None
    """Unix time, seconds."""
    duration_s: float | None
    """Seconds from its start until it was complete: on disk, or restored.

    For an asynchronous save it is rounded to a second if only the timestamps of lines show it.
    """
    blocked_s: float | None = None
    """Seconds for which training waited; equal to `duration_s` unless the save was asynchronous."""
    asynchronous: bool = False
    """Whether the save went on in the background."""


class Network(Frozen):
    """The network that NCCL chose to connect the ranks, as its log lines say."""

    names: tuple[str, ...]
    """`IB`, `Socket`, `Libfabric (efa)`, or a plugin's own name; several if nodes differ."""
    nodes: PositiveInt
    """Number of nodes whose lines name their network."""
    socket_nodes: tuple[str, ...] = ()
    """Nodes that use sockets."""
    rails: int | None = None
    """The most network devices that a node uses; None if no line lists them."""
    nvls: bool | None = None
    """Whether any communicator has channels with NVLink SHARP; None if no line counts channels."""
    mnnvl: bool | None = None
    """Whether NVLink reaches beyond a node; None if no line says so."""

    @property
    def named_socket_nodes(self) -> str:
        """Names of the first nodes that use sockets, and the number of others."""
        return first_names(self.socket_nodes, _MOST_NAMED)

    @property
    def summary(self) -> str:
        """A summary such as `IB, 8 rails, NVLS` or `IB and Socket (sockets on gb-017), 8 rails`."""
        names = " and ".join(self.names)
        if 0 < len(self.socket_nodes) < self.nodes:
            names += f" (sockets on {self.named_socket_nodes})"
        parts = [names]
        if self.rails is not None:
            parts.append(counted(self.rails, "rail"))
        parts += [word for word, used in (("NVLS", self.nvls), ("MNNVL", self.mnnvl)) if used]
        return ", ".join(parts)


class Problem(Frozen):
    """A problem found in a log: a cause of failure, a repeated step, a gap, and so on."""

    kind: str
    """Short name: `cuda_out_of_memory`, `nccl_timeout`, `nan_loss`, `short`, `missing_steps`, …

    A step that is in the log more than once is `repeated_lines` if several ranks printed it (harmless),
    and `duplicate_steps` if a restart trained it again (its times belong to two attempts).
    """
    message: str
    """One sentence with the values."""
    fatal: bool
    """Whether the run's numbers must not be used."""
    steps: tuple[int, ...] = ()
    """Global steps concerned, if any."""
    nodes: str = ""
    """Nodes that failed, as Slurm writes them: `n1`, `h[001-003,7]`."""


class TrainingLog(Frozen):
    """Everything read from the log of one run, or from its logs if the job was requeued."""

    path: str
    format: str
    """`nemo2`, `tqdm`, `megatron_bridge`, `torchtitan`, or `none` if no step line was found."""
    mode: Mode | None = None
    """Mode of the run as its lines show it: `performance` if they show only steps."""
    bytes_read: int
    steps: tuple[Step, ...]
    """By global step, each once. Steps repeated by ranks or a restart are also reported as problems."""
    checkpoints: tuple[CheckpointTiming, ...] = ()
    problems: tuple[Problem, ...] = ()
    excerpt: str = ""
    """Lines around the cause of a failure, or the last lines; empty if no problem is fatal."""
    network: Network | None = None
    """The network that NCCL chose; None if the log does not say."""
    node_check: dict[str, Any] | None = None
    """The `steptime.node_check` record: what the nodes reported before the training, and their rates."""
    started: dict[str, Any] | None = None
    """The trainer's `steptime.start` record: actual parallelism, versions."""
    resumed: dict[str, Any] | None = None
    """The trainer's `steptime.resumed` record: the loaded checkpoint, its step and consumed samples."""
    rank_times: dict[str, Any] | None = None
    """The trainer's `steptime.rank_times` record: how long each rank computes by itself."""
    gpu_samples: dict[str, Any] | None = None
    """The trainer's `steptime.gpu_samples` record: power, clocks and errors of each node's GPUs."""
    collective: dict[str, Any] | None = None
    """The record `steptime.collective` of a run that times a collective: median times by message size."""
    ended: dict[str, Any] | None = None
    """The trainer's `steptime.result` record: state, error, steps, peak memory, versions, nodes."""
