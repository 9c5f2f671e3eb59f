"""How a run is launched on GPUs: settings of the trainer, variables of its job, binding of its ranks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from steptime.frozen import Frozen
from steptime.refusals import written

Fp8Recipe = Literal["delayed", "current", "blockwise", "mxfp8", "nvfp4"]
"""Of Transformer Engine: scales from earlier steps, from the tensor itself, of blocks of it, or as in the
formats MXFP8 and NVFP4."""

FP8_RECIPES: Mapping[str, Fp8Recipe] = MappingProxyType(
    {"fp8_cs": "current", "fp8_ss": "blockwise", "fp8_mx": "mxfp8", "nvfp4": "nvfp4"}
)
"""Of dtypes that name theirs, as documents have several on one type of GPU; of `fp8` a rule gives it."""


class TrainerSettings(Frozen):
    """What the trainer sets in NeMo beyond a row, under NeMo's and Megatron's own names if these have one.

    A setting that nobody gives is off, as a plain run of NeMo has it.
    """

    fp8_recipe: Fp8Recipe | None = None
    """How tensors are scaled to FP8, for rows of dtype `fp8`; other dtypes have their own (`FP8_RECIPES`)."""
    first_last_layers_bf16: bool = False
    """Whether the outermost layers stay in bf16, with `fp8_recipe: current`."""
    cuda_graphs: bool = False
    """Whether steps are recorded as CUDA graphs."""
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    """Whose kernel fuses the loss: torch.compile's or Transformer Engine's."""
    use_precision_aware_optimizer: bool = False
    """Whether Adam takes gradients in their own precision, and keeps of fp32 weights what bf16 lacks."""
    overlap_grad_reduce: bool = False
    """Whether gradients are reduced over data-parallel ranks beside the backward pass."""
    overlap_param_gather: bool = False
    """Whether parameters are gathered from data-parallel ranks beside the forward pass."""
    average_in_collective: bool = False
    """Whether the reduction itself divides the gradients by the number of ranks."""
    check_for_nan_in_grad: bool = False
    """Whether every gradient is checked before it is reduced; the loss is checked each step in any case."""
    comm_overlap_callback: bool = False
    """Whether NeMo's MegatronCommOverlapCallback is there, which sets what overlaps with what."""
    tp_comm_overlap: bool = False
    """Whether tensor-parallel communication overlaps with matrix products."""
    tp_comm_overlap_cfg: (
        Annotated[str, written("userbuffers_[a-z0-9_]+", "a name that begins with userbuffers_")] | None
    ) = None
    """Name of NeMo's object that splits each layer's communication; None for Transformer Engine's own."""
    overlap_param_gather_with_optimizer_step: bool = False
    """Whether parameters of the first virtual stage are gathered while the optimizer works on the others."""
    defer_embedding_wgrad_compute: bool = False
    """Whether the weight gradients of the output layer are computed while the pipeline empties."""
    wgrad_deferral_limit: int | None = Field(default=None, ge=0)
    """Micro batches of which that is put off; 0 for all."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """What is computed again in the backward pass: whole layers, or some of their parts."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Which layers, with `full`: groups of equal size, or the first ones of a stage."""
    recompute_num_layers: PositiveInt | None = None
    """Layers of a group, or first ones of a stage."""
    recompute_modules: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Parts of a layer, with `selective`: `core_attn`, `mlp`, `moe` or others; None for Megatron's choice."""
    learning_rate: PositiveFloat | None = None
    """The highest learning rate; None for 3e-4, as in NeMo's recipes."""
    warmup_steps: PositiveInt | None = None
    """Steps over which the rate rises to it; None for 2,000, as in NeMo's recipes (CPU: 10)."""
    gc_interval: PositiveInt | None = None
    """Steps between two garbage collections by NeMo's callback, all ranks at once; None for Python's own."""


class Performance(Frozen):
    """How a run is launched: settings of the trainer, variables of its job, and how its ranks are bound."""

    trainer: TrainerSettings = TrainerSettings()
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the job; those of the cluster and of the run win over them."""
    ranks_per_numa_node: PositiveInt | None = None
    """How many neighbouring ranks are bound to one NUMA node, its cores and memory; None to bind none."""
    priority_cores: bool = False
    """Whether each rank is also bound to two cores of its own, as upstream does on B300."""
    vboost: bool = False
    """Whether `nvidia-smi boost-slider --vboost 1` steers power to the tensor cores before the training."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Of upstream's script, which starts a recipe by name, beside those of its release."""
