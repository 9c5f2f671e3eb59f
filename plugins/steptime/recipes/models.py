"""The two products of `recipes`: a `Recipe` (one row of a document's tables) and a `Run` (planned work)."""

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, field_validator, model_validator

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.plug_points import MODEL_FAMILIES
from steptime.recipes.config_problems import FieldError, FieldErrors, Mistake
from steptime.recipes.layers import HybridShape, LatentAttention, MoeShape, NemoConfig
from steptime.recipes.named import DESCRIBED, MEGATRON_BRIDGE, NAMED, NamedRecipe, kind_of_model
from steptime.recipes.performance import Performance
from steptime.refusals import written

RUN_FILE = "run.json"
"""Name of a `Run` as a file: in its job's folder, for the trainer and for who reads the log beside it."""


class Mode(StrEnum):
    """What a run is for. Only `performance` runs are comparable with published step times."""

    PERFORMANCE = "performance"
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_LOAD = "checkpoint_load"
    PROFILE = "profile"
    NCCL_TRACE = "nccl_trace"


class ModelShape(Frozen):
    """The sizes of a transformer that decide its cost, named as in NeMo's model configs."""

    architecture: str
    """Of `plug_points.MODEL_FAMILIES`."""
    num_layers: PositiveInt
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_query_groups: PositiveInt
    vocab_size: PositiveInt
    seq_length: PositiveInt
    # From here on None means that the model does not have it.
    kv_channels: PositiveInt | None = None
    """Width of an attention head; None for hidden_size / num_attention_heads."""
    gated_linear_unit: bool | None = None
    """Whether an MLP has three matrices, or two; None if that follows from the family."""
    share_embeddings_and_output_weights: Literal[True] | None = None
    hybrid: HybridShape | None = None
    moe: MoeShape | None = None
    mla: LatentAttention | None = None
    mtp_num_layers: PositiveInt | None = None
    """Layers after the last that predict further tokens (multi-token prediction)."""
    nemo: NemoConfig | None = None
    """By what the trainer builds a model of the family `gpt`; None if it cannot."""

    @property
    def head_width(self) -> int:
        """Of one head of plain attention."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def expert_layers(self) -> int:
        """How many of the layers have experts."""
        if self.moe is None:
            return 0
        return -(-(self.num_layers - self.moe.num_dense_layers) // self.moe.moe_layer_freq)

    @field_validator("architecture")
    @classmethod
    def _is_known(cls, architecture: str) -> str:
        try:
            MODEL_FAMILIES.check(architecture, also=(MEGATRON_BRIDGE,))
        except UserError as error:
            raise ValueError(str(error).removesuffix(".")) from None
        return architecture

    @model_validator(mode="after")
    def _is_of_its_family(self) -> Self:
        try:
            check = MODEL_FAMILIES.load(self.architecture)
        except UserError as error:
            raise FieldErrors([Mistake.of(error, "architecture")]) from None
        check(self)
        return self

    @model_validator(mode="after")
    def _layers_add_up(self) -> Self:
        if self.moe is not None and self.moe.num_dense_layers >= self.num_layers:
            message = f"{self.moe.num_dense_layers} dense layers of {self.num_layers} leave none with experts"
            raise FieldError(message, "moe", "num_dense_layers")
        if self.hybrid is not None:
            kinds = (
                self.hybrid.num_attention_layers,
                self.hybrid.num_mlp_layers,
                self.hybrid.num_mamba_layers,
            )
            if sum(kinds) != self.num_layers:
                raise ValueError(f"{' + '.join(map(str, kinds))} hybrid layers are not {self.num_layers}")
        return self


_SPECIAL = {
    "hybrid": "hybrid sizes",
    "moe": "experts",
    "mla": "latent attention",
    "mtp_num_layers": "layers that predict further tokens",
    "kv_channels": "head width of their own",
    "gated_linear_unit": "choice of MLP",
    "share_embeddings_and_output_weights": "shared embeddings",
    "nemo": "config of NeMo to choose",
}
"""Fields of a `ModelShape` that a family may not have, and what they are."""


def _refuse_special(shape: ModelShape, *, but: Collection[str] = ()) -> None:
    problems = [
        Mistake(f"{shape.architecture} models have no {what}: leave {field} out", (field,))
        for field, what in _SPECIAL.items()
        if field not in but and getattr(shape, field) is not None
    ]
    if problems:
        raise FieldErrors(problems)


def check_transformer(shape: ModelShape) -> None:
    """Raise ValueError for a shape that is no model of attention and MLP layers alone."""
    _refuse_special(shape)


def check_hybrid(shape: ModelShape) -> None:
    """Raise ValueError for a shape that has no Mamba layers."""
    _refuse_special(shape, but=("hybrid",))
    if shape.hybrid is None:
        raise ValueError(f"{shape.architecture} models have hybrid sizes: give them")


def check_gpt(shape: ModelShape) -> None:
    """Raise ValueError for a shape that leaves open which MLP it has, or which attention."""
    _refuse_special(shape, but=_SPECIAL.keys() - {"hybrid"})
    if shape.gated_linear_unit is None:
        raise ValueError(f"{shape.architecture} models have a gated MLP or none: give gated_linear_unit")
    if shape.mla is not None and shape.kv_channels is not None:
        raise FieldError(
            "latent attention has widths of its own, in mla: leave kv_channels out", "kv_channels"
        )
    if shape.nemo is None:
        return
    if shape.mtp_num_layers is not None and "mtp_loss_scaling_factor" not in shape.nemo.fields:
        raise FieldError(
            "lacks mtp_loss_scaling_factor, which NeMo has no default of: give the weight of the further "
            "tokens' loss, such as 0.1",
            "nemo",
            "fields",
        )
    for name in shape.nemo.fields:
        if any(name in part.model_fields for part in (ModelShape, MoeShape, LatentAttention)):
            message = f"is a size of the model: give {name} beside nemo, or in moe or mla"
            raise FieldError(message, "nemo", "fields", name)


Model = Annotated[
    Annotated[ModelShape, Tag(DESCRIBED)] | Annotated[NamedRecipe, Tag(NAMED)], Discriminator(kind_of_model)
]
"""What a recipe trains: described by its sizes, or known by name."""


class Parallelism(Frozen):
    """How one model is spread over ranks; `world_size = tensor × pipeline × context × data`."""

    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    context: PositiveInt = 1
    virtual_pipeline: PositiveInt | None = None
    first_stage_layers: PositiveInt | None = None
    """Layers of the first stage, where it has not as many as those between; None if it has."""
    last_stage_layers: PositiveInt | None = None
    expert: PositiveInt | None = None
    """Ranks that the experts of a layer are dealt to; they are ranks of the others, not further ones."""
    expert_tensor: PositiveInt | None = None
    """Tensor parallelism within an expert; None for that of the other layers."""
    data: PositiveInt

    @property
    def world_size(self) -> int:
        """The number of ranks (GPUs) of the run."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_replica(self) -> int:
        """Ranks that hold every expert once."""
        return (self.expert or 1) * (self.expert_tensor or self.tensor) * self.pipeline


