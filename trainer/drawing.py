"""Random weights that depend only on the seed, the weight's name and layer, and the device."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Draw = Callable[[Tensor], object]
"""Fills a tensor in place."""


def drawn(
    shape: Sequence[int], draw: Draw, *, seed: int, name: str, layer: Sequence[int], device: str = "cpu"
) -> Tensor:
    """Draw the whole weight tensor `name` in fp32; its values depend only on seed, name, layer and device.

    `layer` is the index of the layer if several share the name, else empty. `draw` fills the tensor in place.
    """
    whole = torch.empty(tuple(shape), dtype=torch.float32, device=device)
    with torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(_make_seed(f"{seed} {name} {tuple(layer)}"))
        draw(whole)
    return whole


def _make_seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) // 2
