"""The two results of planning: a `Recipe` (a row of a publication's tables) and a `Run` (a planned job)."""

# mypy takes pydantic's models, which `Frozen` makes immutable, for mutable dataclasses.
# mypy: disable-error-code="misc"

import re
import string
from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag, field_validator, model_validator

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.plug_points import MODEL_FAMILIES
from steptime.recipes import spec
from steptime.recipes.config_files import COLLECTIVE, DESCRIBED, NAMED, FieldError, FieldErrors, Mistake
from steptime.recipes.environment import SAFE_PLACE, find_secret
from steptime.recipes.step_lines import parse_step_line
from steptime.refusals import matching

OptionValue = bool | int | float | str
"""Value of a run option that a kind of cluster declares."""

RUN_FILE = "run.json"
"""File name of a `Run`: in its job's folder, for the trainer and for readers of the log beside it."""


class Mode(StrEnum):
    """The purpose of a run. Only `performance` runs are comparable with published step times."""

    PERFORMANCE = "performance"
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_LOAD = "checkpoint_load"
    PROFILE = "profile"
    NCCL_TRACE = "nccl_trace"


class HybridShape(Frozen, spec.HybridShape):
    """The Mamba part of a hybrid model (Nemotron-H): layers by kind, and the state space's dimensions."""

    num_attention_layers: PositiveInt
    num_mlp_layers: PositiveInt
    num_mamba_layers: PositiveInt
    expand: PositiveInt

    @model_validator(mode="after")
    def _pattern_counts(self) -> Self:
        counts = {"*": self.num_attention_layers, "-": self.num_mlp_layers, "M": self.num_mamba_layers}
        if self.pattern is not None and Counter(self.pattern) != Counter(counts):
            raise ValueError(
                f"pattern has the layers {dict(Counter(self.pattern))}, but the fields for their numbers say "
                f"{counts}: correct one of the two"
            )
        return self


class MoeShape(Frozen, spec.MoeShape):
    """The sizes of a mixture of experts: how many, how wide, and how many of them process a token."""

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.moe_router_topk > self.num_moe_experts:
            raise FieldError(
                f"{self.moe_router_topk} of {self.num_moe_experts} experts cannot be chosen: "
                "lower moe_router_topk, or raise num_moe_experts",
                "moe_router_topk",
            )
        return self


class LatentAttention(Frozen, spec.LatentAttention):
    """Multi-head latent attention (DeepSeek): low-rank projections of keys, values and perhaps queries."""


_OF_THE_RUN = re.compile(
    r"bf16|fp16|fp8.*|fp4.*|params_dtype|.*parallel(_size|_layout)?|.*pipeline.*|tp_comm.*|recompute.*"
    r"|.*cuda_graph.*|cpu_offloading.*|.*init_method|transformer_layer_spec|.*_fn|.*_func"
)
"""Matches fields of Megatron that are functions, or that parallelism, number format or launch decide."""


