"""The pydantic models of `config/workloads/*.yaml`, and the recipes (rows) that a file's rules define.

One file has the recipes of one publication. docs/reference/workloads.md explains every field. If pydantic
accepts a file, `workload_checks` checks whether its parts fit together.
"""

import itertools
import re
import string
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from steptime.errors import unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import FieldError, FieldErrors, Mistake
from steptime.recipes.image import FIRST_FOR_BRIDGE, nemo_release, parse_image
from steptime.recipes.models import Model, ModelShape, Nsight, OwnProgram, Parallelism, Recipe, Window
from steptime.recipes.notation import parse_time_limit, parse_window
from steptime.recipes.performance_rules import PerformanceRules
from steptime.recipes.spec import GPT
from steptime.refusals import matching

Scaling = Literal["weak", "strong"]

LAST_STEP = "last"
"""Value of `window` in workloads whose document measures only the last step."""

PROXY_SUFFIX = "-proxy"
"""Suffix of a proxy's size, as in the documents' tables: `405b-proxy` is 405b with fewer layers."""

EXPERIMENT_PLACEHOLDERS = ("size", "dtype", "gpus", "tp", "pp", "cp", "vp", "ep", "etp", "mbs", "gbs")
"""Placeholders in the template of an experiment's name."""
EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
"""Matches names of experiments, with which the names of their jobs begin."""


def _time_limit(text: str) -> str:
    parse_time_limit(text)
    return text


def _image(name: str) -> str:
    parse_image(name)
    return name


def _window(text: str) -> str:
    if text != LAST_STEP:
        parse_window(text)
    return text


def _ascending(counts: tuple[int, ...]) -> tuple[int, ...]:
    if list(counts) != sorted(set(counts)):
        raise ValueError("GPU counts must be in ascending order, each once")
    return counts


def _each_once(ranks: tuple[int, ...]) -> tuple[int, ...]:
    if twice := [rank for index, rank in enumerate(ranks) if rank in ranks[:index]]:
        raise ValueError(f"rank {twice[0]} is named twice: name each once")
    return ranks


def _merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into values; mappings are merged, other values replaced."""
    merged = {
        name: _merge(values[name], change)
        for name, change in changes.items()
        if isinstance(change, Mapping) and isinstance(values.get(name), Mapping)
    }
    return {**values, **changes, **merged}


def _experiment(template: str) -> str:
    """Check the template of an experiment's name: its placeholders, and whether it can name jobs."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        raise ValueError(f"'{template}' is no template: every {{ needs its }}, as in {{size}}") from None
    mistakes = []
    for _, placeholder, form, conversion in parts:
        if placeholder is not None and placeholder not in EXPERIMENT_PLACEHOLDERS:
            mistakes.append(Mistake.of(unknown_value("placeholder", placeholder, EXPERIMENT_PLACEHOLDERS)))
        elif form or conversion:
            mistakes.append(Mistake(f"'{placeholder}' cannot be formatted further: write {{{placeholder}}}"))
    example = "".join(text + "x" * (placeholder is not None) for text, placeholder, _, _ in parts)
    if not EXPERIMENT_NAME.fullmatch(example):
        mistakes.append(
            Mistake(
                f"'{template}' cannot name jobs: use only letters, digits, '.', '_', '-' and placeholders, "
                "begin with a letter, a digit or a placeholder, at most 150 in all"
            )
        )
    if mistakes:
        raise FieldErrors(mistakes)
    return template


TimeLimit = Annotated[str, AfterValidator(_time_limit)]
GpuCounts = Annotated[tuple[PositiveInt, ...], Field(min_length=1), AfterValidator(_ascending)]


class Steps(Frozen):
    """The length of a run, the steps to average, and the time limit."""

    max_steps: PositiveInt
    window: Annotated[str, AfterValidator(_window)]
    """`last`, or `FIRST:LAST` in global steps, both included."""
    time_limit: dict[Scaling, TimeLimit]

    @model_validator(mode="after")
    def _window_is_within(self) -> Self:
        if self.choose_window(self.max_steps).last >= self.max_steps:
            raise FieldError(
                f"{self.window} lies outside of a run of {self.max_steps} steps, 0 to {self.max_steps - 1}",
                "window",
            )
        return self

    def choose_window(self, max_steps: int) -> Window:
        """Return the steps to average in a run of `max_steps` steps; the caller checks that it has them."""
        if self.window == LAST_STEP:
            return Window(first=max_steps - 1, last=max_steps - 1)
        return parse_window(self.window)


