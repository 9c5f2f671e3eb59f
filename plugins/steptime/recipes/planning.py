"""Plan the runs of a request. Nothing is submitted here.

Every value is checked against the workload's file; the error for an invalid value lists the valid ones. Only
GPU counts in that file can be requested, because there is nothing to compare other runs with. To run at
another GPU count, add it to the file, see docs/reference/workloads.md.
"""

import re
from collections.abc import Sequence
from typing import Any

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.recipes.cluster_files import readable_clusters
from steptime.recipes.document_variables import check_document_variables
from steptime.recipes.environment import check_arguments, check_environment, find_secret
from steptime.recipes.flops import recipe_flops
from steptime.recipes.image import parse_image
from steptime.recipes.memory import require_memory
from steptime.recipes.models import Mode, OptionValue, Performance, Recipe, Run, Window
from steptime.recipes.modes import (
    Schedule,
    make_profile_window,
    make_schedule,
    recipe_of_pair,
    requested_mode,
    require_tested,
)
from steptime.recipes.notation import parse_time_limit
from steptime.recipes.options import ClusterOptions, declaration, options_of_kinds
from steptime.recipes.request import PlanRequest, marked, option_fields, parse_request
from steptime.recipes.selection import Selection, select, select_recipes
from steptime.recipes.tuning import tune, tuned_performance

__all__ = ["CheckpointPair", "Plan", "PlanRequest", "parse_request", "plan", "require_runnable"]

_SUFFIXES = {
    Mode.PERFORMANCE: "",
    Mode.CHECKPOINT_SAVE: "_checkpoint_save",
    Mode.CHECKPOINT_LOAD: "_checkpoint_load",
    Mode.PROFILE: "_nsys",
    Mode.NCCL_TRACE: "_nccltrace",
}
"""Suffix of the experiment's name by mode; the last two are those of the documents."""


class CheckpointPair(Frozen):
    """A job that saves a checkpoint at its end, and the job that loads it and trains one more step."""

    save: Run
    load: Run


class Plan(Frozen):
    """The planned runs of a request."""

    request: PlanRequest
    """The request with every default filled in."""
    runs: tuple[Run, ...]
    """The runs in the requested mode, by GPU count and repeat, without the checkpoint pairs."""
    checkpoint_pairs: tuple[CheckpointPair, ...]
    gpu_hours_max: float
    """GPU-hours if every job runs into its time limit."""
    cluster_gpu_type: str

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The runs in the requested mode, then the saving and loading run of each checkpoint pair."""
        return self.runs + tuple(run for pair in self.checkpoint_pairs for run in (pair.save, pair.load))


def plan(request: PlanRequest) -> Plan:
    """Plan the runs of a request. Raises UserError for an invalid value; the error lists the valid ones.

    The plan may be for a GPU type that its cluster does not have, so that people can read it;
    `require_runnable` refuses such a plan.
    """
    selection = select(request)
    rows = [tune(_with_image(recipe, request), request) for recipe in select_recipes(selection, request)]
    recipes = [recipe for recipe, _ in rows]
    tuned = {recipe.gpus: tuning for recipe, tuning in rows}
    mode = requested_mode(request)
    schedule = make_schedule(request, mode, selection, recipes)
    time_limit_s = parse_time_limit(schedule.time_limit)
    check_document_variables(request.environment, recipes)
    check_environment(request.environment)
    check_arguments(request.arguments)
    if secret := find_secret(request.image or ""):
        raise UserError(
            f"the image {secret}, and a run's image is recorded and shown: leave it out, and log in to the "
            "registry on the cluster."
        )
    _check_options(request, recipes)
    cluster_options = _cluster_options(request, selection, recipes)

    def run(recipe: Recipe, mode: Mode = mode, repeat: int = 1) -> Run:
        return Run(
            experiment=_experiment(selection, recipe, tuned[recipe.gpus]) + _SUFFIXES[mode],
            recipe=recipe,
            mode=mode,
            first_step=schedule.first_step,
            max_steps=schedule.max_steps,
            window=schedule.window,
            time_limit_s=time_limit_s,
            cluster=request.cluster,
            repeat=repeat,
            checkpoint_path=request.load_checkpoint,
            environment=request.environment,
            performance=tuned_performance(
                _performance(selection, recipe, mode, request), recipe, request, tuned[recipe.gpus]
            ),
            tuning=tuned[recipe.gpus],
            profile=make_profile_window(request, selection, recipe, schedule.max_steps)
            if mode is Mode.PROFILE
            else None,
            model_flops=recipe_flops(recipe).per_sample,
            cluster_options=cluster_options,
        )

    if mode in (Mode.CHECKPOINT_SAVE, Mode.CHECKPOINT_LOAD):
        require_tested(selection, mode, recipes)
    runs = tuple(run(recipe, repeat=number + 1) for recipe in recipes for number in range(request.repeats))
    pairs: tuple[CheckpointPair, ...] = ()
    if request.checkpoint:
        recipe, saved_at = recipe_of_pair(selection, recipes), schedule.max_steps
        one_step_more = {
            "first_step": saved_at,
            "max_steps": saved_at + 1,
            "window": Window(first=saved_at, last=saved_at),
            "keep_checkpoint": request.keep_checkpoint,
        }
        load = run(recipe, Mode.CHECKPOINT_LOAD).model_copy(update=one_step_more)
        pairs = (CheckpointPair(save=run(recipe, Mode.CHECKPOINT_SAVE), load=load),)
    if not request.ignore_memory:
        require_memory(runs)
    gpus = sum(run.recipe.gpus for run in runs) + sum(2 * pair.save.recipe.gpus for pair in pairs)
    return Plan(
        request=request.model_copy(update=_filled_in(selection, recipes, schedule, runs[0])),
        runs=runs,
        checkpoint_pairs=pairs,
        gpu_hours_max=gpus * time_limit_s / 3600,
        cluster_gpu_type=selection.cluster.gpu_type,
    )


def _with_image(recipe: Recipe, request: PlanRequest) -> Recipe:
    """Return the recipe with the requested image. Raises UserError if its name is invalid."""
    if request.image is None:
        return recipe
    parse_image(request.image)
    return recipe.model_copy(update={"image": request.image})


def _check_options(request: PlanRequest, recipes: Sequence[Recipe]) -> None:
    """Raise UserError for an option that does not fit a recipe."""
    for name, field in option_fields().items():
        value = getattr(request, name, None)
        if value is not None:
            for recipe in recipes:
                for check in declaration(field).checks:
                    check(name, value, recipe)


def _performance(selection: Selection, recipe: Recipe, mode: Mode, request: PlanRequest) -> Performance:
    """Return the workload's launch settings for a run, with the requested trainer settings."""
    performance = selection.workload.performance.of(recipe, selection.size_name, mode, selection.cluster.kind)
    settings = {}
    for name, field in option_fields().items():
        declared = declaration(field)
        if declared.sets_trainer and declared.only_in in (None, mode):
            value = getattr(request, name)
            if value is None and declared.default_of is not None:
                value = declared.default_of(recipe)
            if value is not None:
                settings[name] = value
    return performance.model_copy(update={"trainer": performance.trainer.model_copy(update=settings)})


