"""The definition of a planned run, shared by the planner and the trainer.

The pipeline stages this file with the trainer. Its planner extends these records by checks and by fields that
only the pipeline needs, in `steptime.recipes.models`. No dependency but the standard library is allowed here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

HYBRID = "nemotron_h"
"""The architecture with Mamba layers."""
GPT = "gpt"
"""The architecture of any model of attention, MLPs and experts, which Megatron-Bridge builds."""
VOCABULARY_BLOCK = 128
"""NeMo's make_vocab_size_divisible_by."""
NEMO, BRIDGE = "nemo", "megatron_bridge"
"""The trainer's backends: NeMo 2 (`nemo.collections.llm`) and Megatron-Bridge."""
CPU_FORMATS = ("fp32",)
"""Number formats that the trainer supports on the CPU."""
GPU_FORMATS = {
    NEMO: ("fp32", "bf16", "fp8"),
    BRIDGE: ("fp32", "bf16", "fp8", "fp8_cs", "fp8_ss", "fp8_mx", "nvfp4"),
}
"""Number formats that the trainer supports on GPUs, by backend."""
FP8_RECIPES = {
    NEMO: ("delayed", "current"),
    BRIDGE: ("delayed", "current", "blockwise", "mxfp8", "nvfp4"),
}
"""Transformer Engine's scaling recipes for FP8 and NVFP4 that the trainer supports, by backend."""
NEMO_1_IMAGES = ("nemo:24.09",)
"""Images with NeMo 1, by name and tag, in any registry."""


@dataclass(frozen=True)
class Limit:
    """Annotation of a number that must be above zero, or at least zero if `zero_allowed`."""

    zero_allowed: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "ge" if self.zero_allowed else "gt": 0}

    def allows(self, number: float) -> bool:
        """Return whether a number is within the limit."""
        return number > 0 or (self.zero_allowed and number == 0)


Positive = Annotated[int, Limit()]
NotNegative = Annotated[int, Limit(zero_allowed=True)]
PositiveFloat = Annotated[float, Limit()]


@dataclass(frozen=True)
class HybridShape:
    """The sizes and the order of the Mamba, attention and MLP layers of a hybrid model (Nemotron-H)."""

    attention_head_dim: Positive
    mamba_num_heads: Positive
    mamba_head_dim: Positive
    mamba_num_groups: Positive
    mamba_state_dim: Positive
    chunk_size: Positive
    """Positions that the state-space scan processes together."""
    pattern: str | None = None
    """One letter a layer: M Mamba, * attention, - MLP (Megatron-Core's hybrid override pattern)."""