class Profile(Frozen):
    """Default settings of a run under Nsight Systems."""

    first_step: PositiveInt
    last_step: PositiveInt
    max_steps: PositiveInt
    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1), AfterValidator(_each_once)]
    nsight: Nsight = Nsight()

    @model_validator(mode="after")
    def _steps_are_within(self) -> Self:
        steps = f"profiling from step {self.first_step} to step {self.last_step}"
        if self.last_step <= self.first_step:
            message = f"{steps} ends before it has begun: let first_step be below last_step"
            raise FieldError(message, "last_step")
        if self.last_step > self.max_steps:
            raise FieldError(
                f"{steps} lies outside of a profiled run of {self.max_steps} steps: "
                f"let it end by step {self.max_steps}, or give more max_steps",
                "last_step",
            )
        return self


class NcclTrace(Frozen):
    """Default settings of a run that logs NCCL calls."""

    max_steps: PositiveInt
    time_limit: TimeLimit


class Platform(Frozen):
    """A workload's settings for one type of GPU."""

    gpus_per_node: PositiveInt
    image: Annotated[str, AfterValidator(_image)] | None
    """Container image; null if the trainer's own environment is used (CPU)."""
    time_limit: TimeLimit | None = None
    """Time limit; null for that of the steps."""


class ModelParallelism(Frozen):
    """The parallelism of a configuration; data parallelism follows from the GPU count."""

    tensor: PositiveInt
    pipeline: PositiveInt
    context: PositiveInt
    virtual_pipeline: PositiveInt | None = None
    first_stage_layers: PositiveInt | None = None
    last_stage_layers: PositiveInt | None = None
    expert: PositiveInt | None = None
    expert_tensor: PositiveInt | None = None


class BatchRule(Frozen):
    """A rule for the global batch size: proportional to the GPU count, or fixed."""

    per_gpu: PositiveFloat | None = None
    fixed: PositiveInt | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.per_gpu is None) == (self.fixed is None):
            raise ValueError("give either per_gpu or fixed")
        return self

    def at(self, gpus: int) -> int:
        """Return the global batch size on that many GPUs. Raises ValueError if it is not an integer."""
        if self.fixed is not None:
            return self.fixed
        batch = gpus * (self.per_gpu or 0.0)
        if batch < 1 or not batch.is_integer():
            raise ValueError(
                f"{self.per_gpu} per GPU on {gpus} GPUs gives a global batch size of {batch:g}, which has to "
                "be a whole number above 0: correct per_gpu"
            )
        return int(batch)


PrintedValue = str | int | None
"""A value as a publication prints it (empty if it lacks the column); null if that is what is run."""


class PrintedRow(Frozen):
    """Table values that a publication prints differently from what is run, for the rows of a rule."""

    seq_length: PrintedValue = None
    num_layers: PrintedValue = None
    tensor_parallel: PrintedValue = None
    pipeline_parallel: PrintedValue = None
    context_parallel: PrintedValue = None
    expert_parallel: PrintedValue = None
    expert_tensor_parallel: PrintedValue = None
    data_parallel: PrintedValue = None
    virtual_pipeline: PrintedValue = None
    micro_batch_size: PrintedValue = None
    global_batch_size: PrintedValue = None
    gradient_accumulation: PrintedValue = None


