"""Check plans, sweeps and trials before staging: what passes can be started, as far as this can be known."""

from collections.abc import Callable, Iterable

from steptime.clusters.config import check_runs, load_cluster, load_clusters
from steptime.errors import BrokenFiles, UserError
from steptime.recipes.bridge_launch import bridge_commit
from steptime.recipes.config_files import load_each, raise_together
from steptime.recipes.flops import broken_formulas
from steptime.recipes.gpus import broken_gpu_types
from steptime.recipes.image import FIRST_FOR_BRIDGE, nemo_release
from steptime.recipes.models import Mode, NamedRecipe, Run
from steptime.recipes.planning import Plan, require_runnable
from steptime.recipes.published import list_references, load_reference
from steptime.recipes.spec import BRIDGE, FP8_RECIPES, GPU_FORMATS, check_trainable
from steptime.recipes.sweep_planning import SweepPlan, plan_sweep
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.recipes.trials import list_trials, load_trial, plan_trial
from steptime.recipes.workloads import load_workloads

_OTHER_PROGRAMS = ("pytorch", "titan", "jax", "maxtext", "tensorflow", "deepspeed")
"""Words in the names of images that are known not to have NeMo."""


def require_trainable(runs: Iterable[Run]) -> None:
    """Raise UserError for the first run that the trainer, or the software in its image, cannot train."""
    for run in runs:
        recipe = run.recipe
        if recipe.launcher is not None:
            if run.mode is not Mode.PERFORMANCE:
                raise UserError(
                    f"{recipe.workload} {recipe.size} is trained by its own program, which steptime only "
                    "times: leave out checkpoints, `profile` and `nccl_trace`."
                )
            continue
        if isinstance(recipe.model, NamedRecipe):
            bridge_commit(recipe)  # refuses an image that the workload's launch is not for
            continue
        name = (recipe.image or "").rpartition("/")[2].lower()
        if "nemo" not in name and any(other in name for other in _OTHER_PROGRAMS):
            raise UserError(
                f"{recipe.workload} {recipe.size} is trained by steptime's trainer, which needs NeMo, and "
                f"image {recipe.image} has another program: choose an image with NeMo, or, to run "
                "that program, set launcher in the workload's file (docs/reference/workloads.md)."
            )
        release = None if recipe.image is None else nemo_release(recipe.image)
        if recipe.backend == BRIDGE and release is not None and release < FIRST_FOR_BRIDGE:
            first = ".".join(f"{number:02}" for number in FIRST_FOR_BRIDGE)
            raise UserError(
                f"{recipe.workload} {recipe.size} is trained by Megatron-Bridge, for which image "
                f"{recipe.image} is too old: choose one from nemo:{first} on."
            )
        if (problem := _untrainable(run)) is not None:
            raise UserError(
                f"steptime can plan {recipe.workload} {recipe.size} and measure logs of it, but its trainer "
                f"cannot train it yet: {problem}"
            )
        if not recipe.has_nemo_1:
            continue
        if recipe.model.architecture != "nemotron4":
            raise UserError(
                f"{recipe.workload} {recipe.size} cannot be trained in image {recipe.image}: it has NeMo 1, "
                "which is set up for Nemotron4 only. Choose an image with NeMo 2."
            )
        if run.mode in (Mode.CHECKPOINT_SAVE, Mode.CHECKPOINT_LOAD):
            raise UserError(
                f"{recipe.workload} {recipe.size} cannot save or load checkpoints in image {recipe.image}, "
                "which has NeMo 1. Choose an image with NeMo 2, or leave the checkpoint out."
            )


def _untrainable(run: Run) -> str | None:
    """Return why the trainer cannot train a run; None if it can."""
    recipe, settings = run.recipe, run.performance.trainer
    formats, recipes = GPU_FORMATS[recipe.backend], FP8_RECIPES[recipe.backend]
    if recipe.dtype not in formats or settings.fp8_recipe not in (None, *recipes):
        scaling = "" if settings.fp8_recipe is None else f" ({settings.fp8_recipe} scaling)"
        return (
            f"with the backend {recipe.backend} it has {', '.join(formats)}, FP8 with "
            f"{', '.join(recipes[:-1])} or {recipes[-1]} scaling, and not {recipe.dtype}{scaling}."
        )
    try:
        check_trainable(run)
    except ValueError as error:
        return str(error)
    return None


def check_plan(planned: Plan, owner: str | None = None) -> None:
    """Raise UserError if the plan's cluster or the trainer cannot run the plan; budgets are not checked.

    `owner` is the owner of the DAG that would run it, whose permissions are checked; None outside of a DAG.
    """
    require_runnable(planned)
    require_trainable(planned.all_runs)
    check_runs(planned.all_runs, owner)


def checked_sweep(name: str, *, owner: str | None = None) -> SweepPlan:
    """Plan and check a sweep of `config/sweeps`. Raises UserError if it cannot be run.

    `owner` is the owner of the DAG that runs the sweep, whose permissions are checked; None outside of a DAG.
    """
    return plan_sweep(load_sweep(name), lambda planned: check_plan(planned, owner))


def checked_trial(
    name: str,
    *,
    owner: str | None = None,
    known_noise: Callable[[Run], float | None] = lambda _: None,
) -> SweepPlan:
    """Plan and check a trial of `config/trials`. Raises UserError if it cannot be run.

    `owner` is the owner of the DAG that runs the trial, whose permissions are checked; None outside of a DAG.
    `known_noise` is that of `plan_trial`.
    """
    return plan_trial(
        load_trial(name),
        lambda planned: check_plan(planned, owner),
        lambda run: load_cluster(run.cluster).can_repeat_nodes(run),
        known_noise,
    )


def planned_sweep(name: str) -> SweepPlan:
    """Plan a sweep of `config/sweeps`. Raises UserError for impossible runs.

    A sweep whose GPU type no cluster of `config/` has is planned, but not checked against a cluster.
    """
    sweep = load_sweep(name)
    return plan_sweep(sweep, check_plan if sweep.has_cluster else lambda _: None)


def check_config_files(*beside: BrokenFiles | None) -> None:
    """Check all files of `config/` that planning reads. Raises UserError with all mistakes.

    `beside`: mistakes in other files, which are told with these.
    """
    raise_together(
        broken_gpu_types(),
        broken_formulas(),
        load_clusters()[1],
        load_each(list_references(), load_reference)[1],
        load_workloads()[1],
        load_each(list_sweeps(), planned_sweep)[1],
        load_each(list_trials(), checked_trial)[1],
        *beside,
    )
