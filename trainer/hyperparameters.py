"""Optimizer options: Adam as in NeMo's pre-training recipes.

The learning rate rises linearly during the warm-up and is constant afterwards. It does not depend on the
run's length, so that a shorter run, or one that loads a checkpoint, takes the same steps.
"""

from trainer.spec import PlannedRun

LEARNING_RATE = 3e-4
"""The peak learning rate if the plan has none, as in NeMo's recipes."""
WARMUP_STEPS, WARMUP_STEPS_CPU = 2000, 10
"""Numbers of warm-up steps if the plan has none: on GPUs as in NeMo's recipes; on the CPU so few because a
tiny model would otherwise learn nothing in a short run."""
BETAS = (0.9, 0.95)
EPSILON = 1e-5
WEIGHT_DECAY = 0.1
CLIP_GRADIENT = 1.0
"""The largest norm of the gradient over all weights."""


def highest_rate(run: PlannedRun) -> float:
    """Return the constant learning rate that follows the warm-up."""
    return run.settings.learning_rate or LEARNING_RATE


def warmup_steps(run: PlannedRun) -> int:
    """Return the number of warm-up steps, in which the learning rate rises."""
    return run.settings.warmup_steps or (WARMUP_STEPS_CPU if run.recipe.gpu_type == "cpu" else WARMUP_STEPS)


def learning_rate(run: PlannedRun, step: int) -> float:
    """Return the learning rate at a global step."""
    return highest_rate(run) * min(1.0, (step + 1) / (warmup_steps(run) + 1))
