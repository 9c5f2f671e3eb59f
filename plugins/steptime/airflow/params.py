"""Make DAG params from the options of a run, and a plan from the params."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from airflow.sdk import Param
from pydantic import BaseModel

from steptime import dag_ids
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.recipes.cluster_files import list_clusters, readable_clusters
from steptime.recipes.notation import format_time_limit
from steptime.recipes.options import declaration, options_of_kinds
from steptime.recipes.planning import Plan, PlanRequest, parse_request, plan
from steptime.recipes.request import option_fields, options_in_words, sections
from steptime.recipes.selection import select
from steptime.recipes.workload_file import PROXY_SUFFIX, Workload
from steptime.recipes.workloads import workload_name
from steptime.settings import default_cluster
from steptime.staging.checking import check_plan

_WORDS = {
    "async": "asynchronous",
    "comm": "communication",
    "cuda": "CUDA",
    "dtype": "number format (dtype)",
    "gpu": "GPU",
    "gpus": "GPUs",
    "nccl": "NCCL",
    "tp": "TP",
}
"""How words in the names of fields are written in titles."""
_OPEN = ("Where", "Model", "Scale")
"""Sections that the form shows first and unfolded: their params are declared without a section."""


def dag_params(workload: Workload, defaults: Mapping[str, Any]) -> dict[str, Param]:
    """Return a typed param for each option except the workload, which the DAG sets.

    `defaults` replaces defaults of the options. Combinations are checked by `plan_from_params`, in a task.
    """
    properties = _properties()
    defaults = {"cluster": _first_cluster(workload), **defaults}
    begins_with = {
        name: defaults.get(name, field.get_default(call_default_factory=True))
        for name, field in option_fields().items()
    }
    choices, hints = _choices(workload), _Hints(workload, begins_with)
    return {
        name: Param(
            begins_with[name],
            title=_title(name),
            **_shown(name, properties[name], choices.get(name), hints),
            **_placed(section),
        )
        for section, names in sections().items()
        for name in names
    }


def _placed(section: str) -> dict[str, Any]:
    return {} if section in _OPEN else {"section": section}


@cache
def _properties() -> Mapping[str, Any]:
    """Return the JSON schema of every option of a run by name, including those of all kinds of clusters."""
    models: list[type[BaseModel]] = [PlanRequest, *options_of_kinds().values()]
    models.reverse()  # of two kinds of cluster that share an option, the first describes it
    return MappingProxyType(
        {name: schema for model in models for name, schema in model.model_json_schema()["properties"].items()}
    )


def plan_from_params(workload: str, params: Mapping[str, Any], *, owner: str = "airflow") -> Plan:
    """Plan a DAG run's params. Raises UserError for an impossible request, listing the valid choices.

    Airflow checks the type of each param; unknown names and impossible combinations are refused here. An
    empty param has its default. `owner` is the DAG's owner, for clusters that limit what owners may do.
    """
    asked_for = str(params.get("workload", workload))
    if workload_name(asked_for) != workload_name(workload):
        raise UserError(
            f"this DAG runs {workload}, not {asked_for}: "
            f"start the DAG '{dag_ids.dag_id(workload_name(asked_for))}', or leave out the workload."
        )
    with options_in_words(field_of):
        request = parse_request({**params, "workload": workload})
        if request.cluster in list_clusters():
            options = {**load_cluster(request.cluster).options_of_owner(owner), **request.cluster_options}
            request = request.model_copy(update={"cluster_options": options})
        planned = plan(request)
        check_plan(planned, owner)
    return planned


def field_of(option: str) -> str:
    """Return the form's words for an option: its title, and its section if the form shows that folded."""
    section = declaration(option_fields()[option]).section
    return f"'{_title(option)}'" + ("" if section in _OPEN else f" (section {section})")


def _first_cluster(workload: Workload) -> str:
    """Return the default cluster; if it cannot run the workload, the first cluster that can, if any."""
    default, clusters = default_cluster(), readable_clusters()
    fitting = [name for name, cluster in clusters.items() if cluster.gpu_type in workload.gpu_types]
    return fitting[0] if fitting and default in clusters and default not in fitting else default


