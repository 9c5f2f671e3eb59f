"""Compare the parts of a workload file that pydantic has accepted: do they fit together?

`workload_file` says what each part may be on its own. Here parts are compared with one another, with
`config/gpus.yaml` and with the FLOPs formulas. Locations of mistakes begin at the top of the file.
"""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import ValidationError

from steptime.errors import UserError, unknown_value
from steptime.recipes.bridge_launch import find_image_mistake, find_repeated
from steptime.recipes.config_files import Location, Mistake, mistakes_of
from steptime.recipes.flops import formula_names, load_formula, misfit
from steptime.recipes.gpus import GpuType, gpu_types
from steptime.recipes.models import FP8_RECIPES, Mode, ModelShape, NamedRecipe, TrainerSettings
from steptime.recipes.parameters import contradiction
from steptime.recipes.performance_rules import Row, Rule, apply_rules, contradictions
from steptime.recipes.workload_file import PROXY_SUFFIX, Configuration, ModelParallelism, Scaling, Workload


class LocatedRule(NamedTuple):
    """A configuration of a workload file, for a full model or for its proxy, and where it stands."""

    location: Location
    size: str
    rule: Configuration

    @property
    def kind(self) -> str:
        """The list of the workload file that has this rule: `configurations` or `proxies`."""
        return str(self.location[2])

    def __str__(self) -> str:
        return ".".join(map(str, self.location))


def find_mistakes(workload: Workload) -> list[Mistake]:
    """Return the mistakes in a workload file that show only when its parts are compared with each other."""
    return [mistake for check in _CHECKS for mistake in check(workload)]


def _rules(workload: Workload) -> Iterator[LocatedRule]:
    """Yield the configurations of all full models and proxies of a workload file, in order."""
    for name, size in workload.sizes.items():
        for kind, rules in (("configurations", size.configurations), ("proxies", size.proxies)):
            for index, rule in enumerate(rules):
                yield LocatedRule(("sizes", name, kind, index), name, rule)


def _shapes(workload: Workload) -> Iterator[tuple[str, ModelShape]]:
    """Yield the sizes whose models are described by their dimensions, by name."""
    for name, size in workload.sizes.items():
        if isinstance(size.model, ModelShape):
            yield name, size.model


def _shape_of_rule(workload: Workload, located: LocatedRule) -> ModelShape | None:
    """Return the model that a configuration runs, smaller for a proxy.

    None if the file does not describe the model by its dimensions, or a proxy's changes do not fit it.
    """
    try:
        shape = workload.sizes[located.size].shape(located.rule)
    except ValidationError:
        return None
    return shape if isinstance(shape, ModelShape) else None


def _check_formula(workload: Workload) -> Iterator[Mistake]:
    """Check that the formula exists and covers the model of each size."""
    name = workload.flops_formula
    try:
        load_formula(name)
    except UserError as error:
        yield Mistake.of(error, "flops_formula")
        return
    sizes_by_problem: dict[str, list[str]] = {}
    for size_name, size in workload.sizes.items():
        if (problem := misfit(name, size.model)) is not None:
            sizes_by_problem.setdefault(problem, []).append(size_name)
    for problem, sizes in sizes_by_problem.items():
        models = [workload.sizes[size].model for size in sizes]
        fitting = [other for other in formula_names() if not any(misfit(other, model) for model in models)]
        yield Mistake(
            f"formula '{name}' {problem} ({', '.join(sizes)}): formulas that fit "
            f"are {', '.join(fitting) or 'none'}",
            ("flops_formula",),
        )