@dataclass(frozen=True)
class MoeShape:
    """A mixture of experts, named as in NeMo's configs: a router sends each token to a few of many MLPs."""

    num_moe_experts: Positive
    moe_router_topk: Positive
    """Number of experts that a token is sent to."""
    moe_ffn_hidden_size: Positive
    """Width of one expert."""
    moe_shared_expert_intermediate_size: Positive | None = None
    """Width of all shared experts together, which get every token; None for no shared experts."""
    num_dense_layers: NotNegative = 0
    """Number of layers at the start that have an MLP of `ffn_hidden_size` instead of experts."""
    moe_layer_freq: Positive = 1
    """Every n-th of the layers after the dense ones has experts, beginning with the first; this is n."""
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"] = "aux_loss"

    def expert_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return for each of `num_layers` layers 1 if it has experts, 0 if it is dense."""
        after = range(num_layers - self.num_dense_layers)
        return (0,) * self.num_dense_layers + tuple(int(at % self.moe_layer_freq == 0) for at in after)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek); fields are named as in NeMo's configs."""

    kv_lora_rank: Positive
    qk_head_dim: Positive
    qk_pos_emb_head_dim: Positive
    """Width of the part of a head's keys that holds positions; all heads share it."""
    v_head_dim: Positive
    q_lora_rank: Positive | None = None
    """Rank of the projection for queries; None if queries come straight from the hidden states."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a transformer that determine its cost, named as in NeMo's model configs."""

    architecture: str
    """Name of the model family."""
    num_layers: Positive
    hidden_size: Positive
    ffn_hidden_size: Positive
    num_attention_heads: Positive
    num_query_groups: Positive
    vocab_size: Positive
    seq_length: Positive
    # From here on None means that the model does not have it.
    kv_channels: Positive | None = None
    """Width of an attention head; None for hidden_size / num_attention_heads."""
    gated_linear_unit: bool | None = None
    """Whether an MLP has three matrices instead of two; None if the family decides."""
    share_embeddings_and_output_weights: Literal[True] | None = None
    window_size: Positive | None = None
    """Number of positions before its own that a token attends to (sliding-window attention); None for all."""
    window_attn_skip_freq: Positive | None = None
    """With `window_size`, every n-th layer attends to all positions; this is n. None if no layer does."""
    hybrid: HybridShape | None = None
    moe: MoeShape | None = None
    mla: LatentAttention | None = None
    mtp_num_layers: Positive | None = None
    """Number of layers after the last that predict further tokens (multi-token prediction)."""
    megatron_fields: Mapping[str, Any] | None = field(default=None, hash=False)
    """Further fields of Megatron-Bridge's model class, such as `qk_layernorm`; they change no size."""


@dataclass(frozen=True)
class Parallelism:
    """How a model is spread over ranks; `world_size = tensor × pipeline × context × data`."""

    data: Positive
    tensor: Positive = 1
    pipeline: Positive = 1
    context: Positive = 1
    virtual_pipeline: Positive | None = None
    first_stage_layers: Positive | None = None
    """Number of layers of the first stage if it differs from that of the stages in between."""
    last_stage_layers: Positive | None = None
    expert: Positive | None = None
    """Number of ranks that the experts of a layer are spread over; they are not additional ranks."""
    expert_tensor: Positive | None = None
    """Tensor parallelism within an expert; None for the same as in the other layers."""

    @property
    def world_size(self) -> int:
        """The number of ranks (GPUs) of the run."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_replica(self) -> int:
        """The number of ranks that together hold exactly one copy of every expert."""
        return (self.expert or 1) * (self.expert_tensor or self.tensor) * self.pipeline

    @property
    def stages(self) -> int:
        """The number of pipeline stages that the layers are divided into, virtual stages included."""
        return self.pipeline * (self.virtual_pipeline or 1)

    @property
    def interleaved_stages(self) -> int | None:
        """The number of virtual stages per rank; None if stages are not interleaved.

        Documents print 1 then, and Megatron takes 1 for a schedule that is interleaved.
        """
        return None if self.virtual_pipeline == 1 else self.virtual_pipeline

    @property
    def own_layers(self) -> tuple[int, ...]:
        """The explicitly set layer counts of the first and the last pipeline stage; () if neither is set."""
        given = (self.first_stage_layers, self.last_stage_layers)
        return tuple(layers for layers in given if layers is not None)

    def counts_embedding(self, num_layers: int) -> bool:
        """Return whether embedding and output each count as a layer when layers are divided into stages.

        Llama 3.1 405b (126 layers, 64 stages) and its smaller stand-ins with 30 and 62 layers need this to be
        divided evenly.
        """
        return not self.own_layers and num_layers % self.stages != 0 and (num_layers + 2) % self.stages == 0


@dataclass(frozen=True)
class Recipe:
    """What to train: a model, its number format, its parallelism and its batch sizes."""

    dtype: str
    gpu_type: str
    """`cpu`, or the type of GPU, which implies CUDA."""
    model: ModelShape
    parallelism: Parallelism
    micro_batch_size: Positive
    global_batch_size: Positive
    image: str | None = None
    """Container image of the run; None in the trainer's own environment."""
    step_log: Literal["lines", "bar"] = "lines"
    """How steps are logged: as a line each, or in a progress bar that is redrawn, as with NeMo 1."""

    backend: Literal["nemo", "megatron_bridge"] = "nemo"
    """The framework that steptime's trainer trains with."""

    @property
    def has_nemo_1(self) -> bool:
        """Whether the image has NeMo 1 instead of NeMo 2."""
        return self.image is not None and self.image.rpartition("/")[2] in NEMO_1_IMAGES


