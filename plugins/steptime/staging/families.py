"""Which planned runs the shipped trainer can train: known before anything is staged or submitted."""

from steptime.errors import UserError
from steptime.recipes.models import Run

NEMO_1_IMAGES = frozenset({"nemo:24.09"})
"""Images with NeMo 1 and its launcher, by name and tag in whatever registry."""


def require_trainable(run: Run) -> None:
    """Raise UserError for an image without NeMo 2."""
    recipe = run.recipe
    if recipe.image is not None and recipe.image.rpartition("/")[2] in NEMO_1_IMAGES:
        raise UserError(
            f"{recipe.workload} {recipe.size} cannot be trained on {recipe.gpu_type}: its image "
            f"{recipe.image} has NeMo 1, and the trainer is for NeMo 2. Its size tiny trains on the CPU, and "
            "every size can be planned: steptime plan."
        )
