"""The fp32 weights that Adam updates, whatever format the model computes in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer import hyperparameters

PART_ELEMENTS = 2**28
"""Weights that Adam updates at once (or one matrix): only their gradients exist in fp32, which is 1 GiB."""


@dataclass(frozen=True)
class Part:
    """Some of the model's parameters, their fp32 copies, and the Adam that updates the copies."""

    of_model: Sequence[nn.Parameter]
    main: Sequence[nn.Parameter]
    adam: torch.optim.Optimizer


class MainWeights:
    """fp32 weights with Adam's state; the model computes with copies in its own number format.

    Gradients add up in the model's format, as in NeMo's mixed precision for these recipes
    (`grad_reduce_in_fp32` is off there), and become fp32 when Adam takes them.
    """

    def __init__(self, model: nn.Module):
        self.of_model = list(model.parameters())
        self.parts = [_part(parameters) for parameters in _grouped(self.of_model)]

    @property
    def device(self) -> str:
        """The device, `cpu` or `cuda`."""
        return str(self.of_model[0].device.type)

    def step(self, learning_rate: float) -> None:
        """Update the weights by the model's gradients, and free the gradients."""
        scale = clipping(_gradients(self.of_model))
        for part in self.parts:
            for main, gradient in zip(part.main, _gradients(part.of_model), strict=True):
                main.grad = gradient.float().mul_(scale)
            for group in part.adam.param_groups:
                group["lr"] = learning_rate
            part.adam.step()
            part.adam.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_copy_(part.of_model, part.main)
            for parameter in part.of_model:
                parameter.grad = None


def clipping(gradients: Sequence[Tensor]) -> Tensor:
    """Return the factor that limits the norm of the gradients, computed in fp32, to the largest allowed."""
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return (hyperparameters.CLIP_GRADIENT / (norm + 1e-6)).clamp(max=1.0)


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _grouped(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Return the parameters in order, in groups of at most `PART_ELEMENTS`, or of one larger parameter."""
    group: list[nn.Parameter] = []
    for parameter in parameters:
        if group and sum(map(torch.numel, (*group, parameter))) > PART_ELEMENTS:
            yield group
            group = []
        group.append(parameter)
    yield group


def _part(parameters: Sequence[nn.Parameter]) -> Part:
    main = [nn.Parameter(parameter.detach().float().clone()) for parameter in parameters]
    adam = torch.optim.AdamW(
        [
            {
                "params": [parameter for parameter in main if (parameter.ndim > 1) is matrices],
                "weight_decay": hyperparameters.WEIGHT_DECAY if matrices else 0.0,
            }
            for matrices in (True, False)
        ],
        betas=hyperparameters.BETAS,
        eps=hyperparameters.EPSILON,
        fused=True,
    )
    return Part(parameters, main, adam)
