"""The params of the DAGs, made from the fields of `PlanRequest`, and the plan made from the params."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from airflow.sdk import Param
from pydantic import BaseModel

from steptime.airflow.form_hints import Hints
from steptime.clusters.config import list_clusters
from steptime.errors import UserError
from steptime.recipes.options import options_of_kinds
from steptime.recipes.planning import Plan, PlanRequest, parse_request, plan
from steptime.recipes.request import option_fields, sections
from steptime.recipes.selection import readable_clusters
from steptime.recipes.workload_file import Workload
from steptime.recipes.workloads import load_workload
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
"""Words of fields' names as titles have them."""


def dag_params(workload: Workload, defaults: Mapping[str, Any]) -> dict[str, Param]:
    """Return a typed param for each option; the DAG itself names the workload.

    `defaults` replaces defaults of the options. Combinations are checked by `plan_from_params`, in a task.
    """
    properties = _properties()
    defaults = {"cluster": _first_cluster(workload), **defaults}
    begins_with = {
        name: defaults.get(name, field.get_default(call_default_factory=True))
        for name, field in option_fields().items()
    }
    choices, hints = _choices(workload), Hints(workload, begins_with)
    return {
        name: Param(
            begins_with[name],
            title=option_fields()[name].title or _title(name),
            section=section,
            **_shown(name, properties[name], choices.get(name), hints),
        )
        for section, names in sections().items()
        for name in names
    }


@cache
def _properties() -> Mapping[str, Any]:
    """The JSON schema of each option; it is the same in each reading of a DAG's file."""
    models: tuple[type[BaseModel], ...] = (*options_of_kinds().values(), PlanRequest)
    return MappingProxyType(
        {name: schema for model in models for name, schema in model.model_json_schema()["properties"].items()}
    )


def plan_from_params(workload: str, params: Mapping[str, Any]) -> Plan:
    """Plan a DAG run's params. Raises UserError for what cannot be run, naming the choices.

    Airflow checks the type of each param; unknown names and values that do not go together are refused here.
    An empty one means its default.
    """
    asked_for = str(params.get("workload", workload))
    if load_workload(asked_for).workload != load_workload(workload).workload:
        raise UserError(
            f"this DAG runs {workload}, not {asked_for}: "
            f"start the DAG '{load_workload(asked_for).dag_id}', or leave out the workload."
        )
    planned = plan(parse_request({**params, "workload": workload}))
    check_plan(planned)
    return planned


def _first_cluster(workload: Workload) -> str:
    """The default cluster, or the first with GPUs of the workload if the default has none."""
    default, clusters = default_cluster(), readable_clusters()
    fitting = [name for name, cluster in clusters.items() if cluster.gpu_type in workload.gpu_types]
    return fitting[0] if fitting and default in clusters and default not in fitting else default


def _choices(workload: Workload) -> dict[str, tuple[str, ...]]:
    """The values that a workload's file has for the params that are choices."""
    rules = [rule for size in workload.sizes.values() for rule in (*size.configurations, *size.proxies)]
    return {
        "size": workload.size_names(),
        "dtype": _unique(dtype for rule in rules for dtype in rule.dtypes),
        "gpu_type": tuple(workload.gpu_types),
        "scaling": _unique(scaling for rule in rules for scaling in rule.global_batch_size),
        "cluster": list_clusters(),
    }


def _unique(values: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _shown(name: str, field: dict[str, Any], choices: tuple[str, ...] | None, hints: Hints) -> dict[str, Any]:
    """The form's field, what it takes, and its text."""
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
    """Schema keys that decide which field the form has; what may be empty has the type null, too."""
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
    words = " ".join(_WORDS.get(word, word) for word in name.split("_"))
    return words[0].upper() + words[1:]
