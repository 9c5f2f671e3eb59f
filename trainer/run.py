"""The planned run, read from the pipeline's JSON into frozen records, checked before anything heavy loads."""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from trainer.errors import TrainerError
from trainer.layers import HybridShape, LatentAttention, MoeShape, NemoConfig

SCHEMA_VERSION = 1
MODES = ("performance", "checkpoint_save", "checkpoint_load", "profile", "nccl_trace")
FP8_RECIPES = ("delayed", "current")
"""How Transformer Engine scales tensors to FP8."""
HYBRID = "nemotron_h"
"""The architecture with Mamba layers."""
GPT = "gpt"
"""The architecture of any model that NeMo has a config of."""
VOCABULARY_BLOCK = 128
"""NeMo's make_vocab_size_divisible_by."""

TRACE_FOLDER = "torch_profile"
"""Below the job's folder: what torch's profiler writes."""

TFLOPS_FIELD = "TFLOPS_per_GPU"
"""Of a step's line; NeMo's name for it."""
WALL_TIME_FIELD = "wall_step_timing in s"
"""Of a step's line, ours: from the end of the step before to the end of this one, whatever lay between."""

Record = TypeVar("Record")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of the model, named as in NeMo's configs."""

    architecture: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    seq_length: int
    hybrid: HybridShape | None = None
    """For a hybrid model, and only there."""
    # The rest is for the family `gpt`, and only there.
    kv_channels: int | None = None
    """Width of an attention head; None for hidden_size / num_attention_heads."""
    gated_linear_unit: bool | None = None
    share_embeddings_and_output_weights: bool | None = None
    moe: MoeShape | None = None
    mla: LatentAttention | None = None
    mtp_num_layers: int | None = None
    nemo: NemoConfig | None = None


@dataclass(frozen=True)
class Parallelism:
    """How the model is spread over ranks."""

    tensor: int
    pipeline: int
    context: int
    data: int
    virtual_pipeline: int | None = None
    first_stage_layers: int | None = None
    """Layers of the first stage, where it has not as many as those between."""
    last_stage_layers: int | None = None
    expert: int | None = None
    """Ranks that the experts of a layer are dealt to, of those that there are."""
    expert_tensor: int | None = None
    """Tensor parallelism within an expert; None for that of the other layers."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def stages(self) -> int:
        """Parts that the layers are cut into."""
        return self.pipeline * (self.virtual_pipeline or 1)

    def counts_embedding(self, num_layers: int) -> bool:
        """Return whether embedding and output count as a layer each when the layers are dealt to the stages.

        Llama 3.1 405b (126 layers on 64 stages) and its proxies of 30 and 62 layers divide only so.
        """
        return not self.own_layers and num_layers % self.stages != 0 and (num_layers + 2) % self.stages == 0

    @property
    def own_layers(self) -> tuple[int, ...]:
        """Layers of the first and the last stage, of each that has a number of its own."""
        given = (self.first_stage_layers, self.last_stage_layers)
        return tuple(layers for layers in given if layers is not None)


@dataclass(frozen=True)
class Recipe:
    """What is trained: the part of the pipeline's recipe that a trainer needs."""

    dtype: str
    gpu_type: str
    """`cpu`, or the GPU's type, which means CUDA."""
    model: ModelShape
    parallelism: Parallelism
    micro_batch_size: int
    global_batch_size: int
    image: str | None = None
    """The container image that the run is in; None in the trainer's own environment."""
    step_log: str = "lines"
    """`lines`, or `bar` for NeMo's progress bar."""


