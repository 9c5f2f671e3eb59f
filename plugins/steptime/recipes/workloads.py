"""What can run: the models of `config/workloads/*.yaml`, and the recipes (rows) that their rules make.

One file describes one recipe document. docs/adding-a-workload.md explains every field.
"""

import functools
import itertools
import re
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from steptime.errors import UserError, unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import FieldError, load_yaml_model
from steptime.recipes.flops import FORMULAS
from steptime.recipes.models import ModelShape, Parallelism, Recipe, Window
from steptime.recipes.notation import parse_time_limit, parse_window
from steptime.recipes.performance_rules import PerformanceRules
from steptime.settings import config_dir

Scaling = Literal["weak", "strong"]

LAST_STEP = "last"
"""The window of the documents that take the last training step."""

PROXY_SUFFIX = "-proxy"
"""A proxy is its model with fewer layers: `405b-proxy`, as in the documents' tables."""

EXPERIMENT_PLACEHOLDERS = ("size", "dtype", "gpus", "tp", "pp", "cp", "vp", "mbs", "gbs")
"""What the template of an experiment's name may hold."""


def _time_limit(text: str) -> str:
    parse_time_limit(text)
    return text


def _window(text: str) -> str:
    if text != LAST_STEP:
        parse_window(text)
    return text


def _ascending(counts: tuple[int, ...]) -> tuple[int, ...]:
    if list(counts) != sorted(set(counts)):
        raise ValueError("GPU counts must ascend, each once")
    return counts


TimeLimit = Annotated[str, AfterValidator(_time_limit)]
GpuCounts = Annotated[tuple[PositiveInt, ...], Field(min_length=1), AfterValidator(_ascending)]


class Steps(Frozen):
    """How long a run is, which of its steps are averaged, and when the cluster ends it."""

    max_steps: PositiveInt
    window: Annotated[str, AfterValidator(_window)]
    """`last`, or `FIRST:LAST` in global steps, both included."""
    time_limit: dict[Scaling, TimeLimit]

    def window_of(self, max_steps: int) -> Window:
        """The window in a run of so many steps; it may lie outside of a shorter one."""
        if self.window == LAST_STEP:
            return Window(first=max_steps - 1, last=max_steps - 1)
        return parse_window(self.window)

    @model_validator(mode="after")
    def _window_inside(self) -> Self:
        if self.window_of(self.max_steps).last >= self.max_steps:
            raise FieldError(f"{self.window} lies outside of a run of {self.max_steps} steps", "window")
        return self


class Profile(Frozen):
    """Defaults of a run under Nsight Systems."""

    first_step: PositiveInt
    last_step: PositiveInt
    max_steps: PositiveInt
    ranks: tuple[int, ...]


class NcclTrace(Frozen):
    """Defaults of a run that logs NCCL's calls."""

    max_steps: PositiveInt
    time_limit: TimeLimit


class GpuType(Frozen):
    """How this document runs on one type of GPU."""

    gpus_per_node: PositiveInt
    image: str | None
    """Container image; null where the trainer's own environment is used (CPU)."""


class Layout(Frozen):
    """The parallelism of a configuration; data parallelism follows from the GPU count."""

    tensor: PositiveInt
    pipeline: PositiveInt
    context: PositiveInt
    virtual_pipeline: PositiveInt | None = None


class BatchRule(Frozen):
    """Global batch size: so much per GPU, or fixed at any scale."""

    per_gpu: PositiveFloat | None = None
    fixed: PositiveInt | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.per_gpu is None) == (self.fixed is None):
            raise ValueError("give either per_gpu or fixed")
        return self

    def at(self, gpus: int) -> int:
        """The global batch size on so many GPUs. Raises ValueError where the rule gives no whole number."""
        if self.fixed is not None:
            return self.fixed
        batch = gpus * (self.per_gpu or 0)
        if batch < 1 or batch != int(batch):
            raise ValueError(f"{self.per_gpu} per GPU on {gpus} GPUs is no whole global batch size")
        return int(batch)


class Printed(Frozen):
    """That a document's table has these rows, and where its cells differ from what is run."""

    expert_parallel: Literal["NA", ""]
    """Empty where the table has no such column."""
    virtual_pipeline: str | None = None