@dataclass(frozen=True)
class Settings:
    """NeMo settings beyond a recipe, under the names that NeMo and Megatron use, if they have one.

    A setting that is not given is off, as in a plain run of NeMo.
    """

    fp8_recipe: Literal["delayed", "current", "blockwise", "mxfp8", "nvfp4"] | None = None
    """How Transformer Engine scales tensors to FP8: from earlier steps, from the tensor itself, by blocks, or
    as in the formats MXFP8 and NVFP4. Each backend supports those in `FP8_RECIPES`."""
    first_last_layers_bf16: bool = False
    """Whether the first and last layers stay in bf16, with `fp8_recipe: current`."""
    cuda_graphs: bool = False
    """Whether steps are recorded as CUDA graphs."""
    cuda_graph_impl: Literal["local", "transformer_engine"] = "local"
    """With `cuda_graphs`, who records them: Megatron-Core or Transformer Engine."""
    cuda_graph_scope: tuple[str, ...] | None = None
    """With `cuda_graphs`, what is recorded: `full_iteration`, or parts of a layer such as `attn`, `mlp` and
    `moe_router`; None for whole layers."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """What is computed again in the backward pass: whole layers, or some of their parts."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With `full`, which layers: groups of equal size, or the first ones of a stage."""
    recompute_num_layers: Positive | None = None
    """Number of layers in a group, or of first layers of a stage."""
    recompute_modules: tuple[str, ...] | None = None
    """With `selective`, parts of a layer: `core_attn`, `mlp`, `moe` or others; None for Megatron's choice."""
    use_megatron_fsdp: bool = False
    """Whether Megatron's FSDP shards weights, gradients and optimizer states over data-parallel ranks."""
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] | None = None
    """Whose kernels send tokens to the ranks of their experts; None for NCCL's all-to-all."""
    overlap_moe_expert_parallel_comm: bool = False
    """Whether sending tokens overlaps with the computation of another micro batch."""
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    """Whose kernel fuses the loss: that of torch.compile or of Transformer Engine."""
    use_precision_aware_optimizer: bool = False
    """Whether Adam reads gradients unconverted, and stores of fp32 weights only the bits that bf16 lacks."""
    overlap_grad_reduce: bool = False
    """Whether the reduction of gradients over data-parallel ranks overlaps with the backward pass."""
    overlap_param_gather: bool = False
    """Whether gathering parameters from data-parallel ranks overlaps with the forward pass."""
    average_in_collective: bool = False
    """Whether the reduction itself divides the gradients by the number of ranks."""
    check_for_nan_in_grad: bool = False
    """Whether every gradient is checked before it is reduced; the loss is checked each step in any case."""
    comm_overlap_callback: bool = False
    """Whether NeMo's MegatronCommOverlapCallback, which configures overlaps, is used."""
    tp_comm_overlap: bool = False
    """Whether tensor-parallel communication overlaps with matrix products."""
    tp_comm_overlap_cfg: str | None = None
    """Name of NeMo's userbuffers configuration of the layers; None for Transformer Engine's default."""
    overlap_param_gather_with_optimizer_step: bool = False
    """Whether parameters of the first virtual stage are gathered while the optimizer works on the others."""
    defer_embedding_wgrad_compute: bool = False
    """Whether the weight gradients of the output layer are computed while the pipeline drains."""
    wgrad_deferral_limit: NotNegative | None = None
    """Number of micro batches whose weight gradients are deferred; 0 for all."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate; None for 3e-4, as in NeMo's recipes."""
    warmup_steps: Positive | None = None
    """Steps until the peak learning rate; None for 2,000, as in NeMo's recipes (CPU: 10)."""
    async_save: bool = False
    """Whether training goes on while a checkpoint is written."""
    gc_interval: Positive | None = None
    """Steps between two garbage collections by NeMo's callback, all ranks at once; None for Python's own."""
    gpu_samples: bool = False
    """Whether a process beside the ranks samples the GPUs of each node."""