def _check_defaults(workload: Workload) -> Iterator[Mistake]:
    """Check that the default size, its default dtype and all default GPU counts exist."""
    defaults = workload.defaults
    if defaults.size not in workload.sizes:
        yield Mistake.of(unknown_value("size", defaults.size, workload.sizes), "defaults", "size")
    for name, size in workload.sizes.items():
        rules = (*size.configurations, *size.proxies)
        dtypes = dict.fromkeys(dtype for rule in rules for dtype in rule.dtypes)
        if name == defaults.size and defaults.dtype not in dtypes:
            error = unknown_value("dtype", defaults.dtype, dtypes, of=f"the default size {name}")
            yield Mistake.of(error, "defaults", "dtype")
        scales = sorted({gpus for rule in size.configurations if not rule.is_proxy for gpus in rule.gpus})
        for index, gpus in enumerate(size.default_gpus or ()):
            if gpus not in scales:
                error = unknown_value("GPU count", gpus, scales, of=name)
                yield Mistake.of(error, "sizes", name, "default_gpus", index)


def _check_names(workload: Workload) -> Iterator[Mistake]:
    """Check that each size's model has the number of parameters that the size's name states."""
    for name, size in workload.sizes.items():
        if (problem := contradiction(name, size.model)) is not None:
            yield Mistake(problem, ("sizes", name, "model"))


def _check_heads(workload: Workload) -> Iterator[Mistake]:
    """Check that attention heads can be divided among the hidden size, query groups and tensor ranks."""
    for size, shape in _shapes(workload):
        yield from _uneven_heads(shape, ("sizes", size, "model"))
    for located in _rules(workload):
        location, rule, shape_of_rule = located.location, located.rule, _shape_of_rule(workload, located)
        if shape_of_rule is None:
            continue
        if rule.model:
            yield from _uneven_heads(shape_of_rule, (*location, "model"))
        heads = shape_of_rule.num_attention_heads
        degrees: dict[Location, int] = {
            (*location, "parallelism", "tensor"): rule.parallelism.tensor,
            **{
                (*location, "tensor_choices", n): tensor for n, tensor in enumerate(rule.tensor_choices or ())
            },
        }
        for degree_location, tensor in degrees.items():
            if heads % tensor:
                yield Mistake(
                    f"{heads} attention heads cannot be spread over tensor parallel {tensor}: "
                    "give a number that divides them",
                    degree_location,
                )


def _uneven_heads(shape: ModelShape, location: Location) -> Iterator[Mistake]:
    heads = shape.num_attention_heads
    if shape.kv_channels is None and shape.mla is None and shape.hidden_size % heads:
        yield Mistake(
            f"a hidden_size of {shape.hidden_size} cannot be divided among {heads} attention heads: "
            "correct one, or give kv_channels",
            (*location, "hidden_size"),
        )
    if heads % shape.num_query_groups:
        yield Mistake(
            f"{heads} attention heads cannot be divided among {shape.num_query_groups} query groups: "
            "give a number that divides them",
            (*location, "num_query_groups"),
        )


def _check_experts(workload: Workload) -> Iterator[Mistake]:
    """Check that only mixtures of experts have expert parallelism, and that it divides their experts."""
    for located in _rules(workload):
        spread, shape = located.rule.parallelism, _shape_of_rule(workload, located)
        field = "expert" if spread.expert is not None else "expert_tensor"
        location = (*located.location, "parallelism", field)
        if shape is None or (spread.expert is None and spread.expert_tensor is None):
            continue
        if shape.moe is None:
            yield Mistake("is for mixtures of experts, and this model has none: leave it out", location)
            continue
        if spread.expert is None:
            yield Mistake(
                "needs the field expert, which is missing: set it, to 1 if every rank has all experts",
                location,
            )
            continue
        experts, width = shape.moe.num_moe_experts, shape.moe.moe_ffn_hidden_size
        if experts % spread.expert:
            yield Mistake(
                f"{experts} experts cannot be spread over expert parallel {spread.expert}: "
                "give a number that divides them",
                location,
            )
        if width % (spread.expert_tensor or spread.tensor):
            yield Mistake(
                f"an expert's moe_ffn_hidden_size of {width} cannot be spread over its tensor parallelism, "
                f"{spread.expert_tensor or spread.tensor} ranks: set expert_tensor to a divisor of {width}",
                (*located.location, "parallelism", "expert_tensor"),
            )