class Configuration(Frozen):
    """A rule for several recipes: all combinations of its dtypes, GPU types, GPU counts and scalings."""

    gpu_types: tuple[str, ...] = Field(min_length=1)
    dtypes: tuple[str, ...] = Field(min_length=1)
    gpus: GpuCounts
    parallelism: ModelParallelism
    tensor_choices: tuple[PositiveInt, ...] | None = None
    """Tensor parallelism that a user may choose instead; null if the document fixes it."""
    micro_batch_size: PositiveInt
    global_batch_size: dict[Scaling, BatchRule] = Field(min_length=1)
    num_layers: PositiveInt | None = None
    """Number of layers of a proxy; null for those of the full model."""
    model: dict[str, Any] | None = None
    """Other differences of a proxy's model: fields of the size's `model`."""
    printed: PrintedRow | None = None
    """What the document prints differently for these rows; null if no document has the rows."""

    def parallelism_on(self, gpus: int, tensor: int | None = None) -> Parallelism:
        """Return the parallelism on this many GPUs, with another `tensor` size if given.

        Raises ValueError if the number of GPUs is not a multiple of those of one model replica.
        """
        model = self.parallelism.model_dump() | ({} if tensor is None else {"tensor": tensor})
        replica = model["tensor"] * model["pipeline"] * model["context"]
        if gpus % replica:
            raise ValueError(
                f"{gpus} GPUs are not a multiple of tensor × pipeline × context parallel = {replica}"
            )
        parallelism = Parallelism(**model, data=gpus // replica)
        if parallelism.expert is not None and gpus % parallelism.expert_replica:
            raise ValueError(
                f"{gpus} GPUs are not a multiple of expert × expert tensor × pipeline parallel = "
                f"{parallelism.expert_replica}"
            )
        return parallelism

    @property
    def is_proxy(self) -> bool:
        """Whether the rule is for a proxy, a model with fewer layers or other changes."""
        return self.num_layers is not None or self.model is not None

    def changed(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a size's model with this rule's changes."""
        layers = {} if self.num_layers is None else {"num_layers": self.num_layers}
        return _merge(model, (self.model or {}) | layers)


class CheckpointLimits(Frozen):
    """The smallest numbers of GPUs on which saving and loading checkpoints is tested, by GPU type."""

    minimum_gpus_to_save: dict[str, PositiveInt]
    minimum_gpus_to_load: dict[str, PositiveInt]


class Size(Frozen):
    """One size of the model, such as 8b: its shape, and the GPU counts and settings it can run with."""

    model: Model
    default_gpus: GpuCounts | None = None
    """GPU counts if none are requested; null for the smallest of the configurations."""
    steps: Steps | None = None
    """Steps of a run; null for those of the workload."""
    configurations: tuple[Configuration, ...] = Field(min_length=1)
    proxies: tuple[Configuration, ...] = ()
    checkpoint: CheckpointLimits | None = None

    def shape(self, configuration: Configuration) -> Model:
        """Return the model for a configuration; a proxy has fewer layers or other changes."""
        if not configuration.is_proxy:
            return self.model
        return ModelShape.model_validate(configuration.changed(self.model.model_dump()))


class Defaults(Frozen):
    """Defaults for options that a user leaves out."""

    size: str
    dtype: str


class Workload(Frozen):
    """A file of `config/workloads`: recipes of a model family in one release of NVIDIA's benchmarks."""

    workload: Annotated[
        str, matching(r"[a-z0-9.]+(-[a-z0-9.]+)*-\d+\.\d+", "a family and a release, as in llama3.1-25.04")
    ]
    """Family and release, `llama3.1-25.04`; also the file's name."""
    default_release: bool = False
    """Whether the family's name alone means this release although there is a newer one."""
    title: str
    document: str
    llmb_name: Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a plain name")] | None = None
    """Name in `llmb-run`, such as `nemotron_3`; null for the family's name."""
    flops_formula: str
    experiment: Annotated[str, AfterValidator(_experiment)]
    """Template of the experiments' names, with placeholders of `EXPERIMENT_PLACEHOLDERS`."""
    step_log: Literal["lines", "bar"] = "lines"
    backend: Literal["nemo", "megatron_bridge"] | None = None
    """What steptime's trainer trains with: NeMo 2 or Megatron-Bridge; null for that of the images."""
    launcher: OwnProgram | None = None
    """The user's own program that trains; null for steptime's trainer or Megatron-Bridge's script."""
    defaults: Defaults
    steps: Steps
    profile: Profile | None = None
    nccl_trace: NcclTrace | None = None
    gpu_types: dict[str, Platform]
    unsupported_gpu_types: dict[str, str] = Field(default_factory=dict)
    """For GPU types that the document names and this file has no configurations for: why not."""
    performance: PerformanceRules = PerformanceRules()
    sizes: dict[str, Size]

    @property
    def family(self) -> str:
        """The workload's name without the release."""
        return self.workload.rpartition("-")[0]

    @property
    def release(self) -> str:
        """The release that the recipes are from, `25.04`."""
        return self.workload.rpartition("-")[2]

    def find_rules(self, size: str) -> tuple[Configuration, ...]:
        """Return the configurations of a size (`405b`) or of its proxy (`405b-proxy`)."""
        whole = self.sizes[size.removesuffix(PROXY_SUFFIX)]
        return whole.proxies if size.endswith(PROXY_SUFFIX) else whole.configurations

    def size_names(self) -> tuple[str, ...]:
        """Return the names of all sizes and proxies, such as `8b` and `405b-proxy`."""
        proxies = (name + PROXY_SUFFIX for name, size in self.sizes.items() if size.proxies)
        return (*self.sizes, *proxies)

    def find_steps(self, size: str) -> Steps:
        """Return the steps of a size or its proxy: its own, or those of the workload."""
        return self.sizes[size.removesuffix(PROXY_SUFFIX)].steps or self.steps

    def find_time_limit(self, size: str, gpu_type: str, scaling: Scaling) -> str:
        """Return the time limit of a run (`HH:MM:SS`): the GPU type's own, else that of the size's steps."""
        return self.gpu_types[gpu_type].time_limit or self.find_steps(size).time_limit[scaling]

    def recipes(self) -> Iterator[tuple[Recipe, Configuration]]:
        """Yield every recipe that the file defines, with its rule."""
        for name, size in self.sizes.items():
            for rule in (*size.configurations, *size.proxies):
                rows = itertools.product(rule.gpu_types, rule.global_batch_size, rule.gpus, rule.dtypes)
                for gpu_type, scaling, gpus, dtype in rows:
                    yield (
                        self.recipe(name, rule, dtype=dtype, gpu_type=gpu_type, scaling=scaling, gpus=gpus),
                        rule,
                    )

    def recipe(
        self,
        size: str,
        rule: Configuration,
        *,
        dtype: str,
        gpu_type: str,
        scaling: Scaling,
        gpus: int,
        tensor_parallel: int | None = None,
    ) -> Recipe:
        """Return the recipe that a rule of `size` makes on this many GPUs. Raises ValueError if it cannot.

        For a proxy's rule, `size` is the full model's, without `PROXY_SUFFIX`.
        """
        platform = self.gpu_types[gpu_type]
        proxy = rule.is_proxy
        model = self.sizes[size].shape(rule)
        return Recipe(
            workload=self.workload,
            size=size + PROXY_SUFFIX if proxy else size,
            dtype=dtype,
            gpu_type=gpu_type,
            scaling=scaling,
            proxy=proxy,
            model=model,
            parallelism=rule.parallelism_on(gpus, tensor_parallel),
            micro_batch_size=rule.micro_batch_size,
            global_batch_size=rule.global_batch_size[scaling].at(gpus),
            gpus_per_node=platform.gpus_per_node,
            image=platform.image,
            step_log=self.step_log,
            backend=self._backend(model),
            launcher=self.launcher,
            flops_formula=self.flops_formula,
        )

    def _backend(self, model: Model) -> Literal["nemo", "megatron_bridge"]:
        """Return `backend`, or what steptime's trainer trains `model` with: that of the images, or the only
        one that has such models."""
        if self.backend is not None:
            return self.backend
        if self.launcher is not None or not isinstance(model, ModelShape):
            return "nemo"
        if model.architecture == GPT:
            return "megatron_bridge"
        images = (platform.image for platform in self.gpu_types.values())
        releases = (nemo_release(image) for image in images if image is not None)
        return (
            "megatron_bridge"
            if any(release and release >= FIRST_FOR_BRIDGE for release in releases)
            else "nemo"
        )
