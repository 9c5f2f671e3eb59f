"""From what somebody asks for to the runs that would be started. Nothing is submitted here.

Every value is checked against the workload's file, and one that does not fit is answered with those that do.
Only the scales of the documents (and of the CPU sizes) can be asked for: at any other there is nothing to
compare with. Another scale is a number more in the workload's file, see docs/adding-a-workload.md.
"""

import re
from collections.abc import Mapping, Sequence

from steptime.errors import UserError, shown
from steptime.frozen import Frozen
from steptime.recipes.choice import Choice, choose, recipes_of
from steptime.recipes.models import Mode, Recipe, Run, Window
from steptime.recipes.notation import parse_time_limit, parse_window
from steptime.recipes.request import PlanRequest, parse_request
from steptime.recipes.workloads import Steps

__all__ = ["CheckpointPair", "Plan", "PlanRequest", "parse_request", "plan", "require_runnable"]

_SUFFIXES = {
    Mode.PERFORMANCE: "",
    Mode.CHECKPOINT_SAVE: "_checkpoint_save",
    Mode.CHECKPOINT_LOAD: "_checkpoint_load",
    Mode.PROFILE: "_nsys",
    Mode.NCCL_TRACE: "_nccltrace",
}
"""What a mode adds to the experiment's name; the last two are the documents'."""

_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY)$", re.IGNORECASE)


class CheckpointPair(Frozen):
    """A job that saves a checkpoint at its end, and the job that loads it and trains one step more."""

    save: Run
    load: Run


class Plan(Frozen):
    """The runs that a request comes to."""

    request: PlanRequest
    """With every default filled in."""
    runs: tuple[Run, ...]
    """The performance runs, by GPU count and repeat."""
    checkpoint_pairs: tuple[CheckpointPair, ...]
    gpu_hours_max: float
    """GPUs × time limit, over all runs: what it costs if every job runs into its limit."""
    cluster_gpu_type: str

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """Performance runs, then each pair's saving and loading one."""
        return self.runs + tuple(run for pair in self.checkpoint_pairs for run in (pair.save, pair.load))


def plan(request: PlanRequest) -> Plan:
    """The runs of `request`. Raises UserError for a value that no recipe has, listing those that there are.

    A plan may be for another type of GPU than its cluster has, to be read; `require_runnable` refuses that.
    """
    choice = choose(request)
    recipes = recipes_of(choice, request)
    steps = choice.workload.steps_of(choice.size_name)
    max_steps = request.max_steps or steps.max_steps
    window = _window(request, steps, max_steps)
    time_limit = steps.time_limit[choice.scaling] if request.time_limit is None else request.time_limit
    time_limit_s = parse_time_limit(time_limit)
    _check_environment(request.environment)

    def run(recipe: Recipe, mode: Mode = Mode.PERFORMANCE, repeat: int = 1) -> Run:
        return Run(
            experiment=_experiment(choice, recipe) + _SUFFIXES[mode],
            recipe=recipe,
            mode=mode,
            max_steps=max_steps,
            window=window,
            time_limit_s=time_limit_s,
            cluster=request.cluster,
            repeat=repeat,
            environment=request.environment,
        )

    runs = tuple(run(recipe, repeat=number + 1) for recipe in recipes for number in range(request.repeats))
    pairs: tuple[CheckpointPair, ...] = ()
    if request.checkpoint:
        recipe = _checkpoint_recipe(choice, recipes)
        one_step_more = {
            "first_step": max_steps,
            "max_steps": max_steps + 1,
            "window": Window(first=max_steps, last=max_steps),
        }
        load = run(recipe, Mode.CHECKPOINT_LOAD).model_copy(update=one_step_more)
        pairs = (CheckpointPair(save=run(recipe, Mode.CHECKPOINT_SAVE), load=load),)
    gpus = sum(run.recipe.gpus for run in runs) + sum(2 * pair.save.recipe.gpus for pair in pairs)
    filled_in = {
        "workload": choice.workload.workload,
        "size": choice.size_name,
        "proxy": choice.proxy,
        "gpu_type": choice.gpu_type,
        "dtype": choice.dtype,
        "scaling": choice.scaling,
        "gpus": ",".join(str(recipe.gpus) for recipe in recipes),
        "max_steps": max_steps,
        "window": str(window),
        "time_limit": time_limit,
    }
    return Plan(
        request=request.model_copy(update=filled_in),
        runs=runs,
        checkpoint_pairs=pairs,
        gpu_hours_max=gpus * time_limit_s / 3600,
        cluster_gpu_type=choice.cluster_gpu_type,
    )