def _check_proxies(workload: Workload) -> Iterator[Mistake]:
    """Check that proxies, and only they, change the model, and that the changed model is possible."""
    for located in _rules(workload):
        rule, model = located.rule, workload.sizes[located.size].model
        if not isinstance(model, ModelShape):
            if located.kind == "proxies" or rule.is_proxy:
                named = "a Megatron-Bridge recipe" if isinstance(model, NamedRecipe) else "an operation"
                yield Mistake(
                    f"is for models whose sizes are in this file, which only names {named}: leave it out",
                    located.location,
                )
        elif located.kind == "configurations" and rule.is_proxy:
            field = "num_layers" if rule.model is None else "model"
            yield Mistake(
                "is for proxies, which have fewer layers: a configuration runs the whole model",
                (*located.location, field),
            )
        elif located.kind == "proxies" and not rule.is_proxy:
            yield Mistake(
                "a proxy must change the model: set num_layers, or other fields of the model",
                located.location,
            )
        elif rule.is_proxy:
            yield from _mistakes_of_changes(rule, model, located.location)


def _mistakes_of_changes(rule: Configuration, model: ModelShape, location: Location) -> Iterator[Mistake]:
    changed = rule.changed(model.model_dump(mode="json", exclude_unset=True))
    try:
        ModelShape.model_validate_json(json.dumps(changed), strict=True)
    except ValidationError as error:
        for mistake in mistakes_of(error):
            yield replace(mistake, location=(*location, "model", *mistake.location))


def _check_layers(workload: Workload) -> Iterator[Mistake]:
    """Check that the layers can be spread over the pipeline's stages, virtual ones included."""
    for located in _rules(workload):
        spread, shape = located.rule.parallelism, _shape_of_rule(workload, located)
        stages = spread.pipeline * (spread.virtual_pipeline or 1)
        location = (*located.location, "parallelism")
        if spread.pipeline == 1 < stages:
            yield Mistake(
                f"{stages} virtual stages need more than one pipeline stage: raise pipeline, or leave this "
                "out",
                (*location, "virtual_pipeline"),
            )
        elif shape is not None and _layers_of_outer_stages(spread):
            yield from _check_outer_stages(spread, shape.num_layers, location)
        elif shape is not None and all(layers % stages for layers in _layer_counts(shape)):
            yield Mistake(
                f"{' or '.join(map(str, _layer_counts(shape)))} layers cannot be spread over {stages} "
                "pipeline stages",
                location,
            )


def _layers_of_outer_stages(spread: ModelParallelism) -> dict[str, int]:
    """Return the explicit layer counts of the first and last stage, by field."""
    given = {"first_stage_layers": spread.first_stage_layers, "last_stage_layers": spread.last_stage_layers}
    return {field: layers for field, layers in given.items() if layers is not None}


def _check_outer_stages(spread: ModelParallelism, num_layers: int, location: Location) -> Iterator[Mistake]:
    outer, parts = _layers_of_outer_stages(spread), spread.virtual_pipeline or 1
    left, others = num_layers - sum(outer.values()), (spread.pipeline - len(outer)) * parts
    for field, layers in outer.items():
        if spread.pipeline == 1:
            yield Mistake(
                "is for a pipeline of several stages: leave it out, or raise pipeline", (*location, field)
            )
            return
        if layers % parts:
            yield Mistake(
                f"{layers} layers cannot be spread over the stage's {parts} virtual stages",
                (*location, field),
            )
    if left < others or (left % others if others else left):
        yield Mistake(
            f"{num_layers} layers minus these {sum(outer.values())} cannot be spread over the other {others} "
            "pipeline stages",
            (*location, next(iter(outer))),
        )


def _layer_counts(shape: ModelShape) -> tuple[int, ...]:
    """Return the layer counts of which one must be divisible by the number of pipeline stages.

    The stages include virtual ones. More than the transformer layers may count: in Llama 405b embedding and
    output as well (126 + 2), in DeepSeek-V3 also the layer for multi-token prediction (61 + 3).
    """
    further = shape.mtp_num_layers or 0
    return tuple(dict.fromkeys(shape.num_layers + more for more in (0, 2, 2 + further)))