@dataclass(frozen=True)
class Settings:
    """What is set in NeMo beyond the recipe, under NeMo's and Megatron's names; a plan may have none."""

    fp8_recipe: str | None = None
    """`delayed` or `current`, if the dtype is fp8."""
    first_last_layers_bf16: bool = False
    cuda_graphs: bool = False
    cross_entropy_fusion_impl: str = "native"
    use_precision_aware_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    average_in_collective: bool = False
    check_for_nan_in_grad: bool = False
    comm_overlap_callback: bool = False
    """Whether MegatronCommOverlapCallback is there; the next five are its own."""
    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: str | None = None
    """Name of NeMo's userbuffers for it; None for Transformer Engine's defaults."""
    overlap_param_gather_with_optimizer_step: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int | None = None
    learning_rate: float | None = None
    """The highest rate; None for NeMo's usual one."""
    warmup_steps: int | None = None
    """Steps over which the rate rises to it; None for NeMo's usual number, and few on the CPU."""
    gc_interval: int | None = None
    """Steps between two garbage collections; None for Python's own."""


@dataclass(frozen=True)
class Performance:
    """How the run is launched: the part that the trainer needs."""

    trainer: Settings = Settings()


@dataclass(frozen=True)
class ProfileWindow:
    """What a profile run looks at."""

    first_step: int
    last_step: int
    """Global steps `first_step … last_step` are profiled, as far as the run goes."""
    ranks: list[int]


@dataclass(frozen=True)
class PlannedRun:
    """One training job: global steps `first_step … max_steps - 1` of a recipe, in a mode."""

    experiment: str
    recipe: Recipe
    mode: str
    first_step: int
    max_steps: int
    seed: int
    checkpoint_path: str | None = None
    async_save: bool = False
    """Whether training goes on while another process writes the checkpoint."""
    profile: ProfileWindow | None = None
    model_flops: float | None = None
    """Floating-point operations of a step on one sample; with them each step is logged with its TFLOPS."""
    performance: Performance = Performance()
    """Empty on the CPU."""

    def tflops_per_gpu(self, step_time_s: float) -> float | None:
        """Return 10¹² operations per second of one rank; None if the plan has no flops of a step."""
        if self.model_flops is None:
            return None
        operations = self.model_flops * self.recipe.global_batch_size
        return operations / step_time_s / self.recipe.parallelism.world_size / 1e12

    @property
    def settings(self) -> Settings:
        """Settings of NeMo: the workload's, with those that the user asks for."""
        return self.performance.trainer