class Recipe(Frozen):
    """One row of a document's configuration tables, or one of the same form at another scale or CPU size."""

    workload: str
    """Family and version of the document, `llama3.1-25.04`."""
    size: str
    dtype: str
    gpu_type: str
    scaling: Literal["weak", "strong"]
    proxy: bool
    model: Model
    parallelism: Parallelism
    micro_batch_size: PositiveInt
    global_batch_size: PositiveInt
    gpus_per_node: PositiveInt
    image: str | None
    """Container image; None if the trainer's venv is used (CPU sizes)."""
    step_log: Literal["lines", "bar"] = "lines"
    """How steps are logged: a line each (NeMo 2), or a progress bar drawn again and again (release 24.11)."""
    flops_formula: str
    """Name of the document's model-flops formula; MFU of different formulas must never be compared."""

    @property
    def gpus(self) -> int:
        """Ranks of the whole job (GPUs; CPU processes if `gpu_type` is `cpu`)."""
        return self.parallelism.world_size

    @property
    def identity(self) -> dict[str, str | int]:
        """What people know a recipe by: the columns that rows of results and metrics begin with."""
        return {
            "workload": self.workload,
            "size": self.size,
            "dtype": self.dtype,
            "gpu_type": self.gpu_type,
            "scaling": self.scaling,
            "gpus": self.gpus,
        }

    @property
    def gradient_accumulation(self) -> int:
        """Micro batches a data-parallel rank runs per step."""
        return self.global_batch_size // (self.micro_batch_size * self.parallelism.data)

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        replica_batch = self.micro_batch_size * self.parallelism.data
        if self.global_batch_size % replica_batch:
            raise ValueError(
                f"global batch size {self.global_batch_size} is not a multiple of micro batch size "
                f"{self.micro_batch_size} × data parallel {self.parallelism.data} = {replica_batch}"
            )
        return self