def _check_hardware(workload: Workload) -> Iterator[Mistake]:
    """Check that rules name GPU types of the file and of config/gpus.yaml, with a peak for each dtype."""
    peaks = _known_gpu_types()
    for gpu_type in workload.gpu_types:
        if peaks is not None and gpu_type not in peaks:
            error = unknown_value("GPU type", gpu_type, peaks, of="config/gpus.yaml")
            yield Mistake.of(error, "gpu_types", gpu_type)
    for located in _rules(workload):
        for index, gpu_type in enumerate(located.rule.gpu_types):
            if gpu_type not in workload.gpu_types:
                error = unknown_value("GPU type", gpu_type, workload.gpu_types)
                yield Mistake.of(error, *located.location, "gpu_types", index)
            described = (peaks or {}).get(gpu_type)
            for number, dtype in enumerate(located.rule.dtypes if described is not None else ()):
                if described is not None and described.find_peak(dtype) is None:
                    yield Mistake(
                        f"dtype '{dtype}' has no peak on {gpu_type} in config/gpus.yaml, which has "
                        f"{', '.join(described.peak_tflops)}: add it there with its source, or correct it "
                        "here",
                        (*located.location, "dtypes", number),
                    )


def _known_gpu_types() -> dict[str, GpuType | None] | None:
    """Return the GPU types of `config/gpus.yaml`; None if it cannot be read, which is reported elsewhere."""
    try:
        return gpu_types()
    except UserError:
        return None


def _check_scales(workload: Workload) -> Iterator[Mistake]:
    """Check that parallelism and batch sizes fit each GPU count, and that each scaling has a time limit."""
    for location, size, rule in _rules(workload):
        for index, gpus in enumerate(rule.gpus):
            try:
                rule.parallelism_on(gpus)
            except ValueError as error:
                yield Mistake.of(error, *location, "gpus", index)
        for scaling in rule.global_batch_size:
            batch_location = (*location, "global_batch_size", scaling)
            yield from itertools.islice(_uneven_batches(rule, scaling, batch_location), 1)
            if scaling not in workload.find_steps(size).time_limit:
                problem = f"time_limit in the steps of this size has no entry for {scaling} scaling"
                yield Mistake(f"{problem}: add it, or leave this out", batch_location)


def _uneven_batches(rule: Configuration, scaling: Scaling, location: Location) -> Iterator[Mistake]:
    for gpus in rule.gpus:
        try:
            batch = rule.global_batch_size[scaling].at(gpus)
        except ValueError as error:
            yield Mistake.of(error, *location)
            continue
        try:
            data = rule.parallelism_on(gpus).data
        except ValueError:
            continue  # `_check_scales` has a mistake for this GPU count
        if batch % (rule.micro_batch_size * data):
            yield Mistake(
                f"{batch} on {gpus} GPUs is not a multiple of "
                f"micro batch size {rule.micro_batch_size} × data parallel {data}",
                location,
            )


def _check_repeated(workload: Workload) -> Iterator[Mistake]:
    """Check that no two rules are for the same size, GPU type, dtype, GPU count and scaling.

    The later rule would never be used.
    """
    first: dict[tuple[object, ...], LocatedRule] = {}
    reported = set()
    for located in _rules(workload):
        rule = located.rule
        rows = itertools.product(rule.gpus, rule.gpu_types, rule.dtypes, rule.global_batch_size)
        for gpus, gpu_type, dtype, scaling in rows:
            other = first.setdefault((located.size, located.kind, gpus, gpu_type, dtype, scaling), located)
            if other is not located and (other.location, located.location) not in reported:
                reported.add((other.location, located.location))
                yield Mistake(
                    f"{gpus} {gpu_type} in {dtype}, {scaling} scaling, is already in the rule {other}: "
                    "remove it from one of the two",
                    located.location,
                )


