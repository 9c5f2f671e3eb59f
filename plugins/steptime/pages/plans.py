"""What a request would run and cost, without starting it: for the command line and the page."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from steptime.clusters.config import check_permitted
from steptime.errors import UserError
from steptime.judging.expected_cost import Cost, Expected, expected_cost
from steptime.recipes import tables
from steptime.recipes.memory import estimate_memory
from steptime.recipes.models import Mode, Run
from steptime.recipes.nearest_rules import missing_rules
from steptime.recipes.notation import format_at_most, format_bytes, format_time_limit
from steptime.recipes.parameters import checkpoint_bytes
from steptime.recipes.planning import Plan, parse_request, plan, require_runnable
from steptime.recipes.request import DICTIONARIES
from steptime.settings import replaced_sentence
from steptime.store.run_queries import Store


def describe_plan(store: Store, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the runs that a request would start, with their cost; nothing is submitted.

    `options` maps names of options to texts, as in the query string of a URL. The result is `{"sentence",
    "cost", "refused", "runs": [{…}, …]}`; `refused` says why the request would start nothing, None if it
    would start. Raises UserError for options that cannot be planned.
    """
    planned = plan(parse_request({name: _value(name, text) for name, text in options.items()}))
    cost = expected_cost(planned.all_runs, store)
    refused = None
    try:
        require_runnable(planned)
        check_permitted(planned.all_runs)
    except UserError as error:
        refused = str(error)
    sentences = [summarize_plan(planned), *memory_sentences(planned), *missing_rules(planned)]
    if replaced := replaced_sentence():
        sentences.append(f"{replaced}.")
    return {
        "sentence": " ".join(sentences),
        "cost": cost.sentence,
        "refused": refused,
        "runs": plan_rows(planned, cost),
    }


def summarize_plan(planned: Plan) -> str:
    """Say how many jobs a plan has, what they cost at most, and that nothing was submitted."""
    request = planned.request
    note = f"{format_at_most(len(planned.all_runs), planned.gpu_hours_max)} on cluster '{request.cluster}'"
    if request.gpu_type != planned.cluster_gpu_type:
        note += f", which has no {request.gpu_type} and could not run them"
    return f"{note}. {_checkpoints(planned)}Nothing was submitted."


def _checkpoints(planned: Plan) -> str:
    """Return a sentence about the checkpoints that the runs save and their size; empty if they save none."""
    saving = [run for run in planned.all_runs if run.mode is Mode.CHECKPOINT_SAVE]
    if not saving or (size := checkpoint_bytes(saving[0].recipe.model)) is None:
        return ""
    if len(saving) == 1:
        return f"It saves a checkpoint of about {format_bytes(size)}. "
    return f"It saves {len(saving)} checkpoints of about {format_bytes(size)} each. "


def plan_rows(planned: Plan, cost: Cost) -> list[dict[str, Any]]:
    """Return a row for each run of a plan: its settings, limits and expected cost."""
    return [_row(run, expected) for run, expected in zip(planned.all_runs, cost.each, strict=True)]


def memory_sentences(planned: Plan) -> list[str]:
    """Return a sentence with the estimated memory of a GPU for each number of GPUs that has one."""
    estimates = {
        run.recipe.gpus: estimate_memory(run.recipe, run.performance.trainer) for run in planned.runs
    }
    return [
        f"{gpus} GPUs: {estimate.sentence}" for gpus, estimate in estimates.items() if estimate is not None
    ]


def _row(run: Run, expected: Expected) -> dict[str, Any]:
    memory = estimate_memory(run.recipe, run.performance.trainer)
    return {
        "label": run.label,
        "experiment": run.experiment,
        "mode": run.mode.value,
        "repeat": run.repeat,
        **tables.row(run.recipe),
        "steps": run.max_steps - run.first_step,
        "window": str(run.window),
        "time_limit": format_time_limit(run.time_limit_s),
        "gpu_hours_max": run.recipe.gpus * run.time_limit_s / 3600,
        "gpu_hours_expected": expected.gpu_hours,
        "seconds_expected": expected.seconds,
        "expected_from": expected.source.value,
        "gpu_memory_gb_estimated": None if memory is None else memory.total_gb,
    }


def _value(name: str, text: str) -> Any:
    if name in DICTIONARIES:
        with suppress(ValueError):  # else the option says what it takes
            return json.loads(text)
    return text