class ModelShape(Frozen, spec.ModelShape):
    """The sizes of a transformer; `architecture` is one of `plug_points.MODEL_FAMILIES`."""

    hybrid: HybridShape | None = None
    moe: MoeShape | None = None
    mla: LatentAttention | None = None
    megatron_fields: dict[str, bool | int | float | str | list[int]] | None = None

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def expert_layers(self) -> int:
        """The number of layers that have experts."""
        if self.moe is None:
            return 0
        return -(-(self.num_layers - self.moe.num_dense_layers) // self.moe.moe_layer_freq)

    @property
    def window_layers(self) -> int:
        """The number of layers whose attention has a sliding window."""
        if self.window_size is None:
            return 0
        every = self.window_attn_skip_freq
        return self.num_layers - (self.num_layers // every if every else 0)

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
    def _has_one_attention(self) -> Self:
        others = {"hybrid": self.hybrid, "mla": self.mla, "mtp_num_layers": self.mtp_num_layers}
        for name, other in others.items():
            if self.window_size is not None and other is not None:
                raise FieldErrors([Mistake(f"window_size does not go with {name}", ("window_size",))])
        if self.window_size is None and self.window_attn_skip_freq is not None:
            raise FieldErrors(
                [Mistake("window_attn_skip_freq is for window_size", ("window_attn_skip_freq",))]
            )
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
                raise ValueError(
                    f"{' + '.join(map(str, kinds))} hybrid layers do not add up to num_layers, "
                    f"{self.num_layers}"
                )
        return self


_SPECIAL = {
    "hybrid": "hybrid sizes",
    "moe": "experts",
    "mla": "latent attention",
    "mtp_num_layers": "layers that predict further tokens",
    "kv_channels": "head width of their own",
    "gated_linear_unit": "choice of MLP",
    "share_embeddings_and_output_weights": "shared embeddings",
    "megatron_fields": "fields of Megatron to choose",
}
"""Fields of a `ModelShape` that not every family has, and their names for people."""


def _refuse_special(shape: ModelShape, *, but: Collection[str] = ()) -> None:
    problems = [
        Mistake(f"{shape.architecture} models have no {what}: leave {field} out", (field,))
        for field, what in _SPECIAL.items()
        if field not in but and getattr(shape, field) is not None
    ]
    if problems:
        raise FieldErrors(problems)


def check_transformer(shape: ModelShape) -> None:
    """Raise ValueError if the shape has a field of `_SPECIAL`, such as experts or a head width of its own."""
    _refuse_special(shape)


def check_hybrid(shape: ModelShape) -> None:
    """Raise ValueError unless the shape has Mamba layers, and no other field of `_SPECIAL`."""
    _refuse_special(shape, but=("hybrid",))
    if shape.hybrid is None:
        raise ValueError(
            f"{shape.architecture} models need the field hybrid: describe their Mamba layers in it"
        )


_PLACES: dict[type[Frozen], str] = {
    ModelShape: "beside megatron_fields",
    MoeShape: "in moe",
    LatentAttention: "in mla",
}
"""Where a workload's file has the fields of a model, other than `megatron_fields`."""


def check_gpt(shape: ModelShape) -> None:
    """Raise ValueError for Mamba layers, an undetermined kind of MLP, or contradictory fields."""
    _refuse_special(shape, but=_SPECIAL.keys() - {"hybrid"})
    if shape.gated_linear_unit is None:
        raise ValueError(
            f"{shape.architecture} models must state whether their MLP is gated: set gated_linear_unit to "
            "true or false"
        )
    if shape.mla is not None and shape.kv_channels is not None:
        raise FieldError("latent attention takes its widths from mla: leave kv_channels out", "kv_channels")
    for name in shape.megatron_fields or {}:
        for part, place in _PLACES.items():
            if name in part.model_fields:
                raise FieldError(f"is not given here: give {name} {place}", "megatron_fields", name)
        if _OF_THE_RUN.fullmatch(name):
            message = "is decided by the run (its parallelism, number format and settings): leave it out"
            raise FieldError(message, "megatron_fields", name)


MEGATRON_BRIDGE = "megatron_bridge"
"""Value of `architecture` in a workload's file for a model given as the name of a Megatron-Bridge recipe."""

_Name = Annotated[str, matching("[a-z0-9][a-z0-9_.]*", "small letters, digits, _ and ., as in gpt_oss_120b")]
"""A name that becomes an argument of a command; upstream's parser allows no capitals either."""


BRIDGE_WORDS = (
    *("family", "recipe", "variant", "gpu_type", "gpus", "dtype", "micro_batch_size", "global_batch_size"),
    *("tensor", "pipeline", "context", "virtual_pipeline", "virtual_pipeline_or_None"),
    *("expert", "expert_tensor"),
    *("max_steps", "checkpoints", "checkpoint", "async_save"),
    *("profile_start", "profile_end", "profile_ranks"),
)
"""Placeholders in the arguments of a `BridgeLaunch`, as in `{gpus}`."""

_HubRepository = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "OWNER/NAME")
]


