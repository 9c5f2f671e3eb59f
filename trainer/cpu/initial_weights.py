"""Initial weights for the CPU that do not depend on how the model is spread over ranks.

In Megatron they do depend on it, because each rank draws only its own weights: every pipeline stage has a
random state of its own, and a tensor-parallel rank draws its part of the SwiGLU matrix without the others.
Here each weight is drawn as a whole, from the seed and its name, and a rank keeps the part that Megatron
describes for its checkpoints. The distributions are Megatron's. A rank draws the whole of every weight of
which it has a part. This is cheap only for models small enough for the CPU.
"""

import math
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch import Tensor

from trainer.drawing import Draw, drawn
from trainer.loop import Loop, LoopCallback

INTO = (
    "word_embeddings.weight",
    "linear_qkv.weight",
    "linear_q_proj.weight",  # this and the next four are of latent attention
    "linear_q_down_proj.weight",
    "linear_q_up_proj.weight",
    "linear_kv_down_proj.weight",
    "linear_kv_up_proj.weight",
    "linear_fc1.weight",
    "router.weight",
    "eh_proj.weight",  # of layers that predict further tokens
    "in_proj.weight",
    "output_layer.weight",
)
OUT_OF = ("linear_proj.weight", "linear_fc2.weight", "out_proj.weight")
"""Matrices at the end of a layer, for which Megatron draws smaller values."""
CONVOLUTION_WIDTH = 4
DECAY = (1.0, 16.0)
TIME_STEP = (0.001, 0.1)
"""The range of the state space's time step Δ; `DECAY` is that of -A. Both are from Megatron's mixer."""


class InitialWeights(LoopCallback):
    """Replaces the random initial weights by ones that do not depend on the parallelism."""

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_start(self, loop: Loop) -> None:
        """Draw this rank's part of every weight that starts with random values."""
        with torch.no_grad():
            for described in loop.sharded_state_dicts():
                apply_factories(described)  # takes matrices apart if a rank has several pieces of one
                for part in nested_values(described):
                    if isinstance(part, ShardedTensor) and (draw := _distribution(part.key, loop.config)):
                        _fill(part, draw, self.seed)


def _fill(part: ShardedTensor, draw: Draw, seed: int) -> None:
    stacked = part.prepend_axis_num  # 1 if a name stands for all layers, with the layer as first index
    layer, offset = part.global_offset[:stacked], part.global_offset[stacked:]
    whole = drawn(part.global_shape[stacked:], draw, seed=seed, name=part.key, layer=layer)
    slices = tuple(slice(at, at + size) for at, size in zip(offset, part.data.shape, strict=True))
    part.data.copy_(whole[slices])


def _distribution(key: str, config: Any) -> Draw | None:
    """Return the distribution from which Megatron draws the weight `key`; None if it begins as a constant."""
    draws: dict[tuple[str, ...], Draw] = {
        INTO: config.init_method,
        OUT_OF: config.output_layer_init_method,
        (".conv1d.",): _convolution,
        (".A_log",): _decay,
        (".dt_bias",): _time_step,
    }
    return next((draw for names, draw in draws.items() if any(name in key for name in names)), None)


def _convolution(whole: Tensor) -> object:
    bound = CONVOLUTION_WIDTH**-0.5  # torch's default, of one channel
    return whole.uniform_(-bound, bound)


def _decay(whole: Tensor) -> object:
    return whole.uniform_(*DECAY).log_()


def _time_step(whole: Tensor) -> object:
    """Draw the bias whose softplus is the time step Δ, so that Δ is log-uniform in its range."""
    step = whole.uniform_(*map(math.log, TIME_STEP)).exp()
    return whole.copy_(step + torch.log(-torch.expm1(-step)))