def _check_checkpoints(workload: Workload) -> Iterator[Mistake]:
    """Check that checkpoint limits name the file's types of GPU."""
    for name, size in workload.sizes.items():
        for field in ("minimum_gpus_to_save", "minimum_gpus_to_load") if size.checkpoint else ():
            for gpu_type in getattr(size.checkpoint, field):
                if gpu_type not in workload.gpu_types:
                    error = unknown_value("GPU type", gpu_type, workload.gpu_types)
                    yield Mistake.of(error, "sizes", name, "checkpoint", field, gpu_type)


def _check_performance(workload: Workload) -> Iterator[Mistake]:
    """Check the launch rules of the block `performance`: the names in them, their use and their settings.

    Rules are compared with the rows only if all names and all rows are valid, as a mistake in these would
    make rules seem wrong that are not.
    """
    unknown = [*_unknown_names(workload)]
    yield from unknown
    try:
        rows = [*_rows(workload)]
    except ValueError:
        return  # a GPU count that `_check_scales` reports
    if not unknown:
        yield from _unused_rules(workload, rows)
        yield from _contradictory_settings(workload, rows)


def _rows(workload: Workload) -> Iterator[Row]:
    """Yield the rows of all configurations. Raises ValueError for an invalid GPU count."""
    for location, size, rule in _rules(workload):
        name = size + PROXY_SUFFIX * ("proxies" in location)
        for gpus, gpu_type, dtype in itertools.product(rule.gpus, rule.gpu_types, rule.dtypes):
            yield Row(name, size, dtype, gpu_type, rule.parallelism_on(gpus))


def _unknown_names(workload: Workload) -> Iterator[Mistake]:
    """Yield a mistake for each GPU type, size or dtype in a launch rule that the workload does not have."""
    dtypes = dict.fromkeys(dtype for located in _rules(workload) for dtype in located.rule.dtypes)
    named: tuple[tuple[str, str, Collection[str]], ...] = (
        ("GPU type", "gpu_types", workload.gpu_types),
        ("size", "sizes", workload.sizes),
        ("dtype", "dtypes", dtypes),
    )
    for index, rule in enumerate(workload.performance.rules):
        for kind, field, known in named:
            for value in getattr(rule, field):
                if value not in known:
                    error = unknown_value(kind, value, known)
                    yield Mistake.of(error, "performance", "rules", index, field)


def _unused_rules(workload: Workload, rows: Sequence[Row]) -> Iterator[Mistake]:
    for index, rule in enumerate(workload.performance.rules):
        if not any(map(rule.holds_for_row, rows)):
            yield Mistake("the rule holds for no row of this workload", ("performance", "rules", index))


def _contradictory_settings(workload: Workload, rows: Sequence[Row]) -> Iterator[Mistake]:
    """Yield each contradiction between trainer settings of a row once, even if several rows have it.

    Its location is the last rule that sets one of these settings.
    """
    setting = [(index, rule) for index, rule in enumerate(workload.performance.rules) if rule.sets_trainer]
    clusters = sorted({_OTHER_KIND, *(name for _, rule in setting for name in rule.cluster_kinds)})
    compared, told = set(), set()
    gpus = _known_gpu_types() or {}
    for row in rows:
        of_row = [(index, rule) for index, rule in setting if rule.holds_for_row(row)]
        for mode, cluster in itertools.product(Mode, clusters):
            applied = {index: rule for index, rule in of_row if rule.holds_for_job(mode, cluster)}
            kind = (row.dtype, row.gpu_type, row.parallelism.tensor == 1, *applied)
            if kind in compared:  # its settings are those of an earlier row
                continue
            compared.add(kind)
            settings = apply_rules(row.dtype, applied.values()).trainer
            found = (*contradictions(row, settings), *_unknown_scaling(row, settings, gpus.get(row.gpu_type)))
            for names, problem in found:
                if problem not in told:
                    told.add(problem)
                    message = f"{row.name} in {row.dtype} on {row.gpu_type}, {mode.value}: {problem}"
                    yield Mistake(message, ("performance", *_location_of_setting(names, applied)))