class BridgeLaunch(Frozen):
    """How each rank starts a Megatron-Bridge recipe: the block `launch` of a model in a workload file.

    An argument is left out for runs that have no value for one of its placeholders.
    """

    commits: dict[str, Annotated[str, matching("[0-9a-f]{40}", "a commit of Megatron-Bridge")] | None] = (
        Field(min_length=1)
    )
    """By image: the commit of Megatron-Bridge whose scripts are started; None for the image's own scripts."""
    script: Annotated[str, matching("[A-Za-z0-9_/][A-Za-z0-9_./-]*", "a path")]
    """Path of the script in Megatron-Bridge, or from / on in the image."""
    arguments: tuple[str, ...]
    """Arguments of the script, with placeholders of `BRIDGE_WORDS`."""
    dtypes: dict[str, str] = Field(default_factory=dict)
    """Upstream's name for each of steptime's number formats, where it differs."""
    profile: tuple[str, ...] = ()
    """Additional arguments of profile runs."""
    checkpoint_save: tuple[str, ...] = ()
    """Additional arguments of runs that save a checkpoint."""
    checkpoint_load: tuple[str, ...] = ()
    """Additional arguments of runs that load a checkpoint."""
    files: dict[Annotated[str, matching("/[A-Za-z0-9_./-]+", "a path from / on")], str] = Field(
        default_factory=dict
    )
    """Texts of files in upstream's release, by path; a variable with that path gets the job's copy."""

    def of_mode(self, mode: Mode) -> tuple[str, ...]:
        """Return the additional arguments of runs in a mode."""
        return {
            Mode.PROFILE: self.profile,
            Mode.CHECKPOINT_SAVE: self.checkpoint_save,
            Mode.CHECKPOINT_LOAD: self.checkpoint_load,
        }.get(mode, ())

    @model_validator(mode="after")
    def _can_be_started(self) -> Self:
        problems = [
            mistake
            for field in ("arguments", "profile", "checkpoint_save", "checkpoint_load")
            for index, text in enumerate(getattr(self, field))
            if (mistake := _unknown_placeholder(text, BRIDGE_WORDS, field, index)) is not None
        ]
        problems += [
            Mistake(f"{secret}, and a job's command is recorded and shown: {SAFE_PLACE}", (field, index))
            for field in ("arguments", "profile", "checkpoint_save", "checkpoint_load")
            for index, text in enumerate(getattr(self, field))
            if (secret := find_secret(text))
        ]
        for image, commit in self.commits.items():
            if (commit is None) != self.script.startswith("/"):
                told = (
                    "is null, so script must be a path from / on in the image"
                    if commit is None
                    else "is a commit of Megatron-Bridge, so script must be a path in Megatron-Bridge"
                )
                problems.append(Mistake(told, ("commits", image)))
        if problems:
            raise FieldErrors(problems)
        return self


def _unknown_placeholder(text: str, known: Collection[str], *location: str | int) -> Mistake | None:
    """Return a mistake for a text with an unknown placeholder or a single brace; None if there is neither."""
    try:
        unknown = {word for _, word, _, _ in string.Formatter().parse(text)} - {None, *known}
    except ValueError:  # a brace alone
        unknown = {text}
    if not unknown:
        return None
    words = ", ".join(f"{{{word}}}" for word in known)
    return Mistake(
        f"'{text}' has a word that nothing gives: there are {words}; write {{{{ for a brace", location
    )


class NamedRecipe(Frozen):
    """The name of a Megatron-Bridge recipe in place of a model's sizes, which upstream's code defines."""

    architecture: Literal["megatron_bridge"]
    family: _Name
    """Family in the release's launch script, such as `gpt_oss`."""
    recipe: _Name
    """Recipe, such as `gpt_oss_120b`; in release 25.11 the part after the family's name, `120b`."""
    variant: _Name | None = None
    """One of a recipe's several configurations for a GPU type, such as `v2`; None for upstream's default."""
    seq_length: PositiveInt
    """Tokens per sample, from which tokens per second are computed; the recipe sets it itself."""
    parameters: PositiveFloat | None = None
    """Number of parameters in billions, as upstream states it; None if it is not given."""
    active: PositiveFloat | None = None
    """Parameters active for one token, in billions; None if they are not given."""
    hub: dict[_HubRepository, tuple[str, ...]] = Field(default_factory=dict)
    """Files that each rank loads from the Hugging Face hub, by repository."""
    launch: BridgeLaunch

    @property
    def num_layers(self) -> None:
        """Always None: steptime does not know the recipe's layers."""