class Configuration(Frozen):
    """One rule that holds for several rows: these dtypes on these GPU types at these scales."""

    gpu_types: tuple[str, ...] = Field(min_length=1)
    dtypes: tuple[str, ...] = Field(min_length=1)
    gpus: GpuCounts
    parallelism: Layout
    tensor_choices: tuple[PositiveInt, ...] | None = None
    """Tensor parallelism that a user may ask for instead; none where a document fixes it."""
    micro_batch_size: PositiveInt
    global_batch_size: dict[Scaling, BatchRule] = Field(min_length=1)
    num_layers: PositiveInt | None = None
    """Layers of a proxy; null for the full model."""
    printed: Printed | None = None
    """Null for rows that are in no document."""

    def data_parallel(self, gpus: int, tensor: int) -> int:
        """Replicas of the model on so many GPUs. Raises ValueError where they do not come out whole."""
        replica = tensor * self.parallelism.pipeline * self.parallelism.context
        if gpus % replica:
            raise ValueError(f"{gpus} is no multiple of tensor × pipeline × context parallel = {replica}")
        return gpus // replica

    @model_validator(mode="after")
    def _scales_fit(self) -> Self:
        for index, gpus in enumerate(self.gpus):
            try:
                data = self.data_parallel(gpus, self.parallelism.tensor)
            except ValueError as error:
                raise FieldError(str(error), "gpus", index) from None
            for scaling, rule in self.global_batch_size.items():
                try:
                    batch = rule.at(gpus)
                except ValueError as error:
                    raise FieldError(str(error), "global_batch_size", scaling) from None
                if batch % (self.micro_batch_size * data):
                    raise FieldError(
                        f"{batch} on {gpus} GPUs is no multiple of "
                        f"micro batch size {self.micro_batch_size} × data parallel {data}",
                        "global_batch_size",
                        scaling,
                    )
        return self


class CheckpointLimits(Frozen):
    """From which scale on checkpoints are saved and loaded, by GPU type ("minimum tested scale")."""

    size_gb: PositiveFloat
    minimum_gpus_to_save: dict[str, PositiveInt]
    minimum_gpus_to_load: dict[str, PositiveInt]


class Size(Frozen):
    """One size of the model and every way it runs."""

    model: ModelShape
    default_gpus: GpuCounts | None = None
    """What is run where no GPU counts are given; null for the smallest documented one."""
    steps: Steps | None = None
    """Null for those of the workload."""
    configurations: tuple[Configuration, ...] = Field(min_length=1)
    proxies: tuple[Configuration, ...] = ()
    checkpoint: CheckpointLimits | None = None

    def shape(self, configuration: Configuration) -> ModelShape:
        """The model of that configuration: for a proxy, the same with fewer layers."""
        layers = configuration.num_layers or self.model.num_layers
        return self.model.model_copy(update={"num_layers": layers})

    @model_validator(mode="after")
    def _layers_divide(self) -> Self:
        for index, proxy in enumerate(self.proxies):
            if proxy.num_layers is None:
                raise FieldError("a proxy must say its num_layers", "proxies", index)
        for kind, configurations in (("configurations", self.configurations), ("proxies", self.proxies)):
            for index, configuration in enumerate(configurations):
                layout = configuration.parallelism
                stages = layout.pipeline * (layout.virtual_pipeline or 1)
                layers = self.shape(configuration).num_layers
                # Llama 405b counts embedding and loss as a layer each, so that 126 + 2 divide.
                if layers % stages and (layers + 2) % stages:
                    raise FieldError(
                        f"{layers} layers cannot be spread over {stages} pipeline stages",
                        kind,
                        index,
                        "parallelism",
                    )
        return self


class Defaults(Frozen):
    """What is meant where a user does not say."""

    size: str
    dtype: str


