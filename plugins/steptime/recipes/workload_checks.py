"""What the parts of a workload's file must have to do with one another.

Each check takes the parts that it needs and that could be read: what is wrong within a part is found by
its model, and what would only follow from that is left out. Problems are located from the top of the file.
"""

import itertools
import string
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import RootModel

from steptime.errors import UserError, unknown_value
from steptime.plug_points import FLOPS_FORMULAS
from steptime.recipes.config_files import Document
from steptime.recipes.config_problems import Location, Mistake
from steptime.recipes.flops import load_formula
from steptime.recipes.gpus import GpuType, gpu_types
from steptime.recipes.models import ModelShape
from steptime.recipes.parameters import contradiction
from steptime.recipes.performance_rules import PerformanceRules, Row
from steptime.recipes.workload_file import (
    EXPERIMENT_PLACEHOLDERS,
    PROXY_SUFFIX,
    Configuration,
    Defaults,
    GpuCounts,
    Profile,
    Scaling,
    Steps,
)


def problems_of(document: Document) -> list[Mistake]:
    """What does not fit together in a workload's file."""
    if not all(isinstance(document.value(part), dict) for part in _NAMED):
        return []
    return [problem for check in _CHECKS for problem in check(document)]


_NAMED = ("gpu_types", "sizes")
"""Parts that all others name entries of: without one of them there is nothing to hold those to."""
_KINDS = ("configurations", "proxies")


class _Placed(NamedTuple):
    """A configuration or a proxy that could be read, and where it stands."""

    location: Location
    size: str
    rule: Configuration

    @property
    def kind(self) -> str:
        """Of `_KINDS`."""
        return str(self.location[2])

    def __str__(self) -> str:
        return ".".join(map(str, self.location))


class _Counts(RootModel[GpuCounts]):
    pass


def _keys(document: Document, part: str) -> tuple[str, ...]:
    """Of one of `_NAMED`."""
    return tuple(document.value(part))


def _rules(document: Document) -> Iterator[_Placed]:
    for size in _keys(document, "sizes"):
        for kind in _KINDS:
            listed = document.value("sizes", size, kind)
            for index in range(len(listed) if isinstance(listed, list) else 0):
                location = ("sizes", size, kind, index)
                rule, _ = document.part(Configuration, *location)
                if rule is not None:
                    yield _Placed(location, size, rule)


def _all_read(document: Document, size: str) -> bool:
    """Whether every configuration of a size and its proxy could be read: then what they lack is lacking."""
    configurations, proxies = (document.value("sizes", size, kind) for kind in _KINDS)
    if not isinstance(configurations, list) or not isinstance(proxies, list | None):
        return False
    return len(configurations) + len(proxies or ()) == sum(one.size == size for one in _rules(document))


def _model(document: Document, size: str) -> ModelShape | None:
    return document.part(ModelShape, "sizes", size, "model")[0]


def _steps(document: Document, size: str) -> Steps | None:
    """The steps of a size: its own, or those of the workload."""
    location = ("sizes", size, "steps")
    own = document.value(*location) is not None
    return document.part(Steps, *(location if own else ("steps",)))[0]


def _experiment(document: Document) -> Iterator[Mistake]:
    template = document.value("experiment")
    if not isinstance(template, str):
        return
    try:
        named = [placeholder for _, placeholder, _, _ in string.Formatter().parse(template)]
    except ValueError:
        message = f"'{template}' is no template: every {{ needs its }}, as in {{size}}"
        yield Mistake(message, ("experiment",))
        return
    for placeholder in named:
        if placeholder is not None and placeholder not in EXPERIMENT_PLACEHOLDERS:
            yield Mistake.of(unknown_value("placeholder", placeholder, EXPERIMENT_PLACEHOLDERS), "experiment")


def _formula(document: Document) -> Iterator[Mistake]:
    name = document.value("flops_formula")
    if not isinstance(name, str):
        return
    try:
        formula = load_formula(name)
    except UserError as error:
        yield Mistake.of(error, "flops_formula")
        return
    models = {size: _model(document, size) for size in _keys(document, "sizes")}
    others = {
        size: model.architecture
        for size, model in models.items()
        if model is not None and model.architecture not in formula.architectures
    }
    if others:
        fitting = [
            other
            for other in FLOPS_FORMULAS.names()
            if set(others.values()) <= set(load_formula(other).architectures)
        ]
        sizes, architectures = ", ".join(others), ", ".join(dict.fromkeys(others.values()))
        yield Mistake(
            f"formula '{name}' counts {', '.join(formula.architectures)} models, and {sizes} "
            f"{'is' if len(others) == 1 else 'are'} {architectures}: "
            f"formulas for that are {', '.join(fitting) or 'none'}",
            ("flops_formula",),
        )


