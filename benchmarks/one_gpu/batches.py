"""The batch of a step, copied to the device at once."""

import numpy as np
import torch
from torch import Tensor

from trainer.spec import PlannedRun
from trainer.tokens import SyntheticTokens


def batch_of_step(run: PlannedRun, step: int, device: str) -> tuple[Tensor, Tensor]:
    """Tokens and labels of a step's global batch, [micro batches, micro batch, seq_length] each.

    They are one copy from pinned memory, for which the CPU does not wait: what it asks of the device next
    comes after it.
    """
    recipe, shape = run.recipe, run.recipe.model
    uniform = recipe.gpu_type != "cpu"
    samples = SyntheticTokens(
        shape.vocab_size, shape.seq_length, run.seed, attention_mask=False, uniform=uniform
    )
    first = step * recipe.global_batch_size
    drawn = [samples.tokens(index) for index in range(first, first + recipe.global_batch_size)]
    on_cpu = torch.from_numpy(np.stack(drawn)).view(-1, recipe.micro_batch_size, shape.seq_length + 1)
    if device == "cuda":
        on_cpu = on_cpu.pin_memory()
    batch = on_cpu.to(device, non_blocking=True)
    return batch[..., :-1].contiguous(), batch[..., 1:].contiguous()