def _cluster_options(
    request: PlanRequest, selection: Selection, recipes: Sequence[Recipe]
) -> dict[str, OptionValue]:
    """Return the options for the kind of cluster.

    Raises UserError for a value that it cannot have, and for an option of another kind.
    """
    kind, of_kinds = selection.cluster.kind, options_of_kinds()
    known = of_kinds.get(kind, ClusterOptions)
    for name in request.cluster_options:
        if name not in known.model_fields:
            other = next(another for another, options in of_kinds.items() if name in options.model_fields)
            called = of_kinds[other].clusters
            of_kind = (name for name, cluster in readable_clusters().items() if cluster.kind == other)
            listed = ", ".join(of_kind) or "none yet"
            raise UserError(
                f"{marked(name)} is for {called} clusters, and '{request.cluster}' is of kind {kind}: "
                f"leave it out, or name a {called} cluster ({listed})."
            )
    options = known.of(request.cluster_options)
    for recipe in recipes:
        options.check(recipe)
    return options.given


def _filled_in(
    selection: Selection, recipes: Sequence[Recipe], schedule: Schedule, run: Run
) -> dict[str, Any]:
    """Return the values of optional fields of the request, as the plan filled them in."""
    loads = schedule.mode is Mode.CHECKPOINT_LOAD
    filled_in = {
        "workload": selection.workload.workload,
        "size": selection.size_name,
        "proxy": selection.proxy,
        "gpu_type": selection.gpu_type,
        "dtype": selection.dtype,
        "scaling": selection.scaling,
        "gpus": ",".join(str(recipe.gpus) for recipe in recipes),
        "max_steps": schedule.first_step if loads else schedule.max_steps,
        "time_limit": schedule.time_limit,
    }
    if not loads:
        filled_in["window"] = str(schedule.window)
    if run.profile is not None:
        filled_in |= {"profile_start": run.profile.first_step, "profile_stop": run.profile.last_step}
    return filled_in


def require_runnable(planned: Plan) -> None:
    """Raise UserError if the cluster does not have the plan's type of GPU."""
    gpu_type = planned.request.gpu_type
    if gpu_type != planned.cluster_gpu_type:
        raise UserError(
            f"cluster '{planned.request.cluster}' has {planned.cluster_gpu_type}, not {gpu_type}: "
            f"name a cluster that has it, or plan for {planned.cluster_gpu_type}."
        )


def _experiment(selection: Selection, recipe: Recipe, tuning: str) -> str:
    """Return the run's experiment name: the workload's template, with suffixes for what it does not show.

    There are suffixes for tuning, for a tensor-parallel size other than the published one, and for strong
    scaling.
    """
    template, parallelism = selection.workload.experiment, recipe.parallelism
    name = template.format(
        size=selection.size_name,
        dtype=recipe.dtype,
        gpus=recipe.gpus,
        tp=parallelism.tensor,
        pp=parallelism.pipeline,
        cp=parallelism.context,
        vp=parallelism.virtual_pipeline,
        ep=parallelism.expert or 1,
        etp=parallelism.expert_tensor or parallelism.tensor,
        mbs=recipe.micro_batch_size,
        gbs=recipe.global_batch_size,
    )
    if tuning:
        name += f"_tuned_{re.sub('[^a-z0-9]+', '_', tuning.lower())[:60]}"
    elif parallelism.tensor != selection.rule(recipe.gpus).parallelism.tensor and "{tp}" not in template:
        name += f"_tp{parallelism.tensor}"
    if recipe.scaling == "strong" and "{gbs}" not in template:
        name += "_strong"
    return name
