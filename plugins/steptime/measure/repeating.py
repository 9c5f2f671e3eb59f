"""How to repeat one run of a plan: a request that plans this run alone, and the command for it."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from steptime.errors import UserError
from steptime.measure.record import describe_code
from steptime.recipes.models import Mode, Run
from steptime.recipes.notation import format_time_limit
from steptime.recipes.planning import plan
from steptime.recipes.request import DICTIONARIES, PlanRequest, option_fields, options_only_in, parse_request
from steptime.store.run_records import read_setup


def make_request(run: Run, asked_for: Mapping[str, Any]) -> PlanRequest:
    """Return a request from which only this run is planned.

    `asked_for` has the fields of the original request, which may have planned several runs. Values that were
    left to defaults are written out, as defaults may change: release, steps, time limit, …
    """
    loads = run.mode is Mode.CHECKPOINT_LOAD
    request = parse_request({**asked_for, "workload": run.recipe.workload})
    alone = {
        **run.recipe.identity,
        "gpus": str(run.recipe.gpus),
        "cluster": run.cluster,
        "environment": run.environment,
        "time_limit": format_time_limit(run.time_limit_s),
        "repeats": 1,
        # A load follows its save, which has the requested steps and window.
        "max_steps": run.first_step if loads else run.max_steps,
        "window": request.window if loads else str(run.window),
    }
    if run.mode not in (Mode.CHECKPOINT_SAVE, Mode.CHECKPOINT_LOAD):
        # Only the runs of a checkpoint pair have these options.
        alone |= {"checkpoint": False} | {
            name: option_fields()[name].get_default(call_default_factory=True)
            for name in options_only_in(Mode.CHECKPOINT_SAVE)
        }
    if run.profile is not None:
        alone |= {"profile_start": run.profile.first_step, "profile_stop": run.profile.last_step}
    return request.model_copy(update=alone)


def repeat_command(run: Run, request: PlanRequest) -> str | None:
    """Return the `steptime run` command that repeats a run; `request` plans this run alone.

    None if the current recipes would no longer give this run.
    """
    try:
        planned = plan(request).all_runs
    except UserError:
        return None
    return _command(request) if any(_same_work(run, other) for other in planned) else None


def repeat_command_of_record(record: Mapping[str, Any]) -> str | None:
    """Return the `steptime run` command that repeats the run of a record.

    None if the current recipes would no longer give this run, or if this version of steptime cannot read the
    record.
    """
    try:
        run = Run.model_validate(record["run"])
        return repeat_command(run, PlanRequest.model_validate(record["request"]))
    except (ValidationError, UserError):
        return None


def describe_repeat(record: str) -> dict[str, Any]:
    """Return how to repeat a run, from its record, and what would differ today.

    `command` is None if the current recipes would no longer give the same run. `made_with` has commit, hashes
    and image by name, as far as recorded. `differs` has a sentence for each of these that is known to differ
    today.
    """
    setup = read_setup(record)
    names = ("steptime", "commit", "image", "image digest", "venv lock", "trainer")
    now = _this_code()
    today = {"steptime": now["steptime_version"], "commit": now["git_commit"]}
    others = {name: value for name, value in today.items() if value and setup[name] != value}
    differs = [f"{name} {setup[name] or 'not recorded'} → {value}" for name, value in others.items()]
    if now["git_clean"] is False:
        differs.append("the code here has uncommitted changes")
    return {
        "command": repeat_command_of_record(json.loads(record)),
        "made_with": {name: setup[name] for name in names if setup[name]},
        "differs": differs,
    }


@cache
def _this_code() -> dict[str, Any]:
    """Return `describe_code`, cached: the code of this process does not change."""
    return describe_code()


def _same_work(run: Run, other: Run) -> bool:
    # The number of the repeat, the cell and where a checkpoint is, and for how long, do not affect the work.
    apart = {"repeat", "cell", "checkpoint_path", "keep_checkpoint"}
    return run.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _command(request: PlanRequest) -> str:
    words = ["steptime", "run", request.workload]
    values = request.model_dump()
    for name, field in option_fields().items():
        value = values.get(name)
        flag = f"--{name.replace('_', '-')}"
        if name in DICTIONARIES or value in (None, field.get_default(call_default_factory=True)):
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            words += [flag, str(value)]
    for name, flag in DICTIONARIES.items():
        words += [word for key, value in values[name].items() for word in (flag, f"{key}={value}")]
    return shlex.join(words)