class Collective(Frozen):
    """A collective operation, which `trainer/collectives.py` times instead of training a model.

    The workload's size has the operation's name.
    """

    architecture: Literal["collective"]

    @property
    def num_layers(self) -> None:
        """Always None: no model is trained."""

    @property
    def seq_length(self) -> None:
        """Always None: no model is trained."""


def kind_of_model(model: Any) -> str:
    """Return the tag by which pydantic selects the class of a `Model`, from its `architecture`."""
    architecture = (
        model.get("architecture") if isinstance(model, dict) else getattr(model, "architecture", None)
    )
    return {MEGATRON_BRIDGE: NAMED, "collective": COLLECTIVE}.get(str(architecture), DESCRIBED)


Model = Annotated[
    Annotated[ModelShape, Tag(DESCRIBED)]
    | Annotated[NamedRecipe, Tag(NAMED)]
    | Annotated[Collective, Tag(COLLECTIVE)],
    Discriminator(kind_of_model),
]
"""What a recipe trains: a model with its sizes, a recipe of Megatron-Bridge, or a collective operation."""


class Parallelism(Frozen, spec.Parallelism):
    """How one model is spread over ranks: tensor, pipeline, context, data and expert parallelism."""


LAUNCH_WORDS = (
    *("size", "gpu_type", "max_steps", "gpus", "gpus_per_node"),
    *("seq_length", "micro_batch_size", "global_batch_size"),
    *("tensor", "pipeline", "context", "data", "expert"),
)
"""Placeholders in the arguments of an `OwnProgram`, as in `{max_steps}`."""


class OwnProgram(Frozen):
    """The user's program that trains in place of steptime's trainer: `launcher` in a workload's file."""

    kind: Literal["command"]
    command: tuple[str, ...] = Field(min_length=1)
    """Program and arguments of each rank; no shell reads them."""
    files: dict[Annotated[str, matching("[A-Za-z0-9][A-Za-z0-9._-]*", "a plain file name")], str] = Field(
        default_factory=dict
    )
    """Texts of files that the program reads, by name; they are written into its working directory."""
    step_line: str | None = None
    """How the program prints a step (`recipes.step_lines`), if it prints none of the known formats."""

    @field_validator("step_line")
    @classmethod
    def _is_read(cls, step_line: str | None) -> str | None:
        if step_line is not None:
            parse_step_line(step_line)
        return step_line

    @model_validator(mode="after")
    def _names_what_there_is(self) -> Self:
        for index, text in enumerate(self.command):
            if (mistake := _unknown_placeholder(text, LAUNCH_WORDS, "command", index)) is not None:
                raise FieldErrors([mistake])
        if secret := find_secret(" ".join(self.command)):
            raise FieldError(f"{secret}, and a job's command is recorded and shown: {SAFE_PLACE}", "command")
        for name, text in self.files.items():
            if secret := find_secret(text):
                raise FieldError(
                    f"{secret}, and a job's files are recorded and shown: {SAFE_PLACE}", "files", name
                )
            if name in (RUN_FILE, "job.sh"):
                raise FieldError(
                    "is the name of a file that steptime writes into the job's folder: choose another",
                    "files",
                    name,
                )
        return self