BRIDGE_SHAPES = ("moe", "mla", "mtp_num_layers", "window_size", "megatron_fields")
"""Fields of a model that only the backend of Megatron-Bridge builds."""
BRIDGE_SETTINGS = (
    *("cuda_graph_impl", "cuda_graph_scope", "use_megatron_fsdp"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("moe_flex_dispatcher_backend", "overlap_moe_expert_parallel_comm"),
)
"""Settings that only the backend of Megatron-Bridge knows."""


@dataclass(frozen=True)
class Performance:
    """The performance settings of a run, of which the trainer reads only those for NeMo."""

    trainer: Settings = Settings()


@dataclass(frozen=True)
class Window:
    """The global steps to average over, both ends included."""

    first: NotNegative
    last: NotNegative


@dataclass(frozen=True)
class ProfileWindow:
    """Which steps and ranks a profile run records."""

    first_step: NotNegative
    last_step: Positive
    """Steps `first_step … last_step` are profiled, as far as the run goes."""
    ranks: tuple[int, ...]
    """Global ranks that are profiled."""


@dataclass(frozen=True)
class PlannedRun:
    """One training job: global steps `first_step … max_steps - 1` of a recipe, in a mode."""

    experiment: str
    """The experiment name of the workload's document, such as `pretrain_llama3.1_8b_bf16_8`, with its suffix
    for the mode."""
    recipe: Recipe
    mode: str
    max_steps: Positive
    """One more than the last global step."""
    first_step: NotNegative = 0
    """Global step at which the run starts: 0, or the saved step for a checkpoint load."""
    window: Window | None = None
    """The measured steps; None if the plan does not say."""
    seed: int = 1234
    checkpoint_path: str | None = None
    """Folder above `weights/` to load from; in a checkpoint pair, set when the job that saves has ended."""
    profile: ProfileWindow | None = None
    """Profiled steps and ranks, in the mode `profile` only."""
    model_flops: PositiveFloat | None = None
    """FLOPs to train on one sample, by the recipe's formula; for the TFLOPS in the log."""
    performance: Performance = Performance()
    """How the workload launches such a run, with the trainer settings that the user asks for."""

    @property
    def settings(self) -> Settings:
        """The run's NeMo settings."""
        return self.performance.trainer

    def tflops_per_gpu(self, step_time_s: float) -> float | None:
        """Return the model FLOP rate in 10¹² per second and GPU; None if the plan has no `model_flops`."""
        if self.model_flops is None:
            return None
        operations = self.model_flops * self.recipe.global_batch_size
        return operations / step_time_s / self.recipe.parallelism.world_size / 1e12


def check_trainable(run: PlannedRun) -> None:
    """Raise ValueError for an untrainable plan, early and clearly; NeMo would fail only after its imports."""
    recipe, parallelism, shape = run.recipe, run.recipe.parallelism, run.recipe.model
    if shape.hybrid is not None:
        _check_hybrid(shape, shape.hybrid, parallelism)
    elif shape.architecture == HYBRID:
        raise ValueError(
            f"a model of the architecture '{HYBRID}' needs the sizes of its Mamba layers: add hybrid to it."
        )
    if recipe.backend == BRIDGE:
        _check_bridge(run)
    else:
        _check_nemo(run)
    if shape.moe is not None:
        _check_experts(recipe, shape.moe)
    _check_settings(run)
    replica_batch = recipe.micro_batch_size * parallelism.data
    heads, groups, tensor = shape.num_attention_heads, shape.num_query_groups, parallelism.tensor
    if shape.kv_channels is None:
        _divides("hidden_size", shape.hidden_size, "num_attention_heads", heads)
    _divides("num_attention_heads", heads, "num_query_groups", groups)
    _divides("num_attention_heads", heads, "tensor parallel", tensor)
    _divides("num_query_groups", groups, "tensor parallel", tensor)
    _divides("ffn_hidden_size", shape.ffn_hidden_size, "tensor parallel", tensor)
    _divides("vocab_size", shape.vocab_size, "tensor parallel", tensor)
    _divides("global_batch_size", recipe.global_batch_size, "micro_batch_size × data parallel", replica_batch)
    _check_stages(parallelism, shape.num_layers)


def _check_nemo(run: PlannedRun) -> None:
    """Refuse models and settings that the backend of NeMo 2 does not build."""
    shape = run.recipe.model
    if shape.architecture == GPT:
        raise ValueError(f"the backend {NEMO} has no {GPT} models: choose the backend {BRIDGE}.")
    lacking = {name: getattr(shape, name) is not None for name in BRIDGE_SHAPES} | {
        name: getattr(run.settings, name) != getattr(Settings, name) for name in BRIDGE_SETTINGS
    }
    for name, given in lacking.items():
        if given:
            raise ValueError(
                f"the backend {NEMO} has no {name}: leave it out, or choose the backend {BRIDGE}."
            )


def _check_bridge(run: PlannedRun) -> None:
    """Refuse models and settings that the backend of Megatron-Bridge does not build."""
    shape, settings = run.recipe.model, run.settings
    if shape.gated_linear_unit is False:
        raise ValueError(f"the backend {BRIDGE} has gated MLPs only: set gated_linear_unit to true.")
    if run.recipe.step_log == "bar":
        raise ValueError(f"the backend {BRIDGE} has no step_log: bar: leave it out.")
    if shape.mtp_num_layers and shape.moe is not None and run.recipe.parallelism.interleaved_stages is None:
        parallelism = run.recipe.parallelism
        first = parallelism.first_stage_layers or shape.num_layers // parallelism.pipeline
        if first <= shape.moe.num_dense_layers:
            # It and the last stage would add up losses of different shapes (Megatron-Core 0.16).
            raise ValueError(
                f"the first pipeline stage has {first} layers and none with experts, for which layers that "
                "predict further tokens wait for ever: give it more layers, or leave mtp_num_layers out."
            )
    for name in ("moe_flex_dispatcher_backend", "overlap_moe_expert_parallel_comm"):
        if getattr(settings, name) and shape.moe is None:
            raise ValueError(f"{name} is for mixtures of experts, and this model is none: leave it out.")
    if not settings.use_megatron_fsdp:
        return
    excluded = {  # as in upstream's scripts and in the checks of Megatron-Bridge 0.3.1
        "average_in_collective": settings.average_in_collective,
        "defer_embedding_wgrad_compute": settings.defer_embedding_wgrad_compute,
        "use_precision_aware_optimizer": settings.use_precision_aware_optimizer,
        f"mode: {run.mode}": run.mode in ("checkpoint_save", "checkpoint_load"),
    }
    for name, given in excluded.items():
        if given:
            raise ValueError(f"use_megatron_fsdp does not go with {name}: leave one of them out.")


def _check_stages(parallelism: Parallelism, num_layers: int) -> None:
    """Refuse layers that do not divide evenly over the stages whose numbers of layers are not given."""
    if not parallelism.own_layers:
        if not parallelism.counts_embedding(num_layers):
            _divides("num_layers", num_layers, "pipeline stages", parallelism.stages)
        return
    given = sum(parallelism.own_layers)
    left, others = num_layers - given, parallelism.pipeline - len(parallelism.own_layers)
    if left < others or (left % others if others else left):
        raise ValueError(
            f"num_layers {num_layers} minus {given} in the first and last stage leaves {left}, which the "
            f"other {others} pipeline stages cannot share equally: choose other numbers of layers."
        )


def _check_settings(run: PlannedRun) -> None:
    """Refuse GPU-only options on the CPU, and options that do not fit the dtype or the parallelism."""
    recipe = run.recipe
    for name, wanted in (
        ("cuda_graphs", run.settings.cuda_graphs),
        ("tp_comm_overlap", run.settings.tp_comm_overlap),
    ):
        if wanted and recipe.gpu_type == "cpu":
            raise ValueError(f"`{name}` is for GPUs, and the plan is for the CPU: plan the run without it.")
    if run.settings.tp_comm_overlap and recipe.parallelism.tensor == 1:
        raise ValueError("`tp_comm_overlap` needs tensor parallelism, and the plan has none.")
    fp8_recipe, supported = run.settings.fp8_recipe, FP8_RECIPES[recipe.backend]
    scaled = recipe.dtype.startswith(("fp8", "nvfp4"))
    if fp8_recipe not in (supported if scaled else (None,)):
        raise ValueError(
            f"dtype '{recipe.dtype}' with fp8_recipe {fp8_recipe!r}: fp8 needs one of "
            f"{', '.join(supported)}, and no other dtype takes one."
        )


def _check_hybrid(shape: ModelShape, hybrid: HybridShape, parallelism: Parallelism) -> None:
    """Refuse a layer pattern, sizes or parallelism that Megatron's Mamba layers do not support."""
    if shape.architecture != HYBRID:
        raise ValueError(
            f"a model of the architecture '{shape.architecture}' cannot have hybrid layers: leave hybrid out."
        )
    pattern = hybrid.pattern or ""
    if set(pattern) - set("M*-") or len(pattern) != shape.num_layers:
        raise ValueError(
            f"the hybrid pattern '{pattern}' has to be one letter (M, * or -) for each of {shape.num_layers} "
            "layers."
        )
    if parallelism.virtual_pipeline is not None:
        raise ValueError(
            f"virtual_pipeline {parallelism.virtual_pipeline} is impossible with architecture '{HYBRID}': "
            "Megatron's Mamba layers have no interleaved pipeline; leave it out."
        )
    _divides("mamba_num_heads", hybrid.mamba_num_heads, "mamba_num_groups", hybrid.mamba_num_groups)
    _divides("mamba_num_groups", hybrid.mamba_num_groups, "tensor parallel", parallelism.tensor)
    # Else NeMo would round the vocabulary of this family up, and train another model than planned.
    block = VOCABULARY_BLOCK * parallelism.tensor
    _divides("vocab_size", shape.vocab_size, f"{VOCABULARY_BLOCK} × tensor parallel", block)


def _check_experts(recipe: Recipe, moe: MoeShape) -> None:
    """Refuse experts that cannot be spread over the ranks."""
    parallelism = recipe.parallelism
    expert, expert_tensor = parallelism.expert or 1, parallelism.expert_tensor or parallelism.tensor
    _divides("num_moe_experts", moe.num_moe_experts, "expert parallel", expert)
    _divides("moe_ffn_hidden_size", moe.moe_ffn_hidden_size, "expert tensor parallel", expert_tensor)
    replica = expert * expert_tensor * parallelism.pipeline
    _divides("the number of ranks", parallelism.world_size, "expert × expert tensor × pipeline", replica)
    if recipe.gpu_type == "cpu" and max(parallelism.tensor, expert_tensor) > 1:
        raise ValueError(
            f"a mixture of experts with tensor parallel {max(parallelism.tensor, expert_tensor)} needs "
            "sequence parallelism, which the CPU does not support: choose tensor parallel 1."
        )


def _divides(what: str, size: int, divisor: str, parts: int) -> None:
    if size % parts:
        raise ValueError(f"{what} {size} cannot be divided by {divisor} {parts}: change one of them.")