class Workload(Frozen):
    """One recipe document."""

    workload: str = Field(pattern=r"^[a-z0-9.]+(-[a-z0-9.]+)*-\d+\.\d+$")
    """Family and release, `llama3.1-25.04`; also the file's name."""
    title: str
    document: str
    dag_id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    flops_formula: str
    experiment: str
    step_log: Literal["lines", "bar"] = "lines"
    defaults: Defaults
    steps: Steps
    profile: Profile | None
    nccl_trace: NcclTrace | None
    gpu_types: dict[str, GpuType]
    performance: PerformanceRules = PerformanceRules()
    sizes: dict[str, Size]

    @property
    def family(self) -> str:
        """The name without the release."""
        return self.workload.rpartition("-")[0]

    def size_names(self) -> tuple[str, ...]:
        """Every size, proxies among them, as the tables name them."""
        proxies = (name + PROXY_SUFFIX for name, size in self.sizes.items() if size.proxies)
        return (*self.sizes, *proxies)

    def steps_of(self, size: str) -> Steps:
        """The steps of a size or its proxy: its own, or those of the workload."""
        return self.sizes[size.removesuffix(PROXY_SUFFIX)].steps or self.steps

    def recipes(self) -> Iterator[tuple[Recipe, Configuration]]:
        """Every row this file describes, with the rule that made it."""
        for name, size in self.sizes.items():
            for rule in (*size.configurations, *size.proxies):
                cells = itertools.product(rule.gpu_types, rule.global_batch_size, rule.gpus, rule.dtypes)
                for gpu_type, scaling, gpus, dtype in cells:
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
        """One row: a rule of `size` at one scale. Raises ValueError where the scale does not divide."""
        layout, hardware = rule.parallelism, self.gpu_types[gpu_type]
        tensor = tensor_parallel or layout.tensor
        proxy = rule.num_layers is not None
        return Recipe(
            workload=self.workload,
            size=size + PROXY_SUFFIX if proxy else size,
            dtype=dtype,
            gpu_type=gpu_type,
            scaling=scaling,
            proxy=proxy,
            model=self.sizes[size].shape(rule),
            parallelism=Parallelism(
                tensor=tensor,
                pipeline=layout.pipeline,
                context=layout.context,
                virtual_pipeline=layout.virtual_pipeline,
                data=rule.data_parallel(gpus, tensor),
            ),
            micro_batch_size=rule.micro_batch_size,
            global_batch_size=rule.global_batch_size[scaling].at(gpus),
            gpus_per_node=hardware.gpus_per_node,
            image=hardware.image,
            step_log=self.step_log,
            flops_formula=self.flops_formula,
        )

    @model_validator(mode="after")
    def _refers_to_what_exists(self) -> Self:
        if self.flops_formula not in FORMULAS:
            raise _dangling("formula", self.flops_formula, FORMULAS, "flops_formula")
        if self.defaults.size not in self.sizes:
            raise _dangling("size", self.defaults.size, self.sizes, "defaults", "size")
        for _, placeholder, _, _ in string.Formatter().parse(self.experiment):
            if placeholder is not None and placeholder not in EXPERIMENT_PLACEHOLDERS:
                raise _dangling("placeholder", placeholder, EXPERIMENT_PLACEHOLDERS, "experiment")
        for name, size in self.sizes.items():
            steps = self.steps_of(name)
            for kind, rules in (("configurations", size.configurations), ("proxies", size.proxies)):
                for index, rule in enumerate(rules):
                    place = ("sizes", name, kind, index)
                    for gpu_type in rule.gpu_types:
                        if gpu_type not in self.gpu_types:
                            raise _dangling("GPU type", gpu_type, self.gpu_types, *place, "gpu_types")
                    for scaling in rule.global_batch_size:
                        if scaling not in steps.time_limit:
                            message = f"the steps of this size have no time limit for {scaling} scaling"
                            raise FieldError(message, *place, "global_batch_size", scaling)
        self._check_performance()
        return self

    def _check_performance(self) -> None:
        """Raise FieldError for a rule that names what is not there or holds nowhere, and impossible rows."""
        dtypes = {
            dtype
            for size in self.sizes.values()
            for rule in (*size.configurations, *size.proxies)
            for dtype in rule.dtypes
        }
        for index, rule in enumerate(self.performance.rules):
            named: tuple[tuple[str, str, Iterable[str]], ...] = (
                ("GPU type", "gpu_types", self.gpu_types),
                ("size", "sizes", self.sizes),
                ("dtype", "dtypes", dtypes),
            )
            for kind, field, known in named:
                for value in getattr(rule, field):
                    if value not in known:
                        raise _dangling(kind, value, known, "performance", "rules", index, field)
        self.performance.check(
            (recipe, recipe.size.removesuffix(PROXY_SUFFIX)) for recipe, _ in self.recipes()
        )


def _dangling(kind: str, value: str, valid: Iterable[str], *location: int | str) -> FieldError:
    return FieldError(str(unknown_value(kind, value, valid)).removesuffix("."), *location)


def list_workloads() -> tuple[str, ...]:
    """The names of all workloads, sorted: the stems of `config/workloads/*.yaml`. Raises UserError."""
    folder = config_dir() / "workloads"
    names = tuple(sorted(path.stem for path in folder.glob("*.yaml")))
    if not names:
        raise UserError(f"{folder}: holds no workload (*.yaml).")
    return names


def load_workload(name: str) -> Workload:
    """The workload of that name; without a release (`llama3.1`) the newest. Raises UserError."""
    known = list_workloads()
    stem = name.lower()
    if stem not in known:
        releases = [other for other in known if other.rpartition("-")[0] == stem and _release(other)]
        if not releases:
            raise unknown_value("workload", name, known)
        stem = max(releases, key=_release)
    path = config_dir() / "workloads" / f"{stem}.yaml"
    return _load(path, path.stat().st_mtime_ns)


def dag_id(workload: str) -> str:
    """The DAG that runs the workload of that name. Raises UserError."""
    return load_workload(workload).dag_id


@functools.lru_cache(maxsize=64)
def _load(path: Path, _changed_ns: int) -> Workload:
    """One file, read again only when it changes."""
    workload = load_yaml_model(path, Workload)
    if workload.workload != path.stem:
        raise UserError(f"{path}: names itself workload '{workload.workload}': file and name must agree.")
    return workload


def _release(name: str) -> tuple[int, ...]:
    """The release at the end of a name, to compare by; empty where there is none."""
    release = name.rpartition("-")[2]
    return tuple(map(int, release.split("."))) if re.fullmatch(r"\d+\.\d+", release, re.ASCII) else ()
