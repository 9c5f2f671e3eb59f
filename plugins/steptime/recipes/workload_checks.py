"""Check that the parts of a workload file fit together.

Each part is first checked on its own, by its model. The checks here use only parts that could be read, so
that one mistake is not reported twice. Locations of mistakes begin at the top of the file.
"""

import itertools
import string
from collections.abc import Iterator

from pydantic import RootModel

from steptime.errors import UserError, unknown_value
from steptime.recipes.config_files import Document, Location, Mistake
from steptime.recipes.flops import formula_names, load_formula, misfit
from steptime.recipes.gpus import GpuType, gpu_types
from steptime.recipes.model_checks import (
    MODEL_CHECKS,
    NAMED_CHECKS,
    Placed,
    all_read,
    find_model,
    find_named_recipe,
    find_steps,
    is_read,
    iterate_rules,
    list_keys,
)
from steptime.recipes.performance_rules import PerformanceRules, Row
from steptime.recipes.workload_file import (
    EXPERIMENT_NAME,
    EXPERIMENT_PLACEHOLDERS,
    PROXY_SUFFIX,
    Configuration,
    Defaults,
    GpuCounts,
    Profile,
    Scaling,
    Steps,
)


def find_mistakes(document: Document) -> list[Mistake]:
    """Return the mistakes in a workload file that show only when its parts are compared with each other."""
    return [problem for check in _CHECKS for problem in check(document)]


class _Counts(RootModel[GpuCounts]):
    pass


def _experiment(document: Document) -> Iterator[Mistake]:
    template = document.value("experiment")
    if not isinstance(template, str):
        return
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        message = f"'{template}' is no template: every {{ needs its }}, as in {{size}}"
        yield Mistake(message, ("experiment",))
        return
    for _, placeholder, form, conversion in parts:
        if placeholder is not None and placeholder not in EXPERIMENT_PLACEHOLDERS:
            yield Mistake.of(unknown_value("placeholder", placeholder, EXPERIMENT_PLACEHOLDERS), "experiment")
        elif form or conversion:
            message = f"'{placeholder}' cannot be formatted further: write {{{placeholder}}}"
            yield Mistake(message, ("experiment",))
    named = "".join(text + "x" * (placeholder is not None) for text, placeholder, _, _ in parts)
    if not EXPERIMENT_NAME.fullmatch(named):
        message = (
            f"'{template}' cannot name jobs: use only letters, digits, '.', '_', '-' and placeholders, "
            "begin with a letter, a digit or a placeholder, at most 150 in all"
        )
        yield Mistake(message, ("experiment",))


def _formula(document: Document) -> Iterator[Mistake]:
    """Check that the formula covers the model of each size."""
    name = document.value("flops_formula")
    if not isinstance(name, str):
        return
    try:
        load_formula(name)
    except UserError as error:
        yield Mistake.of(error, "flops_formula")
        return
    models = {
        size: find_model(document, size) or find_named_recipe(document, size)
        for size in list_keys(document, "sizes")
    }
    read = {size: model for size, model in models.items() if model is not None}
    sizes: dict[str, list[str]] = {}
    for size, model in read.items():
        if (problem := misfit(name, model)) is not None:
            sizes.setdefault(problem, []).append(size)
    for problem, of_sizes in sizes.items():
        wrong = [read[size] for size in of_sizes]
        fitting = [other for other in formula_names() if not any(misfit(other, model) for model in wrong)]
        yield Mistake(
            f"formula '{name}' {problem} ({', '.join(of_sizes)}): formulas that fit "
            f"are {', '.join(fitting) or 'none'}",
            ("flops_formula",),
        )


def _defaults(document: Document) -> Iterator[Mistake]:
    sizes = list_keys(document, "sizes")
    defaults, _ = document.part(Defaults, "defaults")
    if defaults is not None and is_read(document, "sizes") and defaults.size not in sizes:
        yield Mistake.of(unknown_value("size", defaults.size, sizes), "defaults", "size")
    for size in filter(lambda size: all_read(document, size), sizes):
        rules = [placed.rule for placed in iterate_rules(document) if placed.size == size]
        dtypes = dict.fromkeys(dtype for rule in rules for dtype in rule.dtypes)
        if defaults is not None and size == defaults.size and defaults.dtype not in dtypes:
            error = unknown_value("dtype", defaults.dtype, dtypes, of=f"the default size {size}")
            yield Mistake.of(error, "defaults", "dtype")
        location = ("sizes", size, "default_gpus")
        counts, _ = document.part(_Counts, *location)
        scales = sorted({gpus for rule in rules if not rule.is_proxy for gpus in rule.gpus})
        for index, gpus in enumerate(counts.root if counts is not None else ()):
            if gpus not in scales:
                yield Mistake.of(unknown_value("GPU count", gpus, scales, of=size), *location, index)


