"""What ends a training early with one sentence, by whose fault it is; exit codes as in the pipeline."""


class TrainerError(Exception):
    """The request is impossible: the plan, the launch or the checkpoint is wrong. Exit code 1."""

    exit_code = 1


class TrainingFailure(TrainerError):
    """The training began as planned and could not go on. Exit code 2."""

    exit_code = 2


def diverged(step: int, loss: float) -> TrainingFailure:
    """Return the failure for a loss that is no number."""
    return TrainingFailure(f"the loss of step {step} is {loss}: training diverged and was stopped.")
