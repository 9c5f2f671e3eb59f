"""Checks for what the thin loop does not support, made before torch is imported."""

from trainer.errors import TrainerError
from trainer.spec import PlannedRun

ARCHITECTURES = ("llama", "nemotron4")
MODES = ("performance", "profile")
DTYPES = ("fp32", "bf16", "fp8")
FP8_RECIPES = ("current",)
"""Recipes of torchao: each tensor is scaled by its own largest value."""


def check(run: PlannedRun) -> None:
    """Refuse what this loop does not have.

    Raises:
        TrainerError: with what it has.
    """
    recipe = run.recipe
    if recipe.parallelism.world_size != 1:
        raise TrainerError(
            f"the thin loop trains on one device, and the plan is for {recipe.parallelism.world_size}: "
            "plan one, or train with NeMo (python -m trainer)."
        )
    for what, value, known in (
        ("architecture", recipe.model.architecture, ARCHITECTURES),
        ("mode", run.mode, MODES),
        ("dtype", recipe.dtype, DTYPES),
        ("FP8 recipe", run.settings.fp8_recipe, (None, *FP8_RECIPES)),
    ):
        if value not in known:
            names = ", ".join(name for name in known if name)
            raise TrainerError(f"the thin loop has no {what} '{value}'; it has: {names}.")