def _names(document: Document) -> Iterator[Mistake]:
    """A size is the model that its name says: a stand-in would be published under that name."""
    for size in _keys(document, "sizes"):
        model = _model(document, size)
        problem = contradiction(size, model) if model is not None else None
        if problem is not None:
            yield Mistake(problem, ("sizes", size, "model"))


def _defaults(document: Document) -> Iterator[Mistake]:
    sizes = _keys(document, "sizes")
    defaults, _ = document.part(Defaults, "defaults")
    if defaults is not None and defaults.size not in sizes:
        yield Mistake.of(unknown_value("size", defaults.size, sizes), "defaults", "size")
    for size in filter(lambda size: _all_read(document, size), sizes):
        rules = [placed.rule for placed in _rules(document) if placed.size == size]
        dtypes = dict.fromkeys(dtype for rule in rules for dtype in rule.dtypes)
        if defaults is not None and size == defaults.size and defaults.dtype not in dtypes:
            error = unknown_value("dtype", defaults.dtype, dtypes, of=f"the default size {size}")
            yield Mistake.of(error, "defaults", "dtype")
        location = ("sizes", size, "default_gpus")
        counts, _ = document.part(_Counts, *location)
        scales = sorted({gpus for rule in rules if rule.num_layers is None for gpus in rule.gpus})
        for index, gpus in enumerate(counts.root if counts is not None else ()):
            if gpus not in scales:
                yield Mistake.of(unknown_value("GPU count", gpus, scales, of=size), *location, index)


def _windows(document: Document) -> Iterator[Mistake]:
    places: list[Location] = [("steps",), *(("sizes", size, "steps") for size in _keys(document, "sizes"))]
    for place in places:
        steps, _ = document.part(Steps, *place)
        if steps is not None and steps.window_of(steps.max_steps).last >= steps.max_steps:
            yield Mistake(
                f"{steps.window} lies outside of a run of {steps.max_steps} steps, "
                f"0 to {steps.max_steps - 1}",
                (*place, "window"),
            )
    profile, _ = document.part(Profile, "profile")
    if profile is None:
        return
    profiling = f"profiling from step {profile.first_step} to step {profile.last_step}"
    if profile.last_step <= profile.first_step:
        message = f"{profiling} ends before it has begun: let first_step be below last_step"
        yield Mistake(message, ("profile", "last_step"))
    elif profile.last_step > profile.max_steps:
        yield Mistake(
            f"{profiling} lies outside of a profiled run of {profile.max_steps} steps: "
            f"let it end by step {profile.max_steps}, or give more max_steps",
            ("profile", "last_step"),
        )


def _hardware(document: Document) -> Iterator[Mistake]:
    """Every GPU type is described where its GPUs per node and image are, and has a peak for each dtype."""
    declared, peaks = _keys(document, "gpu_types"), _peaks()
    for gpu_type in declared:
        if peaks is not None and gpu_type not in peaks:
            error = unknown_value("GPU type", gpu_type, peaks, of="config/gpus.yaml")
            yield Mistake.of(error, "gpu_types", gpu_type)
    for placed in _rules(document):
        for index, gpu_type in enumerate(placed.rule.gpu_types):
            if gpu_type not in declared:
                error = unknown_value("GPU type", gpu_type, declared)
                yield Mistake.of(error, *placed.location, "gpu_types", index)
            described = (peaks or {}).get(gpu_type)
            for number, dtype in enumerate(placed.rule.dtypes if described is not None else ()):
                if described is not None and dtype not in described.peak_tflops:
                    peaks_of = ", ".join(described.peak_tflops)
                    yield Mistake(
                        f"dtype '{dtype}' has no peak on {gpu_type} in config/gpus.yaml, which has "
                        f"{peaks_of}: add it there with its source, or correct it here",
                        (*placed.location, "dtypes", number),
                    )


def _peaks() -> dict[str, GpuType | None] | None:
    """The GPU types; None if their file cannot be read, which is its own problem."""
    try:
        return gpu_types()
    except UserError:
        return None


def _scales(document: Document) -> Iterator[Mistake]:
    """GPUs come out as ranks, batches as micro batches, and each kind of scaling has a time limit."""
    for location, size, rule in _rules(document):
        steps = _steps(document, size)
        for index, gpus in enumerate(rule.gpus):
            try:
                rule.parallelism_on(gpus)
            except ValueError as error:
                yield Mistake.of(error, *location, "gpus", index)
        for scaling in rule.global_batch_size:
            place = (*location, "global_batch_size", scaling)
            yield from itertools.islice(_uneven_batches(rule, scaling, place), 1)
            if steps is not None and scaling not in steps.time_limit:
                yield Mistake(f"the steps of this size have no time limit for {scaling} scaling", place)


