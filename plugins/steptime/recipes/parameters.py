"""Parameter counts of models: computed from dimensions, stated by Megatron-Bridge, or in a size's name."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from steptime.recipes.models import HybridShape, Model, ModelShape, NamedRecipe

_GATED = {"llama": True, "nemotron4": False, "nemotron_h": False}
"""Whether the MLP of a family is gated, with three matrices instead of two."""

_STATED = re.compile(r"(?P<total>\d+(?:\.\d+)?)(?P<unit>[bt])(?:-a(?P<active>\d+(?:\.\d+)?)b)?")
"""Pattern of a size's name: `8b`, `0.5b`, `1t`, `30b-a3b`."""

_TOLERANCE = 0.2
"""Largest relative rounding in a name: 15b has 15.6 billion; a wrong model would differ by far more."""


_UNITS = (("t", 1e12), ("b", 1e9), ("m", 1e6))


class Parameters(NamedTuple):
    """Parameter counts of a model, without layers for multi-token prediction, which only training uses."""

    total: int
    active: int | None
    """Parameters active for one token: all but those of experts that are not chosen; None if unknown."""

    def __str__(self) -> str:
        """Format the counts: `8.03b`, `671b, 37.6b active`."""
        if self.active is None or self.active == self.total:
            return _brief(self.total)
        return f"{_brief(self.total)}, {_brief(self.active)} active"


def _brief(number: int) -> str:
    # What three digits round to 1,000 is one of the next unit.
    unit, divisor = next((known for known in _UNITS if number >= 0.9995 * known[1]), _UNITS[-1])
    return f"{number / divisor:.3g}{unit}"


def _stated_parameters(model: NamedRecipe) -> Parameters | None:
    if model.parameters is None:
        return None
    return Parameters(
        round(model.parameters * 1e9), None if model.active is None else round(model.active * 1e9)
    )


def count_parameters(shape: Model) -> Parameters | None:
    """Count the weights of a model's matrices; norms, biases and convolutions (under 0.1 %) are left out.

    For a recipe of Megatron-Bridge these are the counts that its workload states. None if it states none, for
    a collective, and for a model family that another package adds: steptime does not know their layers.
    """
    if isinstance(shape, NamedRecipe):
        return _stated_parameters(shape)
    if not isinstance(shape, ModelShape):
        return None
    gated = _GATED.get(shape.architecture, shape.gated_linear_unit)
    if gated is None:
        return None
    matrices = 3 if gated else 2
    embeddings = (
        (1 if shape.share_embeddings_and_output_weights else 2) * shape.vocab_size * shape.hidden_size
    )
    mlp = matrices * shape.hidden_size * shape.ffn_hidden_size
    if shape.hybrid is not None:
        total = _count_hybrid(shape, shape.hybrid, mlp) + embeddings
        return Parameters(total, total)
    dense = (
        shape.num_layers * attention_weights(shape)
        + (shape.num_layers - shape.expert_layers) * mlp
        + embeddings
    )
    if shape.moe is None:
        return Parameters(dense, dense)
    expert = matrices * shape.hidden_size * shape.moe.moe_ffn_hidden_size
    shared = matrices * shape.hidden_size * (shape.moe.moe_shared_expert_intermediate_size or 0)
    router = shape.hidden_size * shape.moe.num_moe_experts
    total, active = (
        dense + shape.expert_layers * (experts * expert + shared + router)
        for experts in (shape.moe.num_moe_experts, shape.moe.moe_router_topk)
    )
    return Parameters(total, active)


def checkpoint_bytes(shape: Model) -> int | None:
    """Estimate the size of a checkpoint: weights in 2 bytes, and their copy and two moments in 4 each.

    The documents' sizes are these, in units of 1,024. None if the number of parameters is unknown.
    """
    counted = count_parameters(shape)
    return None if counted is None else 14 * counted.total


def count_expert_weights(shape: ModelShape) -> int:
    """Count the weights of a model's experts, which expert parallelism spreads; 0 without experts."""
    if shape.moe is None:
        return 0
    matrices = 3 if shape.gated_linear_unit else 2
    expert = matrices * shape.hidden_size * shape.moe.moe_ffn_hidden_size
    return shape.expert_layers * shape.moe.num_moe_experts * expert


def attention_weights(shape: ModelShape) -> int:
    """Count the weights of one layer's attention in a model."""
    hidden, heads, latent = shape.hidden_size, shape.num_attention_heads, shape.mla
    if latent is None:
        return 2 * hidden * shape.head_width * (heads + shape.num_query_groups)
    query_width = heads * (latent.qk_head_dim + latent.qk_pos_emb_head_dim)
    rank = latent.q_lora_rank
    return (
        (hidden * query_width if rank is None else rank * (hidden + query_width))
        + hidden * (latent.kv_lora_rank + latent.qk_pos_emb_head_dim)
        + latent.kv_lora_rank * heads * (latent.qk_head_dim + latent.v_head_dim)
        + heads * latent.v_head_dim * hidden
    )


def _count_hybrid(shape: ModelShape, hybrid: HybridShape, mlp: int) -> int:
    """Count the weights of a hybrid model's three kinds of layers."""
    hidden, heads = shape.hidden_size, shape.num_attention_heads + shape.num_query_groups
    inner, state = (
        hybrid.mamba_num_heads * hybrid.mamba_head_dim,
        hybrid.mamba_num_groups * hybrid.mamba_state_dim,
    )
    mamba = hidden * (3 * inner + 2 * state + hybrid.mamba_num_heads)
    return (
        hybrid.num_attention_layers * 2 * hidden * hybrid.attention_head_dim * heads
        + hybrid.num_mlp_layers * mlp
        + hybrid.num_mamba_layers * mamba
    )


def contradiction(size: str, shape: Model) -> str | None:
    """Return how a model's parameter counts contradict its size's name; None if they agree.

    A name such as `tiny` contains no count and agrees with any.
    """
    counted = count_parameters(shape)
    if counted is None:
        return None
    for kind, stated, has in _numbers(size, counted):
        if has is not None and _differ(has, stated):
            return (
                f"this model has {has:.3g} billion {kind}, and the name of its size states {stated:g}: "
                "give the sizes of that very model, or name the size by what it has"
            )
    return None


def _numbers(size: str, has: Parameters | None) -> Iterator[tuple[str, float, float | None]]:
    """Yield each parameter count in a size's name: its kind, the count itself, and the model's actual count.

    Counts are in billions; the model's count is None if it is unknown.
    """
    named = _STATED.fullmatch(size)
    for kind, what in (("total", "parameters"), ("active", "active parameters")):
        if named is not None and named[kind] is not None:
            number = None if has is None else getattr(has, kind)
            thousands = 1000 if kind == "total" and named["unit"] == "t" else 1
            yield what, float(named[kind]) * thousands, None if number is None else number / 1e9


def _differ(has: float, stated: float) -> bool:
    return abs(has - stated) > _TOLERANCE * stated