class Window(Frozen):
    """The global steps that are averaged, both ends included; written `first:last` on the command line."""

    first: int = Field(ge=0)
    last: int = Field(ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"window {self} ends before it begins")
        return self

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


class Nsight(Frozen):
    """How a document starts Nsight Systems (`nsys profile`), beyond what every profile run has."""

    trace: Annotated[tuple[str, ...], Field(min_length=1)] = ("nvtx", "cuda")
    options: tuple[Annotated[str, written("--[a-z-]+=[A-Za-z0-9.-]+", "--option=value")], ...] = (
        *("--cuda-graph-trace=node", "--cuda-event-trace=false"),
    )
    report: Annotated[str, written(r"[A-Za-z0-9_%{}]+", "a file name")] = (
        "profile_%q{SLURM_JOB_ID}_%q{SLURM_NODEID}_%q{SLURM_PROCID}"
    )
    """Name of a rank's report. Nsight Systems replaces `%q{NAME}` by a variable, `%p` by the process's ID."""
    gpu_metrics_option: Literal["--gpu-metrics-devices", "--gpu-metrics-device"] = "--gpu-metrics-devices"
    """Versions of Nsight Systems before 2024.5 know the second name only."""


class ProfileWindow(Frozen):
    """What a profile run looks at: with Nsight Systems on GPUs that have it, else with torch's profiler."""

    first_step: int = Field(ge=0)
    last_step: PositiveInt
    """Steps `first_step … last_step` are profiled, as far as the run goes."""
    ranks: tuple[int, ...] = Field(min_length=1)
    """Global ranks."""
    gpu_metrics: bool = False
    """Whether the GPUs' hardware counters are sampled, too (Nsight Systems only)."""
    nsight: Nsight = Nsight()


class Run(Frozen):
    """One planned training job: all that trainer and job script need, and nothing of where it lands."""

    schema_version: Literal[1] = 1
    experiment: str
    """The document's experiment name, `pretrain_llama3.1_8b_bf16_8`, with its suffix for the mode."""
    recipe: Recipe
    mode: Mode
    first_step: int = Field(default=0, ge=0)
    """Global step the run starts at: 0, or the saved step for a checkpoint load."""
    max_steps: PositiveInt
    """Global step at which the run ends: steps `first_step … max_steps - 1` are trained."""
    window: Window
    time_limit_s: PositiveInt
    cluster: str
    repeat: PositiveInt = 1
    seed: int = 1234
    checkpoint_path: str | None = None
    """Folder above `weights/` to load from; set when the saving job has ended."""
    async_save: bool = False
    """Whether training goes on while the checkpoint is written; in the mode `checkpoint_save` only."""
    environment: dict[str, str] = Field(default_factory=dict)
    """What the user asks for; it wins over that of the workload and of the cluster."""
    performance: Performance = Performance()
    """How the workload launches such a run, with the trainer's settings that the user asks for."""
    profile: ProfileWindow | None = None
    """For the mode `profile`, and only there."""
    model_flops: PositiveFloat | None = None
    """Floating-point operations of a step on one sample, by the recipe's formula: for TFLOPS in the log."""
    cluster_options: dict[str, bool | int | str] = Field(default_factory=dict)
    """What is asked of the kind of cluster, by the names that it declares in its folder."""
    cell: str | None = None
    """The label of its cell in a sweep; None outside sweeps."""

    @property
    def account(self) -> str | None:
        """The account that pays for the run; None for the cluster's default."""
        account = self.cluster_options.get("account")
        return None if account is None else str(account)

    @property
    def label(self) -> str:
        """What people read in Airflow: `tiny·fp32·2`, with the mode unless it is performance."""
        parts = [self.recipe.size, self.recipe.dtype, str(self.recipe.gpus)]
        if self.mode is not Mode.PERFORMANCE:
            parts.append(self.mode.value.replace("_", " "))
        if self.repeat > 1:
            parts.append(f"repeat {self.repeat}")
        return "·".join(parts)

    @property
    def name(self) -> str:
        """Its label, or in a sweep its cell's label and its mode: unique in the DAG run."""
        if self.cell is None or self.mode is Mode.PERFORMANCE:
            return self.cell or self.label
        return f"{self.cell}·{self.mode.value.replace('_', ' ')}"
