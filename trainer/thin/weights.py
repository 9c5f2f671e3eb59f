"""The weights that Adam changes, and the gradients by which: in fp32, whatever the model computes in."""

import torch
from torch import nn

from trainer import hyperparameters


def learning_rate(step: int) -> float:
    """The rate of a global step: a linear warm-up, then constant."""
    return hyperparameters.LEARNING_RATE * min(1.0, (step + 1) / (hyperparameters.WARMUP_STEPS + 1))


class MainWeights:
    """fp32 weights and sums of gradients; the model computes with copies in its own number format.

    Megatron's mixed precision keeps the same three.
    """

    def __init__(self, model: nn.Module):
        self.of_model = list(model.parameters())
        self.main = [nn.Parameter(parameter.detach().float().clone()) for parameter in self.of_model]
        for parameter in self.main:
            parameter.grad = torch.zeros_like(parameter)
        self.gradients = [parameter.grad for parameter in self.main if parameter.grad is not None]
        matrices = [parameter for parameter in self.main if parameter.ndim > 1]
        vectors = [parameter for parameter in self.main if parameter.ndim == 1]
        self.adam = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": hyperparameters.WEIGHT_DECAY},
                {"params": vectors, "weight_decay": 0.0},
            ],
            betas=hyperparameters.BETAS,
            eps=hyperparameters.EPSILON,
            fused=True,
        )

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""
        return str(self.main[0].device.type)

    def collect_gradients(self) -> None:
        """Add what a micro batch's backward pass has left in the model, and take it away there."""
        for total, parameter in zip(self.gradients, self.of_model, strict=True):
            total.add_(parameter.grad)
            parameter.grad = None

    def step(self, learning_rate: float) -> None:
        """Change the weights by the sum of the gradients, and begin a new sum."""
        torch.nn.utils.clip_grad_norm_(self.main, hyperparameters.CLIP_GRADIENT, foreach=True)
        for group in self.adam.param_groups:
            group["lr"] = learning_rate
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.of_model, self.main)
            torch._foreach_zero_(self.gradients)