class Recipe(Frozen, spec.Recipe):
    """A training configuration: a row of a published table, or steptime's own on other GPU counts or CPUs."""

    workload: str
    """Family and release of the document, such as `llama3.1-25.04`."""
    size: str
    scaling: Literal["weak", "strong"]
    proxy: bool
    model: Model  # type: ignore[assignment]  # the trainer does not read runs of a NamedRecipe
    parallelism: Parallelism
    gpus_per_node: PositiveInt
    launcher: OwnProgram | None = None
    """The program that trains; None for steptime's trainer or Megatron-Bridge's script."""
    flops_formula: str
    """Name of the publication's formula for model FLOPs; MFU of different formulas must never be compared."""

    @property
    def step_line(self) -> str | None:
        """How a step is printed, if it is in none of the known formats."""
        return None if self.launcher is None else self.launcher.step_line

    @property
    def gpus(self) -> int:
        """The number of ranks of the job (GPUs, or CPU processes if `gpu_type` is `cpu`)."""
        return self.parallelism.world_size

    @property
    def hub_files(self) -> Mapping[str, tuple[str, ...]]:
        """The files that each rank loads from the Hugging Face hub, by repository; empty for most recipes."""
        return self.model.hub if isinstance(self.model, NamedRecipe) else {}

    @property
    def identity(self) -> dict[str, str | int]:
        """The columns that identify a recipe in tables of results and metrics."""
        return {
            "workload": self.workload,
            "size": self.size,
            "dtype": self.dtype,
            "gpu_type": self.gpu_type,
            "scaling": self.scaling,
            "gpus": self.gpus,
        }

    def command(self, max_steps: int) -> tuple[str, ...]:
        """Return the program and arguments of the recipe's launcher; empty if it has none."""
        words = {
            "size": self.size,
            "gpu_type": self.gpu_type,
            "max_steps": max_steps,
            **self.parallelism.model_dump(include={"tensor", "pipeline", "context", "data"}),
            "expert": self.parallelism.expert or 1,
            "gpus": self.gpus,
            "gpus_per_node": self.gpus_per_node,
            "seq_length": self.model.seq_length,
            "micro_batch_size": self.micro_batch_size,
            "global_batch_size": self.global_batch_size,
        }
        texts = () if self.launcher is None else self.launcher.command
        return tuple(text.format_map(words) for text in texts)

    @property
    def gradient_accumulation(self) -> int:
        """The number of micro batches that a data-parallel rank runs per step."""
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


class Window(Frozen, spec.Window):
    """The global steps to average over, both ends included; written `first:last` on the command line."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"window {self} ends before it begins")
        return self

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


class Nsight(Frozen):
    """Options of Nsight Systems (`nsys profile`) from a publication, in addition to those of steptime."""

    trace: Annotated[tuple[str, ...], Field(min_length=1)] = ("nvtx", "cuda")
    options: tuple[Annotated[str, matching("--[a-z-]+=[A-Za-z0-9.-]+", "--option=value")], ...] = (
        *("--cuda-graph-trace=node", "--cuda-event-trace=false"),
    )
    report: Annotated[str, matching(r"[A-Za-z0-9_%{}]+", "a file name")] | None = None
    """Name of a rank's report; None for the cluster's own.

    Nsight Systems replaces `%q{NAME}` by an environment variable's value, `%p` by the process's ID.
    """
    gpu_metrics_option: Literal["--gpu-metrics-devices", "--gpu-metrics-device"] = "--gpu-metrics-devices"
    """Name of the option that samples GPU metrics: Nsight Systems before 2024.5 knows only the second."""


FP8_RECIPES: Mapping[str, Literal["current", "blockwise", "mxfp8", "nvfp4"]] = MappingProxyType(
    {"fp8_cs": "current", "fp8_ss": "blockwise", "fp8_mx": "mxfp8", "nvfp4": "nvfp4"}
)
"""FP8 recipe of number formats that imply it; for `fp8` a rule of the workload gives it."""


class TrainerSettings(Frozen, spec.Settings):
    """Settings that a recipe does not determine, such as recomputation and communication overlap."""

    tp_comm_overlap_cfg: (
        Annotated[str, matching("userbuffers_[a-z0-9_]+", "a name that begins with userbuffers_")] | None
    ) = None
    recompute_modules: tuple[str, ...] | None = Field(default=None, min_length=1)
    cuda_graph_scope: tuple[str, ...] | None = Field(default=None, min_length=1)


class Performance(Frozen, spec.Performance):
    """How to launch a run: trainer settings, job variables, and the binding of its ranks."""

    trainer: TrainerSettings = TrainerSettings()
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the job; the cluster's and the run's own win over them."""
    ranks_per_numa_node: PositiveInt | None = None
    """Number of neighbouring ranks bound to one NUMA node, its cores and memory; None for no binding."""
    priority_cores: bool = False
    """Whether each rank is also bound to two cores of its own, as upstream does on B300."""
    vboost: bool = False
    """Whether `nvidia-smi boost-slider --vboost 1` shifts power to the tensor cores before the training."""
    arguments: dict[str, str] = Field(default_factory=dict)
    """Additional arguments of Megatron-Bridge's script, for a size that is its recipe."""