def _choices(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Return the values to choose from for some params, such as `size`, as the workload's file lists them."""
    rules = [rule for size in workload.sizes.values() for rule in (*size.configurations, *size.proxies)]
    return {
        "size": workload.size_names(),
        "dtype": _unique(dtype for rule in rules for dtype in rule.dtypes),
        "gpu_type": tuple(workload.gpu_types),
        "scaling": _unique(scaling for rule in rules for scaling in rule.global_batch_size),
    }


def _unique(values: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


class _Hints:
    """Hints in a workload's trigger form: defaults, GPU counts, and examples that can be run."""

    def __init__(self, workload: Workload, begins_with: Mapping[str, Any]) -> None:
        """`begins_with` has the values with which the form opens, by field."""
        self._workload = workload
        self._defaults = _defaults(workload)
        # No enum: a cluster whose file was written since the DAG was read can be named at once.
        fitting = [
            name for name, cluster in readable_clusters().items() if cluster.gpu_type in workload.gpu_types
        ]
        self._planned = {**_planned_examples(workload, begins_with), "cluster": fitting}

    def default(self, name: str) -> str | None:
        """Return the default of an empty field as text, such as `20 for tiny; 50 for 8b`; None if unknown."""
        return self._defaults.get(name)

    def examples(self, name: str, field: Mapping[str, Any]) -> list[Any]:
        """Return example values of a field."""
        of_request = list(field.get("examples", ()))
        if not of_request and any(variant["type"] == "boolean" for variant in field.get("anyOf", ())):
            of_request = ["on", "off"]
        return self._planned.get(name, of_request)

    def suggested(self, name: str, field: Mapping[str, Any]) -> list[Any]:
        """Return a field's examples if they work with the other fields' initial values."""
        return [] if declaration(option_fields()[name]).needs else self.examples(name, field)

    def description(self, name: str, field: Mapping[str, Any], *, lists_choices: bool) -> str:
        """Return the text below a field of the form.

        If the form `lists_choices` of the field, its default and its examples are left out.
        """
        sentences = [str(field["description"])]
        if name == "gpus":
            sentences.append(f"GPU counts are: {_scales(self._workload)}.")
        if lists_choices:
            return " ".join(sentences)
        if name in self._defaults:
            sentences.append(f"Default: {self._defaults[name]}.")
        if examples := self.examples(name, field):
            as_typed = (example if isinstance(example, str) else json.dumps(example) for example in examples)
            condition = declaration(option_fields()[name]).needs
            beginning = "For example" if condition is None else f"{condition}, for example"
            sentences.append(f"{beginning}: {', '.join(as_typed)}.")
        return " ".join(sentences)


def _shown(
    name: str, field: dict[str, Any], choices: tuple[str, ...] | None, hints: _Hints
) -> dict[str, Any]:
    """Return the JSON schema of a field of the form: its input, its limits and its description."""
    # Pydantic writes an optional field as anyOf [schema, null].
    variants = field.get("anyOf", [field])
    [typed] = [variant for variant in variants if variant["type"] != "null"]
    schema = {limit: typed[limit] for limit in ("minimum", "maximum") if limit in typed}
    schema |= {"pattern": field["pattern"]} if "pattern" in field else {}
    if choices is None and (suggested := hints.suggested(name, field)):
        schema["examples"] = suggested
    schema["description"] = hints.description(name, field, lists_choices=choices is not None)
    return schema | _kind(typed["type"], choices, hints.default(name), optional=len(variants) > 1)


def _kind(
    of_type: str, choices: tuple[str, ...] | None, default: str | None, *, optional: bool
) -> dict[str, Any]:
    """Return the schema keys that select the form's input; an optional field also has the type null."""
    if choices is not None and optional:
        return {
            "type": [of_type, "null"],
            "enum": [None, *choices],
            "values_display": {"null": f"by default {default}"},  # else it reads "null"
        }
    if choices is not None:
        return {"type": of_type, "enum": list(choices)}
    if of_type == "boolean" and optional:
        # A switch has two positions, and the form loses a truth value that was chosen from a list.
        return {"type": ["string", "boolean", "null"], "pattern": "^(on|off)$"}
    return {"type": [of_type, "null"]}


def _title(name: str) -> str:
    if title := option_fields()[name].title:
        return title
    words = " ".join(_WORDS.get(word, word) for word in name.split("_"))
    return words[0].upper() + words[1:]


def _defaults(workload: Workload) -> dict[str, str]:
    """Return what applies to each option that is left empty in the trigger form, in words."""
    by_size: dict[str, Callable[[str], object]] = {
        "dtype": lambda size: _dtype(workload, size),
        "max_steps": lambda size: workload.find_steps(size).max_steps,
        "window": lambda size: workload.find_steps(size).choose_window(workload.find_steps(size).max_steps),
        "time_limit": lambda size: " or ".join(dict.fromkeys(workload.find_steps(size).time_limit.values())),
    }
    defaults = {
        name: _grouped((size, value(size)) for size in workload.size_names())
        for name, value in by_size.items()
    }
    defaults["size"] = _grouped((gpu_type, _size(workload, gpu_type)) for gpu_type in workload.gpu_types)
    defaults["gpu_type"] = _grouped((name, cluster.gpu_type) for name, cluster in readable_clusters().items())
    if workload.profile is not None:
        defaults["profile_start"] = str(workload.profile.first_step)
        defaults["profile_stop"] = str(workload.profile.last_step)
        defaults["profile_ranks"] = _listed(workload.profile.ranks)
    return defaults


def _planned_examples(workload: Workload, begins_with: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return example values by field, taken from the plan that the form gives if nothing is changed in it.

    If the default cluster cannot run the workload, they are for the first type of GPU that can.
    """
    options = {**begins_with, "workload": workload.workload}
    try:
        planned = _first_plan(options, {**options, "gpu_type": next(iter(workload.gpu_types))})
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


def _first_plan(options: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Plan:
    """Plan `options`, or `otherwise` if that is impossible. Raises UserError if both are impossible."""
    try:
        return plan(PlanRequest(**options))
    except UserError:
        return plan(PlanRequest(**otherwise))


def _scales(workload: Workload) -> str:
    """Describe the GPU counts of each size, with those that run by default."""
    return "; ".join(
        f"{size} on {', '.join(gpu_types)}: {_listed(counts)} (by default {_listed(preferred)})"
        for size in workload.size_names()
        for gpu_types, counts, preferred in _group_scales(workload, size)
    )


def _size(workload: Workload, gpu_type: str) -> object:
    try:
        return select(PlanRequest(workload=workload.workload, gpu_type=gpu_type)).size_name
    except UserError:
        return None


def _dtype(workload: Workload, size: str) -> str:
    offered = [dtype for rule in workload.find_rules(size) for dtype in rule.dtypes]
    return workload.defaults.dtype if workload.defaults.dtype in offered else offered[0]


def _group_scales(
    workload: Workload, size: str
) -> Iterable[tuple[list[str], tuple[int, ...], tuple[int, ...]]]:
    """Yield groups of a size's GPU types with equal counts: the types, the counts, and the default counts."""
    counts: dict[tuple[int, ...], list[str]] = {}
    rules = workload.find_rules(size)
    for gpu_type in dict.fromkeys(kind for rule in rules for kind in rule.gpu_types):
        of_type = {gpus for rule in rules if gpu_type in rule.gpu_types for gpus in rule.gpus}
        counts.setdefault(tuple(sorted(of_type)), []).append(gpu_type)
    preferred = workload.sizes[size.removesuffix(PROXY_SUFFIX)].default_gpus
    for gpus, gpu_types in counts.items():
        yield gpu_types, gpus, preferred or gpus[:1]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _grouped(values: Iterable[tuple[str, object]]) -> str:
    """Format (name, value) pairs by value: `20 for tiny; 50 for 8b, 70b`; without names if all are equal."""
    groups: dict[str, list[str]] = {}
    for owner, value in values:
        if value is not None:
            groups.setdefault(str(value), []).append(owner)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{value} for {', '.join(owners)}" for value, owners in groups.items())