def _uneven_batches(rule: Configuration, scaling: Scaling, place: Location) -> Iterator[Mistake]:
    for gpus in rule.gpus:
        try:
            batch = rule.global_batch_size[scaling].at(gpus)
        except ValueError as error:
            yield Mistake.of(error, *place)
            continue
        try:
            data = rule.parallelism_on(gpus).data
        except ValueError:
            continue  # a problem of the GPU count
        if batch % (rule.micro_batch_size * data):
            yield Mistake(
                f"{batch} on {gpus} GPUs is no multiple of "
                f"micro batch size {rule.micro_batch_size} × data parallel {data}",
                place,
            )


def _heads(document: Document) -> Iterator[Mistake]:
    for size in _keys(document, "sizes"):
        model = _model(document, size)
        if model is not None and model.num_attention_heads % model.num_query_groups:
            yield Mistake(
                f"{model.num_attention_heads} attention heads cannot be shared out to "
                f"{model.num_query_groups} query groups: give a number that divides them",
                ("sizes", size, "model", "num_query_groups"),
            )
    for location, size, rule in _rules(document):
        model = _model(document, size)
        asked = [((*location, "parallelism", "tensor"), rule.parallelism.tensor)]
        asked += [
            ((*location, "tensor_choices", index), tensor)
            for index, tensor in enumerate(rule.tensor_choices or ())
        ]
        for place, tensor in asked:
            if model is not None and model.num_attention_heads % tensor:
                yield Mistake(
                    f"{model.num_attention_heads} attention heads cannot be spread over tensor parallel "
                    f"{tensor}: give a number that divides them",
                    place,
                )


def _layers(document: Document) -> Iterator[Mistake]:
    for placed in _rules(document):
        rule, model = placed.rule, _model(document, placed.size)
        if placed.kind == "proxies" and rule.num_layers is None:
            yield Mistake("a proxy needs its num_layers", placed.location)
            continue
        layers = rule.num_layers or (model.num_layers if model is not None else None)
        stages = rule.parallelism.pipeline * (rule.parallelism.virtual_pipeline or 1)
        # Llama 405b counts embedding and loss as a layer each, so that 126 + 2 divide.
        if layers is not None and layers % stages and (layers + 2) % stages:
            message = f"{layers} layers cannot be spread over {stages} pipeline stages"
            yield Mistake(message, (*placed.location, "parallelism"))


def _cells(document: Document) -> Iterator[Mistake]:
    """No two rules are for one cell: the later one would never be taken."""
    first: dict[tuple[object, ...], _Placed] = {}
    reported = set()
    for placed in _rules(document):
        rule = placed.rule
        cells = itertools.product(rule.gpus, rule.gpu_types, rule.dtypes, rule.global_batch_size)
        for gpus, gpu_type, dtype, scaling in cells:
            other = first.setdefault((placed.size, placed.kind, gpus, gpu_type, dtype, scaling), placed)
            if other is not placed and (other.location, placed.location) not in reported:
                reported.add((other.location, placed.location))
                yield Mistake(
                    f"{gpus} {gpu_type} in {dtype}, {scaling} scaling, has a rule already, {other}: "
                    "take it out of one of the two",
                    placed.location,
                )


def _performance(document: Document) -> Iterator[Mistake]:
    """The rules' sources and names; if these are right, also what the rules come to for each row."""
    rules, _ = document.part(PerformanceRules, "performance")
    if rules is None:
        return
    sizes, rows = _keys(document, "sizes"), list(_rows(document))
    known = [row for row in rows if row is not None]
    all_known = len(known) == len(rows) and all(_all_read(document, size) for size in sizes)
    dtypes = {row.dtype: None for row in known} if all_known else None
    problems = list(rules.unknown_names(_keys(document, "gpu_types"), sizes, dtypes))
    if not problems:
        problems = [*rules.misfits(known), *(rules.for_no_row(known) if all_known else ())]
    for problem in (*rules.wrong_sources(), *problems):
        yield Mistake(problem.message, ("performance", *problem.location))


def _rows(document: Document) -> Iterator[Row | None]:
    """The rows of all configurations that could be read; None for one whose GPUs do not come out as ranks."""
    for placed in _rules(document):
        rule, name = placed.rule, placed.size + PROXY_SUFFIX * (placed.kind == "proxies")
        for gpus, gpu_type, dtype in itertools.product(rule.gpus, rule.gpu_types, rule.dtypes):
            try:
                yield Row(name, placed.size, dtype, gpu_type, rule.parallelism_on(gpus))
            except ValueError:
                yield None


_CHECKS = (
    *(_experiment, _formula, _names, _defaults, _windows),
    *(_hardware, _scales, _heads, _layers, _cells, _performance),
)
