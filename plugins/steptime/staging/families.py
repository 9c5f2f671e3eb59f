"""Which model families the shipped trainer can train: known before anything is staged or submitted."""

from steptime.errors import UserError
from steptime.recipes.models import Run
from steptime.settings import shipped


def trainable_architectures() -> tuple[str, ...]:
    """The architectures that the trainer has a module for; the trainer itself is never imported."""
    modules = (shipped("trainer") / "families").glob("*.py")
    return tuple(sorted(module.stem for module in modules if module.stem != "__init__"))


def require_trainable(run: Run) -> None:
    """Raise UserError where the trainer has no module for the run's model."""
    architecture, trainable = run.recipe.model.architecture, trainable_architectures()
    if architecture not in trainable:
        raise UserError(
            f"{run.recipe.workload} cannot be trained yet: its model's architecture is '{architecture}' "
            f"and the trainer has: {', '.join(trainable)}. It can be planned: steptime plan."
        )
