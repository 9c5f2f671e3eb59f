"""Estimate a GPU's memory for a training: weights, gradients, optimizer states and activations.

The bytes per parameter and the activations are those of Megatron-Core's report
(megatron/training/theoretical_memory_usage.py) with the distributed optimizer, sequence parallelism and fused
attention. Buffers of communication, CUDA graphs and fragments are not counted, so that a real peak is higher.
"""

from typing import NamedTuple

from steptime.errors import UserError
from steptime.recipes.gpus import load_gpu_type
from steptime.recipes.models import ModelShape, Recipe, Run, TrainerSettings
from steptime.recipes.parameters import count_expert_weights, count_parameters

_GB = 1e9
_WEIGHT, _GRADIENT = 2, 2
"""Bytes per parameter in bf16; the trainer reduces gradients in bf16."""
_OPTIMIZER, _SMALL_OPTIMIZER = 12, 10
"""Bytes per parameter of Adam: fp32 weights and two moments; with the precision-aware optimizer only the bits
of the weights that bf16 lacks."""


class MemoryEstimate(NamedTuple):
    """Estimated memory of the GPU that holds the first pipeline stage, in GB of 10⁹ bytes."""

    states_gb: float
    """Weights, gradients and optimizer states, as if they were spread evenly over the pipeline's stages."""
    activations_gb: float | None
    """Activations of the micro batches under way; None if the formula does not fit the model."""
    gpu_gb: float
    """Memory of one GPU of the type, by its data sheet."""

    @property
    def total_gb(self) -> float | None:
        """All that is estimated; None if the activations are unknown."""
        return None if self.activations_gb is None else self.states_gb + self.activations_gb

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        parts = f"{self.states_gb:.3g} GB of weights, gradients and optimizer states"
        if self.activations_gb is not None:
            parts += f" and {self.activations_gb:.3g} GB of activations"
        return f"estimated memory of a GPU: {parts}, of {self.gpu_gb:g} GB"


def estimate_memory(recipe: Recipe, settings: TrainerSettings) -> MemoryEstimate | None:
    """Estimate the memory of one GPU.

    None on the CPU, for a GPU type whose memory `config/gpus.yaml` does not state, for programs other than
    steptime's trainer (Megatron-Bridge's script and one's own program decide themselves what they spread over
    the GPUs), and for models whose parameters cannot be counted.
    """
    gpu_gb = load_gpu_type(recipe.gpu_type).memory_gb
    shape = recipe.model
    if gpu_gb is None or recipe.launcher is not None or not isinstance(shape, ModelShape):
        return None
    counted = count_parameters(shape)
    if counted is None:
        return None
    ways, experts = recipe.parallelism, count_expert_weights(shape)
    optimizer = _SMALL_OPTIMIZER if settings.use_precision_aware_optimizer else _OPTIMIZER
    # At least one byte, if weights stay in 8 bits.
    weight = 1 if recipe.dtype.startswith(("fp8", "nvfp4")) else _WEIGHT
    whole, spread = weight + _GRADIENT, optimizer
    if settings.use_megatron_fsdp:
        whole, spread = 0, whole + spread
    of_dense = whole + spread / (ways.data * ways.context)
    of_experts = whole + spread / max(1, ways.world_size // ways.expert_replica)
    dense = (counted.total - experts) / (ways.tensor * ways.pipeline)
    states = dense * of_dense + experts / ways.expert_replica * of_experts
    activations = _activations(recipe, shape, settings)
    return MemoryEstimate(states / _GB, None if activations is None else activations / _GB, gpu_gb)


def _activations(recipe: Recipe, shape: ModelShape, settings: TrainerSettings) -> float | None:
    """Return the bytes of activations on a GPU of the first stage; None for models without a formula."""
    others = (shape.moe, shape.mla, shape.hybrid, settings.recompute_granularity)
    if any(other is not None for other in others):
        return None
    ways = recipe.parallelism
    tokens = shape.seq_length * recipe.micro_batch_size / ways.context
    per_layer = tokens * (18 * shape.hidden_size + 4 * shape.ffn_hidden_size)
    # The first stage holds as many micro batches as there are stages, each of its share of the layers.
    total = per_layer * shape.num_layers * min(1, recipe.gradient_accumulation / ways.pipeline)
    if ways.virtual_pipeline is not None:
        total *= 1 + (ways.pipeline - 1) / (ways.pipeline * ways.virtual_pipeline)
    if ways.pipeline == 1:
        total += tokens * 4 * (shape.hidden_size + shape.vocab_size)
    return total / ways.tensor


def require_memory(runs: tuple[Run, ...]) -> None:
    """Raise UserError for the first run whose weights, gradients and optimizer states no GPU can hold.

    Activations come on top of that, but can be recomputed or offloaded, and do not count here.
    """
    for run in runs:
        estimate = estimate_memory(run.recipe, run.performance.trainer)
        if estimate is not None and estimate.states_gb > estimate.gpu_gb:
            needed, has = f"{estimate.states_gb:,.0f} GB", f"{estimate.gpu_gb:g} GB"
            raise UserError(
                f"{run.label} cannot fit: weights, gradients and optimizer states alone take about {needed} "
                f"of each {run.recipe.gpu_type}, which has {has} (an estimate). Spread the model over more "
                "GPUs (tensor, pipeline, expert parallelism), or insist on it by `ignore_memory`."
            )
