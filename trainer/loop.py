"""What steptime's callbacks see of a training loop, whether NeMo or Megatron-Bridge runs it."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn


class Loop(Protocol):
    """A training loop on this rank, during a callback."""

    @property
    def step(self) -> int:
        """The global step that begins or has just ended; before training, the first one."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def chunks(self) -> Sequence[nn.Module]:
        """The parts of the model on this rank: one for each of its pipeline stages."""

    @property
    def config(self) -> Any:
        """Megatron's TransformerConfig of the model."""

    @property
    def consumed_samples(self) -> int:
        """The number of samples consumed before training begins; above 0 after a checkpoint load."""

    @property
    def loss(self) -> float:
        """The loss of the step that has just ended, over all ranks; only on the rank that logs it."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the step that has just ended."""

    @property
    def step_time_s(self) -> float:
        """The seconds of the step that has just ended, by the framework's clock."""

    def sharded_state_dicts(self) -> list[dict[str, Any]]:
        """Return Megatron's descriptions of the weights on this rank, as in its checkpoints."""


class LoopCallback:
    """Base class of steptime's callbacks; the methods are called on every rank, and by default do nothing."""

    def on_train_start(self, loop: Loop) -> None:
        """Model, optimizer and data are there, a checkpoint has been loaded, and the first step follows."""

    def on_step_start(self, loop: Loop) -> None:
        """A step begins."""

    def on_step_end(self, loop: Loop) -> None:
        """A step has ended."""

    def on_train_end(self, loop: Loop) -> None:
        """All planned steps have ended, and the checkpoint has been saved if one was planned."""

    def on_exception(self, error: BaseException) -> None:
        """An exception ends the training early."""
