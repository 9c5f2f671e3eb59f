"""Which planned runs the shipped trainer can train: known before anything is staged or submitted."""

from collections.abc import Iterable

from steptime.errors import UserError
from steptime.recipes.models import Mode, Run

NEMO_1_IMAGES = frozenset({"nemo:24.09"})
"""Images with NeMo 1, by name and tag in whatever registry; the trainer has the same list (trainer.nemo1)."""


def require_trainable(runs: Iterable[Run]) -> None:
    """Raise UserError for the first run that its image cannot train: NeMo 1 is set up for Nemotron4 only."""
    for run in runs:
        recipe = run.recipe
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
