"""The block `performance` of a workload file: rules for launch settings, each with its source.

The rules that match a run are applied in the file's order and make its `Performance`.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from steptime.errors import unknown_value
from steptime.frozen import Frozen
from steptime.plug_points import CLUSTER_KINDS
from steptime.recipes.config_files import FieldErrors, Mistake, check_each
from steptime.recipes.environment import check_arguments, checked_environment
from steptime.recipes.models import FP8_RECIPES, Mode, Parallelism, Performance, Recipe, TrainerSettings
from steptime.refusals import matching

CPU = "cpu"
"""The GPU type of runs without GPUs: rules that name no GPU type do not apply to it."""

_MACHINE_SETTINGS = tuple(
    name for name in Performance.model_fields if name not in ("trainer", "environment", "arguments")
)
"""Fields of `Performance` that a rule replaces as a whole."""


class Row(NamedTuple):
    """The properties of a recipe (a row of a workload's tables) by which launch rules apply to it."""

    name: str
    """Name of the size in the tables, such as `405b-proxy`."""
    size: str
    """Size of the model; for a proxy, that of its full model."""
    dtype: str
    gpu_type: str
    parallelism: Parallelism


class Least(Frozen):
    """Minimum degrees of parallelism for a rule to apply."""

    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    context: PositiveInt = 1
    virtual_pipeline: PositiveInt = 1
    expert: PositiveInt = 1
    expert_tensor: PositiveInt = 1
    data: PositiveInt = 1

    def reached(self, parallelism: Parallelism) -> bool:
        """Return whether every degree of the parallelism reaches its minimum."""
        return all((getattr(parallelism, name) or 1) >= getattr(self, name) for name in self.model_fields_set)


class Rule(Frozen):
    """Launch settings for some runs of a workload; a condition that is left out holds for all runs."""

    source: str
    """Key of the workload's `sources`: where upstream sets this."""
    gpu_types: tuple[str, ...] = ()
    """GPU types; empty for all but `cpu`."""
    sizes: tuple[str, ...] = ()
    """Sizes, each with its proxies; empty for all."""
    dtypes: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = ()
    cluster_kinds: tuple[str, ...] = ()
    """Kinds from `plug_points.CLUSTER_KINDS`; empty for all."""
    gpus: tuple[PositiveInt, ...] = ()
    """GPU counts; empty for all."""
    at_least: Least = Least()
    trainer: TrainerSettings = TrainerSettings()
    environment: Annotated[dict[str, str], AfterValidator(checked_environment)] = Field(default_factory=dict)
    ranks_per_numa_node: PositiveInt | None = None
    priority_cores: bool | None = None
    vboost: bool | None = None
    arguments: Annotated[
        dict[Annotated[str, matching("[a-z][a-z0-9_]*", "small letters, digits and _")], str],
        AfterValidator(check_arguments),
    ] = Field(default_factory=dict)
    """Arguments `--NAME=VALUE` of Megatron-Bridge's script, for sizes that are its recipes."""

    @field_validator("cluster_kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        check_each(kinds, CLUSTER_KINDS.check)
        return kinds

    @model_validator(mode="after")
    def _sets_something(self) -> Self:
        if not (self.sets_trainer or self.environment or self._machine_settings or self.arguments):
            names = ("trainer", "environment", *_MACHINE_SETTINGS)
            raise ValueError(f"the rule sets nothing: give at least one of {', '.join(names)} and arguments")
        return self

    @property
    def sets_trainer(self) -> bool:
        """Whether the rule has settings of steptime's trainer."""
        return bool(self.trainer.model_fields_set)

    @property
    def _machine_settings(self) -> dict[str, int | bool]:
        return {name: value for name in _MACHINE_SETTINGS if (value := getattr(self, name)) is not None}

    def holds_for_row(self, row: Row) -> bool:
        """Return whether the rule's conditions on a recipe are met; those on mode and cluster are ignored."""
        conditions: tuple[tuple[tuple[object, ...], object], ...] = (
            *((self.gpu_types, row.gpu_type), (self.sizes, row.size), (self.dtypes, row.dtype)),
            (self.gpus, row.parallelism.world_size),
        )
        return (
            all(not allowed or value in allowed for allowed, value in conditions)
            and (row.gpu_type != CPU or CPU in self.gpu_types)
            and self.at_least.reached(row.parallelism)
        )

    def holds_for_job(self, mode: Mode, cluster_kind: str) -> bool:
        """Return whether the rule applies to runs in a mode on a kind of cluster."""
        return (not self.modes or mode in self.modes) and (
            not self.cluster_kinds or cluster_kind in self.cluster_kinds
        )

    def settings(self) -> dict[str, str | int | bool | None]:
        """Return the rule's settings by name.

        Variables are `environment.NAME`, arguments `arguments.NAME`.
        """
        trainer = {name: getattr(self.trainer, name) for name in self.trainer.model_fields_set}
        in_order = {name: trainer[name] for name in type(self.trainer).model_fields if name in trainer}
        variables = {f"environment.{name}": value for name, value in self.environment.items()}
        arguments = {f"arguments.{name}": value for name, value in self.arguments.items()}
        return {**in_order, **variables, **self._machine_settings, **arguments}

    def conditions(self) -> str:
        """Describe the rule's conditions except the GPU types; empty if it has none."""
        least = self.at_least.model_dump(exclude_defaults=True)
        parts = (
            "/".join(self.sizes),
            "/".join(self.dtypes),
            "/".join(mode.value for mode in self.modes),
            "/".join(map(str, self.gpus)) + " GPUs" * bool(self.gpus),
            " and ".join(f"{name} ≥ {degree}" for name, degree in least.items()),
            "/".join(self.cluster_kinds),
        )
        return ", ".join(part for part in parts if part)

    def apply_to(self, performance: Performance) -> Performance:
        """Return `performance` with the rule's settings, which replace earlier ones."""
        trainer = self.trainer.model_dump(include=self.trainer.model_fields_set)
        return performance.model_copy(
            update={
                "trainer": performance.trainer.model_copy(update=trainer),
                "environment": performance.environment | self.environment,
                "arguments": performance.arguments | self.arguments,
                **self._machine_settings,
            }
        )


class PerformanceRules(Frozen):
    """The block `performance` of a workload's file: rules for launch settings, and their sources."""

    sources: dict[str, str] = Field(default_factory=dict)
    """Origin of rules, as in `NVIDIA-NeMo/Megatron-Bridge v0.4.2, FILE`, by the name in a rule's `source`."""
    rules: tuple[Rule, ...] = ()
    """Rules in order: if two set the same, the later one counts."""

    def of(self, recipe: Recipe, size: str, mode: Mode, cluster_kind: str) -> Performance:
        """Return the launch settings of a run.

        Args:
            recipe: what the run trains.
            size: the model size whose rules apply; for a proxy, a smaller stand-in, that of the full model.
            mode: the mode of the run.
            cluster_kind: one of `plug_points.CLUSTER_KINDS`.
        """
        row = Row(recipe.size, size, recipe.dtype, recipe.gpu_type, recipe.parallelism)
        applied = (
            rule for rule in self.rules if rule.holds_for_row(row) and rule.holds_for_job(mode, cluster_kind)
        )
        return apply_rules(row.dtype, applied)

    @model_validator(mode="after")
    def _sources_are_used(self) -> Self:
        mistakes = [
            Mistake.of(unknown_value("source", rule.source, self.sources), "rules", index, "source")
            for index, rule in enumerate(self.rules)
            if rule.source not in self.sources
        ]
        for name in self.sources.keys() - {rule.source for rule in self.rules}:
            mistakes.append(Mistake("no rule has this source", ("sources", name)))
        if mistakes:
            raise FieldErrors(mistakes)
        return self


def apply_rules(dtype: str, rules: Iterable[Rule]) -> Performance:
    """Return the settings of these rules: if two set the same, the later one counts.

    Without a rule for it, `fp8_recipe` is the one that `dtype` implies, if any.
    """
    performance = Performance(trainer=TrainerSettings(fp8_recipe=FP8_RECIPES.get(dtype)))
    for rule in rules:
        performance = rule.apply_to(performance)
    return performance


def contradictions(row: Row, settings: TrainerSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield groups of trainer settings that contradict each other in a row: their names, and why."""
    yield from _check_formats(row, settings)
    yield from _check_overlap(row, settings)
    yield from _check_graphs(settings)
    yield from _check_recomputing(settings)


def _check_formats(row: Row, settings: TrainerSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    implied, names = FP8_RECIPES.get(row.dtype), ("fp8_recipe",)
    if implied is not None and settings.fp8_recipe != implied:
        yield (
            names,
            f"fp8_recipe is {settings.fp8_recipe}: dtype {row.dtype} means {implied}, so leave it out",
        )
    if implied is None and (row.dtype == "fp8") != (settings.fp8_recipe is not None):
        yield names, f"fp8_recipe is {settings.fp8_recipe}: rows of dtype fp8 need one, and no others"


def _check_overlap(row: Row, settings: TrainerSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    deferral = ("defer_embedding_wgrad_compute", "wgrad_deferral_limit")
    if settings.defer_embedding_wgrad_compute != (settings.wgrad_deferral_limit is not None):
        yield deferral, f"{' and '.join(deferral)} go together"
    by_callback = (
        *("tp_comm_overlap", "overlap_param_gather_with_optimizer_step"),
        "defer_embedding_wgrad_compute",
    )
    for name in by_callback:
        if getattr(settings, name) and not settings.comm_overlap_callback:
            yield (name, "comm_overlap_callback"), f"{name} needs comm_overlap_callback, which does it"
    if settings.tp_comm_overlap_cfg is not None and not settings.tp_comm_overlap:
        yield ("tp_comm_overlap_cfg", "tp_comm_overlap"), "tp_comm_overlap_cfg is for tp_comm_overlap"
    if settings.tp_comm_overlap and row.parallelism.tensor == 1:
        yield ("tp_comm_overlap",), "tp_comm_overlap needs tensor parallelism"


def _check_graphs(settings: TrainerSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in ("cuda_graph_impl", "cuda_graph_scope"):
        if not settings.cuda_graphs and getattr(settings, name) != TrainerSettings.model_fields[name].default:
            yield (name, "cuda_graphs"), f"{name} is for cuda_graphs"


def _check_recomputing(settings: TrainerSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    granularity = settings.recompute_granularity
    if settings.recompute_modules is not None and granularity != "selective":
        yield (
            ("recompute_modules", "recompute_granularity"),
            "recompute_modules is for recompute_granularity: selective",
        )
    of_layers = (settings.recompute_method is not None, settings.recompute_num_layers is not None)
    if of_layers != (granularity == "full",) * 2:
        yield (
            ("recompute_method", "recompute_num_layers", "recompute_granularity"),
            "recompute_method and recompute_num_layers go with recompute_granularity: full, and no other",
        )
