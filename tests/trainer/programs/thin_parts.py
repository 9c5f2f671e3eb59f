"""Looks at parts of the thin loop where torch is; prints what it found as JSON."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from one_gpu import weights
from one_gpu.loop import own_compile_cache
from one_gpu.model import STYLES, build_model, norm
from trainer.norms import ZeroCenteredLayerNorm
from trainer.run import ModelShape

SHAPE = ModelShape(
    architecture="llama",
    num_layers=6,
    hidden_size=64,
    ffn_hidden_size=128,
    num_attention_heads=4,
    num_query_groups=2,
    vocab_size=256,
    seq_length=16,
)


def rounded_otherwise() -> dict[str, float]:
    """Share of a norm's values in bf16 that are not the exact one rounded once, by architecture."""
    torch.manual_seed(0)
    shares = {}
    for architecture, style in STYLES.items():
        layer = norm(SHAPE, style).to(torch.bfloat16)
        values = torch.randn(1000, SHAPE.hidden_size).bfloat16()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.05 * torch.randn(SHAPE.hidden_size))
            exact = _exact_norm(layer, values.double()).bfloat16()
            shares[architecture] = float((layer(values) != exact).float().mean())
    return shares


def _exact_norm(layer: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    weight = layer.weight.double()
    if isinstance(layer, ZeroCenteredLayerNorm):
        return F.layer_norm(values, weight.shape, 1 + weight, layer.bias.double(), layer.epsilon)
    return F.rms_norm(values, weight.shape, weight, layer.eps)


def compiled_graphs(layers: int) -> int:
    """How many graphs torch.compile makes of a model."""
    graphs: list[Any] = []

    def count(graph: torch.fx.GraphModule, _inputs: Any, **_options: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = build_model(dataclasses.replace(SHAPE, num_layers=layers), 1, "cpu", half=False)
    model.compile_parts("default")
    tokens = torch.randint(SHAPE.vocab_size, (2, SHAPE.seq_length))
    with mock.patch("torch._inductor.compile_fx.compile_fx", count):
        model(tokens, tokens).backward()
        model(tokens, tokens).backward()
    return len(graphs)


def adams_steps(part_elements: int) -> tuple[int, list[float]]:
    """In how many parts of this size a model's weights change, and their sum after each of two steps."""
    model = build_model(SHAPE, 1, "cpu", half=True)
    tokens = torch.arange(2 * SHAPE.seq_length).view(2, -1) % SHAPE.vocab_size
    with mock.patch.object(weights, "PART_ELEMENTS", part_elements):
        main = weights.MainWeights(model)
    sums = []
    for _ in range(2):
        for _ in range(2):
            model(tokens, tokens).backward()
        main.step(0.01)
        sums.append(sum(float(parameter.detach().double().sum()) for parameter in model.parameters()))
    return len(main.parts), sums


def caches() -> list[str]:
    """Where torch.compile keeps its results in two runs."""
    used = []
    for _ in range(2):
        with own_compile_cache():
            used.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            (Path(used[-1]) / "half-written").touch()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert not any(Path(folder).exists() for folder in used)
    return used


if __name__ == "__main__":
    found = {
        "caches": caches(),  # first: torch names a folder of its own once it compiles
        "rounded_otherwise": rounded_otherwise(),
        "compiled_graphs": [compiled_graphs(1), compiled_graphs(6)],
        "at_once": adams_steps(2**28),
        "in_parts": adams_steps(1000),
    }
    print(json.dumps(found))
