"""Errors that end a training with one sentence and the exit code that the pipeline expects."""

import math


class TrainerError(Exception):
    """The request is impossible: the plan, the launch or the checkpoint is wrong. Exit code 1."""

    exit_code = 1


class TrainingFailure(TrainerError):
    """The training started as planned but failed. Exit code 2."""

    exit_code = 2


def check_loss(step: int, loss: float) -> None:
    """Raise TrainingFailure if the loss is NaN or infinite."""
    if not math.isfinite(loss):
        raise TrainingFailure(f"the loss of step {step} is {loss}: training diverged and was stopped.")