class ProfileWindow(Frozen, spec.ProfileWindow):
    """The steps and ranks that a profile run records, with Nsight Systems or torch's profiler."""

    ranks: tuple[int, ...] = Field(min_length=1)
    gpu_metrics: bool = False
    """Whether the GPUs' hardware counters are sampled as well (Nsight Systems only)."""
    nsight: Nsight = Nsight()


class TrialRules(Frozen):
    """What a trial compares, and when it ends; recorded with each of its runs."""

    trial: str
    """Name of the trial."""
    variants: tuple[str, ...]
    """Names of the variants that are compared, in the order of the file: the others are compared with the
    first."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """By the names of combinations that cannot run, why not."""
    least_difference_percent: PositiveFloat
    """Smallest difference of step times that matters, in percent."""
    known_noise_percent: PositiveFloat | None = None
    """Standard deviation of a single run by the history of the configuration; None without a history."""
    stop_when: Literal["all within", "best known"]
    """It ends when all variants left are within the least difference, or already when the best is known."""
    rounds_max: PositiveInt
    gpu_hours_max: PositiveFloat
    gpu_hours_of_run: dict[str, PositiveFloat]
    """By variant, the GPU-hours of a run that takes as long as its time limit."""
    seed: int
    """Seed of the order of the variants in each round."""
    same_nodes: bool
    """Whether the variants of a round run one after the other on the same nodes."""


class TrialPosition(Frozen):
    """Where a run stands in a trial."""

    rules: TrialRules
    variant: str
    round: PositiveInt
    index: int
    """Number of the trial's runs that are planned before this one."""


class Run(Frozen, spec.PlannedRun):
    """A planned training job: everything that trainer and job script need, independent of the cluster."""

    schema_version: Literal[1] = 1
    recipe: Recipe
    mode: Mode
    window: Window
    time_limit_s: PositiveInt
    cluster: str
    repeat: PositiveInt = 1
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that the user asks for; they win over those of the workload and of the cluster."""
    performance: Performance = Performance()
    profile: ProfileWindow | None = None
    cluster_options: dict[str, OptionValue] = Field(default_factory=dict)
    """Options for the kind of cluster, by the names that it declares in its folder."""
    cell: str | None = None
    """Label of its cell in a sweep; None outside sweeps."""
    tuning: str = ""
    """Manual tuning, such as `tp4 mbs2`; empty for a run as in its document."""
    keep_checkpoint: bool = False
    """Whether a pair's checkpoint stays on the cluster after this run has loaded it and is valid."""
    for_judging: bool = True
    """Whether the run is judged with its series; False for imported runs that are only to be shown."""
    trial: TrialPosition | None = None
    """Where it stands in a trial, whose runs are not judged; None outside of trials."""

    @model_validator(mode="before")
    @classmethod
    def _without_nemo(cls, values: Any) -> Any:
        """Leave out the model's field `nemo`, which plans in the store and in archives have from versions
        whose models of the architecture `gpt` NeMo 2 trained."""
        match values:
            case {"recipe": {"model": {"nemo": _, **model}} as recipe}:
                return {**values, "recipe": {**recipe, "model": model}}
        return values

    @property
    def account(self) -> str | None:
        """The account that pays for the run; None for the cluster's default."""
        account = self.cluster_options.get("account")
        return None if account is None else str(account)

    @property
    def label(self) -> str:
        """The run's label in Airflow: `tiny·fp32·2`, with any special mode, tuning and repeat appended."""
        parts = [self.recipe.size, self.recipe.dtype, str(self.recipe.gpus)]
        if self.mode is not Mode.PERFORMANCE:
            parts.append(self.mode.value.replace("_", " "))
        if self.tuning:
            parts.append(f"tuned {self.tuning}")
        if self.repeat > 1:
            parts.append(f"repeat {self.repeat}")
        return "·".join(parts)

    @property
    def name(self) -> str:
        """The run's unique name in the DAG run.

        It is the label; in a sweep, the label of the run's cell, with the mode unless that is performance.
        """
        if self.cell is None or self.mode is Mode.PERFORMANCE:
            return self.cell or self.label
        return f"{self.cell}·{self.mode.value.replace('_', ' ')}"
