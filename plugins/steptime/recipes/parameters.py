"""How many parameters a model has, counted from its sizes, and how many its size's name says."""

import re
from typing import NamedTuple

from steptime.recipes.layers import HybridShape
from steptime.recipes.models import Model, ModelShape
from steptime.recipes.named import NamedRecipe

_GATED = {"llama": True, "nemotron4": False, "nemotron_h": False}
"""Whether a family's MLP has three matrices, or two."""

_STATED = re.compile(r"(?P<total>\d+(?:\.\d+)?)b(?:-a(?P<active>\d+(?:\.\d+)?)b)?")
"""Of a size's name: `8b`, `0.5b`, `30b-a3b`."""

_TOLERANCE = 0.2
"""By which a name may round: 15b has 15.6 billion, and a model of another kind differs by a multiple."""


class Parameters(NamedTuple):
    """Of a model, without the layers that predict further tokens: only training has these."""

    total: int
    active: int
    """Those that one token passes: all but the experts that are not chosen for it."""

    def __str__(self) -> str:
        """As people write them: `8.03b`, `671b, 37.6b active`."""
        return _brief(self.total) + (f", {_brief(self.active)} active" if self.active != self.total else "")


def _brief(number: int) -> str:
    unit, divisor = ("b", 1e9) if number >= 1e9 else ("m", 1e6)
    return f"{number / divisor:.3g}{unit}"


def count_parameters(shape: Model) -> Parameters | None:
    """The weights of every matrix: norms, biases and convolutions, a thousandth at most, are left out.

    None for a recipe by name, or a family of another package: nobody here knows their layers.
    """
    if isinstance(shape, NamedRecipe):
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
        total = _of_hybrid(shape, shape.hybrid, mlp) + embeddings
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


def attention_weights(shape: ModelShape) -> int:
    """The weights of one layer's attention."""
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


def _of_hybrid(shape: ModelShape, hybrid: HybridShape, mlp: int) -> int:
    """Of layers of three kinds."""
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


def contradiction(size: str, shape: ModelShape) -> str | None:
    """What is wrong with a model that has not the parameters which its size's name says; None if it has.

    A name such as `tiny` says nothing.
    """
    named, counted = _STATED.fullmatch(size), count_parameters(shape)
    if named is None or counted is None:
        return None
    for kind, what in (("total", "parameters"), ("active", "active parameters")):
        stated, has = named[kind], getattr(counted, kind) / 1e9
        if stated is not None and abs(has - float(stated)) > _TOLERANCE * float(stated):
            return (
                f"this model has {has:.3g} billion {what}, and the name of its size says {stated}: "
                "give the sizes of that very model, or name the size by what it has"
            )
    return None