def read_run(path: Path) -> PlannedRun:
    """Read and check a planned run.

    Raises:
        TrainerError: the file cannot be read, lacks a field, has a wrong type, or asks what cannot be.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainerError(f"cannot read the planned run {path}: {error.strerror}.") from error
    except ValueError as error:
        raise TrainerError(f"the planned run {path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TrainerError(f"the planned run {path} is not a JSON object.")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TrainerError(f"{path} has schema_version {version!r}; this trainer reads {SCHEMA_VERSION}.")
    run = _record(PlannedRun, content, where=str(path))
    _check(run)
    return run


def _record(cls: type[Record], content: Mapping[str, Any], where: str) -> Record:
    """Build a dataclass from JSON; fields of the JSON that the trainer has no use for are left alone."""
    types_of = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name not in content:
            if field.default is MISSING:
                raise TrainerError(f"{where} lacks the field '{field.name}'.")
            continue
        values[field.name] = _value(types_of[field.name], content[field.name], f"{where}: {field.name}")
    return cls(**values)


def _value(expected: Any, value: Any, where: str) -> Any:
    """Check one JSON value against an annotation."""
    if get_origin(expected) is types.UnionType:  # only `X | None` is used
        if value is None:
            return None
        expected = get_args(expected)[0]
    if is_dataclass(expected) and isinstance(expected, type):
        if not isinstance(value, dict):
            raise TrainerError(f"{where} is {value!r}, not an object.")
        return _record(expected, value, where)
    plain = get_origin(expected) or expected
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise TrainerError(f"{where} is {value!r}, not of type {plain.__name__}.")
    return value


def _check(run: PlannedRun) -> None:
    """Refuse a plan that NeMo would only refuse after its imports, and in its own words."""
    recipe, parallelism, shape = run.recipe, run.recipe.parallelism, run.recipe.model
    if run.mode not in MODES:
        raise TrainerError(f"mode '{run.mode}' is not one this trainer has; it has: {', '.join(MODES)}.")
    for name in (
        *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
        *("vocab_size", "seq_length"),
    ):
        _positive(name, getattr(shape, name))
    for name in ("tensor", "pipeline", "context", "data"):
        _positive(f"parallelism {name}", getattr(parallelism, name))
    if shape.hybrid is not None:
        _check_hybrid(shape, shape.hybrid, parallelism)
    elif shape.architecture == HYBRID:
        raise TrainerError(f"a model of the architecture '{HYBRID}' needs its hybrid sizes, and has none.")
    if shape.architecture == GPT and shape.nemo is None:
        raise TrainerError(f"a model of the architecture '{GPT}' needs the name of its config in NeMo.")
    if shape.moe is not None:
        _check_experts(recipe, shape.moe)
    _positive("micro_batch_size", recipe.micro_batch_size)
    _positive("global_batch_size", recipe.global_batch_size)
    if not 0 <= run.first_step < run.max_steps:
        raise TrainerError(f"first_step {run.first_step} is not in 0 … max_steps - 1 = {run.max_steps - 1}.")
    if run.seed < 1:
        raise TrainerError(f"seed {run.seed} is not positive, which Megatron requires.")
    _check_mode(run)
    _check_gpu_options(run)
    replica_batch = recipe.micro_batch_size * parallelism.data
    for what, size, parts in (
        ("hidden_size", shape.hidden_size, shape.num_attention_heads if shape.kv_channels is None else 1),
        ("num_attention_heads", shape.num_attention_heads, shape.num_query_groups),
        ("num_attention_heads", shape.num_attention_heads, parallelism.tensor),
        ("num_query_groups", shape.num_query_groups, parallelism.tensor),
        ("ffn_hidden_size", shape.ffn_hidden_size, parallelism.tensor),
        ("vocab_size", shape.vocab_size, parallelism.tensor),
        ("global_batch_size", recipe.global_batch_size, replica_batch),
    ):
        _divides(what, size, parts)
    _check_stages(parallelism, shape.num_layers)


def _check_stages(parallelism: Parallelism, num_layers: int) -> None:
    """Refuse layers that do not come out even in the stages that have no number of their own."""
    if not parallelism.own_layers:
        if not parallelism.counts_embedding(num_layers):
            _divides("num_layers", num_layers, parallelism.stages)
        return
    own = sum(parallelism.own_layers)
    left, others = num_layers - own, parallelism.pipeline - len(parallelism.own_layers)
    if left < others or (left % others if others else left):
        raise TrainerError(
            f"num_layers {num_layers} less the {own} of first and last stage cannot be divided by {others}, "
            "as the plan's sizes require."
        )


def _check_mode(run: PlannedRun) -> None:
    """Refuse what does not go with the mode, and what no mode has yet."""
    if (run.mode == "checkpoint_load") != (run.checkpoint_path is not None):
        raise TrainerError(
            f"mode '{run.mode}' with checkpoint_path {run.checkpoint_path!r}: a checkpoint_load needs one, "
            "and no other mode takes one."
        )
    if run.async_save and run.mode != "checkpoint_save":
        raise TrainerError(f"async_save is for the mode 'checkpoint_save', and the plan's is '{run.mode}'.")
    if (run.mode == "profile") != (run.profile is not None):
        raise TrainerError(
            f"mode '{run.mode}' with profile {run.profile}: a profile run has what is profiled, "
            "and no other mode does."
        )
    if (run.mode == "checkpoint_load") != (run.first_step > 0):
        raise TrainerError(
            f"mode '{run.mode}' cannot start at first_step {run.first_step}: a checkpoint_load starts "
            "above 0, every other mode at 0."
        )


def _check_gpu_options(run: PlannedRun) -> None:
    """Refuse what only GPUs do on the CPU, and an FP8 recipe that does not go with the number format."""
    recipe = run.recipe
    for name, wanted in (
        ("cuda_graphs", run.settings.cuda_graphs),
        ("tp_comm_overlap", run.settings.tp_comm_overlap),
    ):
        if wanted and recipe.gpu_type == "cpu":
            raise TrainerError(f"{name} is for GPUs, and the plan is for the CPU: plan the run without it.")
    if run.settings.tp_comm_overlap and recipe.parallelism.tensor == 1:
        raise TrainerError("tp_comm_overlap needs tensor parallelism, and the plan has none.")
    fp8_recipe = run.settings.fp8_recipe
    if fp8_recipe not in ((None,) if recipe.dtype != "fp8" else FP8_RECIPES):
        raise TrainerError(
            f"dtype '{recipe.dtype}' with fp8_recipe {fp8_recipe!r}: fp8 needs one of "
            f"{', '.join(FP8_RECIPES)}, and no other dtype takes one."
        )


def _check_hybrid(shape: ModelShape, hybrid: HybridShape, parallelism: Parallelism) -> None:
    """Refuse what Megatron's Mamba layers cannot be."""
    if shape.architecture != HYBRID:
        raise TrainerError(f"a model of the architecture '{shape.architecture}' cannot have hybrid sizes.")
    for name in (
        "attention_head_dim",
        "mamba_num_heads",
        "mamba_head_dim",
        "mamba_num_groups",
        "mamba_state_dim",
        "chunk_size",
    ):
        _positive(f"hybrid {name}", getattr(hybrid, name))
    unknown = sorted(set(hybrid.pattern) - set("M*-"))
    if unknown or len(hybrid.pattern) != shape.num_layers:
        raise TrainerError(
            f"the hybrid pattern '{hybrid.pattern}' is not one of M, * and - for each of {shape.num_layers} "
            "layers."
        )
    if parallelism.virtual_pipeline is not None:
        raise TrainerError(
            f"virtual_pipeline {parallelism.virtual_pipeline} cannot be with the architecture '{HYBRID}': "
            "Megatron's Mamba layers have no interleaved pipeline; leave it out."
        )
    _divides("mamba_num_heads", hybrid.mamba_num_heads, hybrid.mamba_num_groups)
    _divides("mamba_num_groups", hybrid.mamba_num_groups, parallelism.tensor)
    # Else NeMo would round the vocabulary of this family up, and train another model than planned.
    _divides("vocab_size", shape.vocab_size, VOCABULARY_BLOCK * parallelism.tensor)


def _check_experts(recipe: Recipe, moe: MoeShape) -> None:
    """Refuse experts that cannot be dealt to the ranks."""
    parallelism = recipe.parallelism
    expert, expert_tensor = parallelism.expert or 1, parallelism.expert_tensor or parallelism.tensor
    _positive("num_moe_experts", moe.num_moe_experts)
    _positive("parallelism expert", expert)
    _positive("parallelism expert_tensor", expert_tensor)
    _divides("num_moe_experts", moe.num_moe_experts, expert)
    _divides("moe_ffn_hidden_size", moe.moe_ffn_hidden_size, expert_tensor)
    _divides("ranks", parallelism.world_size, expert * expert_tensor * parallelism.pipeline)
    if recipe.gpu_type == "cpu" and max(parallelism.tensor, expert_tensor) > 1:
        raise TrainerError(
            f"a mixture of experts with tensor parallel {max(parallelism.tensor, expert_tensor)} needs "
            "sequence parallelism, which Megatron's layers for the CPU have not: there it must be 1."
        )


def _divides(what: str, size: int, parts: int) -> None:
    if size % parts:
        raise TrainerError(f"{what} {size} cannot be divided by {parts}, as the plan's sizes require.")


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise TrainerError(f"{name} {value} is not positive.")