def require_runnable(planned: Plan) -> None:
    """Raise UserError where the plan's cluster does not have the plan's type of GPU."""
    gpu_type = planned.request.gpu_type
    if gpu_type != planned.cluster_gpu_type:
        raise UserError(
            f"cluster '{planned.request.cluster}' has {planned.cluster_gpu_type}, not {gpu_type}: "
            f"name a cluster that has it, or plan for {planned.cluster_gpu_type}."
        )


def _window(request: PlanRequest, steps: Steps, max_steps: int) -> Window:
    window = parse_window(request.window) if request.window is not None else steps.window_of(max_steps)
    if window.last >= max_steps:
        origin = "" if request.window is not None else " (the document's)"
        raise UserError(
            f"window {window}{origin} lies outside of a run of {max_steps} steps: "
            f"choose a window within 0:{max_steps - 1}, or more steps."
        )
    return window


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            raise UserError(
                f"environment: '{shown(name)}' is no name of a variable: letters, digits and _ only."
            )
        if _SECRET.search(name):
            raise UserError(
                f"environment: '{name}' looks like a secret, and a run's environment is recorded and shown: "
                "set it where the job runs."
            )
        if "\0" in value:
            raise UserError(f"environment: the value of '{name}' has a NUL character, which no variable can.")


def _checkpoint_recipe(choice: Choice, recipes: Sequence[Recipe]) -> Recipe:
    """The largest of the recipes at which saving and loading are known to work."""
    limits = choice.size.checkpoint
    if limits is None or choice.proxy:
        having = [name for name, size in choice.workload.sizes.items() if size.checkpoint]
        raise UserError(
            f"{choice} has no checkpointing; sizes of {choice.workload.workload} that have it: "
            f"{', '.join(having) or 'none'}."
        )
    save, load = (
        minimum.get(choice.gpu_type) for minimum in (limits.minimum_gpus_to_save, limits.minimum_gpus_to_load)
    )
    if save is None or load is None:
        tested = ", ".join(limits.minimum_gpus_to_load)
        raise UserError(f"checkpoints of {choice} are tested at no scale; GPU types that are: {tested}.")
    large_enough = [recipe for recipe in recipes if recipe.gpus >= max(save, load)]
    if not large_enough:
        larger = ", ".join(str(gpus) for gpus in choice.documented if gpus >= max(save, load))
        raise UserError(
            f"checkpoints of {choice} are tested from {save} GPUs on for saving and from {load} for loading: "
            f"ask for one of {larger} GPUs too."
        )
    return large_enough[-1]


def _experiment(choice: Choice, recipe: Recipe) -> str:
    """The name as the document writes it, plus what it has no word for (strong scaling, TP)."""
    template, parallelism = choice.workload.experiment, recipe.parallelism
    name = template.format(
        size=choice.size_name,
        dtype=recipe.dtype,
        gpus=recipe.gpus,
        tp=parallelism.tensor,
        pp=parallelism.pipeline,
        cp=parallelism.context,
        vp=parallelism.virtual_pipeline,
        mbs=recipe.micro_batch_size,
        gbs=recipe.global_batch_size,
    )
    if parallelism.tensor != choice.rule(recipe.gpus).parallelism.tensor and "{tp}" not in template:
        name += f"_tp{parallelism.tensor}"
    if recipe.scaling == "strong" and "{gbs}" not in template:
        name += "_strong"
    return name
