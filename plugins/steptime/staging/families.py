"""Which planned runs the shipped trainer can train: known before anything is staged or submitted."""

from collections.abc import Iterable

from steptime.errors import UserError
from steptime.plug_points import MODEL_FAMILIES
from steptime.recipes.models import Mode, Run

NEMO_1_IMAGES = frozenset({"nemo:24.09"})
"""Images with NeMo 1, by name and tag in whatever registry; the trainer has the same list (trainer.nemo1)."""


TRAINED = ("llama", "nemotron4", "nemotron_h")
"""Families that the trainer builds (trainer.families); those of other packages are theirs to know."""
NUMBER_FORMATS = ("fp32", "bf16", "fp8")
"""Of the trainer (trainer.parallelism)."""
FP8_RECIPES = (None, "delayed", "current")
"""Of the trainer (trainer.run)."""


def require_trainable(runs: Iterable[Run]) -> None:
    """Raise UserError for the first run that the trainer, or the NeMo of its image, cannot train."""
    for run in runs:
        recipe = run.recipe
        if (problem := _untrainable(run)) is not None:
            raise UserError(
                f"{recipe.workload} {recipe.size} can be planned and measured, and not be trained yet: "
                f"{problem}"
            )
        if recipe.image is None or recipe.image.rpartition("/")[2] not in NEMO_1_IMAGES:
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


def _untrainable(run: Run) -> str | None:
    """What of a run the trainer does not do yet; None if nothing."""
    family, dtype, settings = run.recipe.model.architecture, run.recipe.dtype, run.performance.trainer
    if family in MODEL_FAMILIES.built_in and family not in TRAINED:
        return f"the trainer builds {', '.join(TRAINED)}, and this is a model of the family '{family}'."
    if dtype not in NUMBER_FORMATS or settings.fp8_recipe not in FP8_RECIPES:
        scaling = "" if settings.fp8_recipe is None else f" ({settings.fp8_recipe} scaling)"
        return (
            f"the trainer has {', '.join(NUMBER_FORMATS)}, FP8 with delayed or current scaling, and not "
            f"{dtype}{scaling}."
        )
    if settings.recompute_granularity is not None:
        return "the trainer recomputes nothing: leave recompute_granularity out."
    return None