def _windows(document: Document) -> Iterator[Mistake]:
    places: list[Location] = [
        ("steps",),
        *(("sizes", size, "steps") for size in list_keys(document, "sizes")),
    ]
    for place in places:
        steps, _ = document.part(Steps, *place)
        if steps is not None and steps.choose_window(steps.max_steps).last >= steps.max_steps:
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
    """Check that rules name GPU types of the file and of config/gpus.yaml, with a peak for each dtype."""
    declared, peaks = list_keys(document, "gpu_types"), _peaks()
    all_declared = is_read(document, "gpu_types")
    for gpu_type in declared:
        if peaks is not None and gpu_type not in peaks:
            error = unknown_value("GPU type", gpu_type, peaks, of="config/gpus.yaml")
            yield Mistake.of(error, "gpu_types", gpu_type)
    for placed in iterate_rules(document):
        for index, gpu_type in enumerate(placed.rule.gpu_types):
            if all_declared and gpu_type not in declared:
                error = unknown_value("GPU type", gpu_type, declared)
                yield Mistake.of(error, *placed.location, "gpu_types", index)
            described = (peaks or {}).get(gpu_type)
            for number, dtype in enumerate(placed.rule.dtypes if described is not None else ()):
                if described is not None and described.find_peak(dtype) is None:
                    peaks_of = ", ".join(described.peak_tflops)
                    yield Mistake(
                        f"dtype '{dtype}' has no peak on {gpu_type} in config/gpus.yaml, which has "
                        f"{peaks_of}: add it there with its source, or correct it here",
                        (*placed.location, "dtypes", number),
                    )


def _peaks() -> dict[str, GpuType | None] | None:
    """Return the GPU types; None if their file cannot be read, which is reported elsewhere."""
    try:
        return gpu_types()
    except UserError:
        return None


def _scales(document: Document) -> Iterator[Mistake]:
    """Check that parallelism and batch sizes fit each GPU count, and that each scaling has a time limit."""
    for location, size, rule in iterate_rules(document):
        steps = find_steps(document, size)
        for index, gpus in enumerate(rule.gpus):
            try:
                rule.parallelism_on(gpus)
            except ValueError as error:
                yield Mistake.of(error, *location, "gpus", index)
        for scaling in rule.global_batch_size:
            place = (*location, "global_batch_size", scaling)
            yield from itertools.islice(_uneven_batches(rule, scaling, place), 1)
            if steps is not None and scaling not in steps.time_limit:
                problem = f"time_limit in the steps of this size has no entry for {scaling} scaling"
                yield Mistake(f"{problem}: add it, or leave this out", place)


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
                f"{batch} on {gpus} GPUs is not a multiple of "
                f"micro batch size {rule.micro_batch_size} × data parallel {data}",
                place,
            )


def _cells(document: Document) -> Iterator[Mistake]:
    """Check that no two rules are for the same size, GPU type, dtype, GPU count and scaling.

    The later rule would never be used.
    """
    first: dict[tuple[object, ...], Placed] = {}
    reported = set()
    for placed in iterate_rules(document):
        rule = placed.rule
        cells = itertools.product(rule.gpus, rule.gpu_types, rule.dtypes, rule.global_batch_size)
        for gpus, gpu_type, dtype, scaling in cells:
            other = first.setdefault((placed.size, placed.kind, gpus, gpu_type, dtype, scaling), placed)
            if other is not placed and (other.location, placed.location) not in reported:
                reported.add((other.location, placed.location))
                yield Mistake(
                    f"{gpus} {gpu_type} in {dtype}, {scaling} scaling, is already in the rule {other}: "
                    "remove it from one of the two",
                    placed.location,
                )


def _performance(document: Document) -> Iterator[Mistake]:
    """Check the rules' sources and names, and their settings for each row."""
    rules, _ = document.part(PerformanceRules, "performance")
    if rules is None:
        return
    sizes, rows = list_keys(document, "sizes"), list(_rows(document))
    known = [row for row in rows if row is not None]
    all_known = (
        is_read(document, "sizes")
        and len(known) == len(rows)
        and all(all_read(document, size) for size in sizes)
    )
    dtypes = {row.dtype: None for row in known} if all_known else None
    gpu_types = list_keys(document, "gpu_types") if is_read(document, "gpu_types") else None
    misnamed = [*rules.unknown_names(gpu_types, sizes if is_read(document, "sizes") else None, dtypes)]
    unused = rules.for_no_row(known, misnamed) if all_known else ()
    for problem in (*rules.wrong_sources(), *misnamed, *rules.misfits(known, misnamed), *unused):
        yield Mistake(problem.message, ("performance", *problem.location))


def _rows(document: Document) -> Iterator[Row | None]:
    """Yield the rows of all readable configurations; None for one whose GPU count is invalid."""
    for placed in iterate_rules(document):
        rule, name = placed.rule, placed.size + PROXY_SUFFIX * (placed.kind == "proxies")
        for gpus, gpu_type, dtype in itertools.product(rule.gpus, rule.gpu_types, rule.dtypes):
            try:
                yield Row(name, placed.size, dtype, gpu_type, rule.parallelism_on(gpus))
            except ValueError:
                yield None


def _checkpoints(document: Document) -> Iterator[Mistake]:
    """Check that checkpoint limits name the file's types of GPU."""
    if not is_read(document, "gpu_types"):
        return
    types = list_keys(document, "gpu_types")
    for size in list_keys(document, "sizes"):
        for field in ("minimum_gpus_to_save", "minimum_gpus_to_load"):
            location = ("sizes", size, "checkpoint", field)
            limits = document.value(*location)
            for gpu_type in limits if isinstance(limits, dict) else ():
                if gpu_type not in types:
                    yield Mistake.of(unknown_value("GPU type", gpu_type, types), *location, gpu_type)


_CHECKS = (
    *(_experiment, _formula, _defaults, _windows, *MODEL_CHECKS, *NAMED_CHECKS),
    *(_hardware, _scales, _cells, _performance, _checkpoints),
)
