"""The one check of a plan: what passes it can be started, as far as anybody knows before it is staged."""

from collections.abc import Iterable

from steptime.clusters.config import check_permitted, check_runs
from steptime.errors import UserError
from steptime.recipes.megatron_bridge import bridge_command
from steptime.recipes.models import Mode, ModelShape, NamedRecipe, Run
from steptime.recipes.planning import Plan, require_runnable
from steptime.recipes.spec import FP8_RECIPES, NUMBER_FORMATS


def require_trainable(runs: Iterable[Run]) -> None:
    """Raise UserError for the first run that the trainer, or what its image has, cannot train."""
    for run in runs:
        recipe = run.recipe
        if isinstance(recipe.model, NamedRecipe):
            bridge_command(run)  # refuses what the release in its image does not do
            continue
        if (problem := _untrainable(run, recipe.model)) is not None:
            raise UserError(
                f"{recipe.workload} {recipe.size} can be planned and measured, and not be trained yet: "
                f"{problem}"
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
                f"{recipe.workload} {recipe.size} saves and loads no checkpoint in image {recipe.image}, "
                "which has NeMo 1. Choose an image with NeMo 2, or leave the checkpoint out."
            )


def _untrainable(run: Run, model: ModelShape) -> str | None:
    """What of a run of a model the trainer does not do yet; None if nothing."""
    dtype, settings = run.recipe.dtype, run.performance.trainer
    if model.architecture == "gpt" and (problem := _unbuilt(run, model)) is not None:
        return problem
    if dtype not in NUMBER_FORMATS["cuda"] or settings.fp8_recipe not in (None, *FP8_RECIPES):
        scaling = "" if settings.fp8_recipe is None else f" ({settings.fp8_recipe} scaling)"
        return (
            f"the trainer has {', '.join(NUMBER_FORMATS['cuda'])}, FP8 with delayed or current scaling, "
            f"and not {dtype}{scaling}."
        )
    if settings.recompute_granularity is not None:
        return "the trainer recomputes nothing: leave recompute_granularity out."
    return None


def _unbuilt(run: Run, model: ModelShape) -> str | None:
    """What keeps the trainer from building a model of NeMo's; None if nothing."""
    parallelism = run.recipe.parallelism
    if model.nemo is None:
        return (
            "its model does not name the config of NeMo to build it from: give nemo "
            "(docs/adding-a-workload.md)."
        )
    tensor = max(parallelism.tensor, parallelism.expert_tensor or 1)
    if model.moe is not None and tensor > 1 and run.recipe.gpu_type == "cpu":
        return (
            f"a mixture with tensor parallel {tensor} needs sequence parallelism, which the CPU has not: "
            "choose tensor parallel 1."
        )
    return None


def check_plan(planned: Plan) -> None:
    """Raise UserError if the plan's cluster or the shipped trainer cannot run it; budgets are apart."""
    check_permitted(planned.all_runs)
    require_runnable(planned)
    require_trainable(planned.all_runs)
    check_runs(planned.all_runs)
