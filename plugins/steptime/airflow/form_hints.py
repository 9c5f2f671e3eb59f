"""What the trigger form shows beside a field: what its default comes to, scales, examples that can be run."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from steptime.errors import UserError
from steptime.recipes.notation import format_time_limit
from steptime.recipes.options import declaration
from steptime.recipes.planning import Plan, plan
from steptime.recipes.request import PlanRequest, option_fields
from steptime.recipes.selection import readable_clusters, select
from steptime.recipes.workload_file import PROXY_SUFFIX, Workload


class Hints:
    """What the form of a workload shows of the fields of a request."""

    def __init__(self, workload: Workload, begins_with: Mapping[str, Any]) -> None:
        """`begins_with` are the values of the form's fields before anybody has typed."""
        self._workload = workload
        self._defaults = _defaults(workload)
        self._planned = _planned_examples(workload, begins_with)

    def default(self, name: str) -> str | None:
        """Return what an empty field comes to, and for what if it depends; None if its description has it."""
        return self._defaults.get(name)

    def examples(self, name: str, field: Mapping[str, Any]) -> list[Any]:
        """Return what can be typed into a field."""
        of_request = list(field.get("examples", ()))
        if not of_request and any(variant["type"] == "boolean" for variant in field.get("anyOf", ())):
            of_request = ["on", "off"]
        return self._planned.get(name, of_request)

    def suggested(self, name: str, field: Mapping[str, Any]) -> list[Any]:
        """Return a field's examples, if they can be run with everything else as the form begins."""
        return [] if declaration(option_fields()[name]).needs else self.examples(name, field)

    def description(self, name: str, field: Mapping[str, Any], *, lists_choices: bool) -> str:
        """Return the form's text below a field."""
        sentences = [str(field["description"])]
        if name == "gpus":
            sentences.append(f"Scales are: {_scales(self._workload)}.")
        if lists_choices:
            return " ".join(sentences)
        if name in self._defaults:
            sentences.append(f"Default: {self._defaults[name]}.")
        if some := self.examples(name, field):
            as_typed = (example if isinstance(example, str) else json.dumps(example) for example in some)
            condition = declaration(option_fields()[name]).needs
            beginning = "For example" if condition is None else f"{condition}, for example"
            sentences.append(f"{beginning}: {', '.join(as_typed)}.")
        return " ".join(sentences)


def _defaults(workload: Workload) -> dict[str, str]:
    """What an empty form comes to, by the names of a request's fields."""
    by_size: dict[str, Callable[[str], object]] = {
        "dtype": lambda size: _dtype(workload, size),
        "max_steps": lambda size: workload.steps_of(size).max_steps,
        "window": lambda size: workload.steps_of(size).window_of(workload.steps_of(size).max_steps),
        "time_limit": lambda size: " or ".join(dict.fromkeys(workload.steps_of(size).time_limit.values())),
    }
    found = {
        name: _grouped((size, value(size)) for size in workload.size_names())
        for name, value in by_size.items()
    }
    found["size"] = _grouped((gpu_type, _size(workload, gpu_type)) for gpu_type in workload.gpu_types)
    found["gpu_type"] = _grouped((name, cluster.gpu_type) for name, cluster in readable_clusters().items())
    if workload.profile is not None:
        found["profile_start"] = str(workload.profile.first_step)
        found["profile_stop"] = str(workload.profile.last_step)
        found["profile_ranks"] = _listed(workload.profile.ranks)
    return found


def _planned_examples(workload: Workload, begins_with: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Examples of fields that depend on the workload: what the form as it begins comes to.

    If its cluster has no GPU that the workload runs on, they are for the workload's first type of GPU.
    """
    asked = {**begins_with, "workload": workload.workload}
    try:
        planned = _first_plan(asked, {**asked, "gpu_type": next(iter(workload.gpu_types))})
    except UserError:  # as of the default cluster's file: the first task refuses it
        return {}
    run, counts = planned.runs[0], [run.recipe.gpus for run in planned.runs]
    return {
        "gpus": [str(planned.request.gpus)] + [f"{counts[0]}-{counts[-1]}"] * (counts[-1] > counts[0]),
        "tensor_parallel": [run.recipe.parallelism.tensor],
        "max_steps": [run.max_steps],
        "window": [str(run.window)],
        "time_limit": [format_time_limit(run.time_limit_s)],
    }


def _first_plan(asked: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Plan:
    """The plan of the first of two requests that has one. Raises UserError."""
    try:
        return plan(PlanRequest(**asked))
    except UserError:
        return plan(PlanRequest(**otherwise))


def _scales(workload: Workload) -> str:
    """The GPU counts of each size, with those that are run if none is named."""
    return "; ".join(
        f"{size} on {', '.join(gpu_types)}: {_listed(counts)} (by default {_listed(preferred)})"
        for size in workload.size_names()
        for gpu_types, counts, preferred in _scales_of(workload, size)
    )


def _size(workload: Workload, gpu_type: str) -> object:
    try:
        return select(PlanRequest(workload=workload.workload, gpu_type=gpu_type)).size_name
    except UserError:
        return None


def _dtype(workload: Workload, size: str) -> str:
    offered = [dtype for rule in workload.rules_of(size) for dtype in rule.dtypes]
    return workload.defaults.dtype if workload.defaults.dtype in offered else offered[0]


def _scales_of(workload: Workload, size: str) -> Iterable[tuple[list[str], tuple[int, ...], tuple[int, ...]]]:
    """Of a size: GPU types that have the same counts, these counts, and those that are the default."""
    counts: dict[tuple[int, ...], list[str]] = {}
    rules = workload.rules_of(size)
    for gpu_type in dict.fromkeys(kind for rule in rules for kind in rule.gpu_types):
        of_type = {gpus for rule in rules if gpu_type in rule.gpu_types for gpus in rule.gpus}
        counts.setdefault(tuple(sorted(of_type)), []).append(gpu_type)
    preferred = workload.sizes[size.removesuffix(PROXY_SUFFIX)].default_gpus
    for gpus, gpu_types in counts.items():
        yield gpu_types, gpus, preferred or gpus[:1]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _grouped(values: Iterable[tuple[str, object]]) -> str:
    """`20 for tiny; 50 for 8b, 70b`; one value alone if it holds for all."""
    groups: dict[str, list[str]] = {}
    for owner, value in values:
        if value is not None:
            groups.setdefault(str(value), []).append(owner)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{value} for {', '.join(owners)}" for value, owners in groups.items())