def _unknown_scaling(
    row: Row, settings: TrainerSettings, gpu: GpuType | None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield an FP8 recipe whose number format the GPU type does not list, such as MXFP8 on an H100."""
    dtype = next((name for name, recipe in FP8_RECIPES.items() if recipe == settings.fp8_recipe), None)
    if row.dtype == "fp8" and gpu is not None and dtype is not None and gpu.find_peak(dtype) is None:
        yield (
            ("fp8_recipe",),
            f"{row.gpu_type} has no {settings.fp8_recipe}: config/gpus.yaml lists no {dtype} for it",
        )


def _location_of_setting(names: Collection[str], rules: Mapping[int, Rule]) -> Location:
    """Return the location of the last rule with one of these settings; empty if none has them."""
    for index, rule in reversed([*rules.items()]):
        set_here = [name for name in names if name in rule.trainer.model_fields_set]
        if set_here:
            return ("rules", index, "trainer", set_here[0])
    return ()


_OTHER_KIND = ""
"""Stands for the kinds of clusters that no rule names."""


def _check_launch_rules(workload: Workload) -> Iterator[Mistake]:
    """Yield a mistake for launch settings that steptime sets itself, or the training program does not read.

    A rule may set `trainer` only for sizes that steptime's own trainer trains, and `arguments` only for sizes
    that Megatron-Bridge's script trains (`NamedRecipe`).
    """
    named = {name: size.model for name, size in workload.sizes.items() if isinstance(size.model, NamedRecipe)}
    for index, rule in enumerate(workload.performance.rules):
        location, sizes = ("performance", "rules", index), rule.sizes or tuple(workload.sizes)
        if rule.sets_trainer and not named.keys().isdisjoint(sizes):
            yield Mistake(
                "is for steptime's own trainer, which does not train all sizes of this rule: leave it out, "
                "or limit the rule to sizes that are not recipes of Megatron-Bridge",
                (*location, "trainer"),
            )
        if rule.arguments and not named.keys() >= {*sizes}:
            yield Mistake(
                "are for Megatron-Bridge's script, which does not train all sizes of this rule: leave them "
                "out, or limit the rule to sizes that are recipes of Megatron-Bridge",
                (*location, "arguments"),
            )
        launches = [model.launch for model in named.values()]
        for name in sorted({name for launch in launches for name in find_repeated(rule.arguments, launch)}):
            yield Mistake(
                "is already set by steptime for each run: leave it out", (*location, "arguments", name)
            )


def _check_stages_of_named(workload: Workload) -> Iterator[Mistake]:
    """Check that no layers of stages are given for recipes that Megatron-Bridge defines."""
    for located in _rules(workload):
        if isinstance(workload.sizes[located.size].model, NamedRecipe):
            for field in _layers_of_outer_stages(located.rule.parallelism):
                yield Mistake(
                    "is set by the Megatron-Bridge recipe that this file names: leave it out",
                    (*located.location, "parallelism", field),
                )


def _check_launch_images(workload: Workload) -> Iterator[Mistake]:
    """Check that the launch of each Megatron-Bridge recipe is for the images in which its rows run."""
    told = set()
    for location, size, rule in _rules(workload):
        model = workload.sizes[size].model
        if not isinstance(model, NamedRecipe):
            continue
        for gpu_type in rule.gpu_types:
            platform = workload.gpu_types.get(gpu_type)
            problem = None if platform is None else find_image_mistake(model.launch, platform.image)
            if problem is not None and (problem, size) not in told:
                told.add((problem, size))
                yield Mistake(problem, location)


_CHECKS = (
    *(_check_formula, _check_defaults, _check_names, _check_heads, _check_experts, _check_proxies),
    *(_check_layers, _check_hardware, _check_scales, _check_repeated, _check_checkpoints),
    *(_check_performance, _check_launch_rules, _check_stages_of_named, _check_launch_images),
)
