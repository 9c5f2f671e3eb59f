"""How many parameters a model has, counted from its sizes, and how many its size's name says."""

import re

from steptime.recipes.models import ModelShape

_MLP_MATRICES = {"llama": 3, "nemotron4": 2, "nemotron_h": 2}
"""By family: a gated MLP has three."""

_STATED = re.compile(r"(?P<total>\d+(?:\.\d+)?)b")
"""Of a size's name: `8b`, `0.5b`."""

_TOLERANCE = 0.2
"""By which a name may round: 15b has 15.6 billion, and a model of another kind differs by a multiple."""


def count_parameters(shape: ModelShape) -> int | None:
    """The weights of every matrix: norms, biases and convolutions, a thousandth at most, are left out.

    None for a family of another package, of which nobody here knows the layers.
    """
    matrices = _MLP_MATRICES.get(shape.architecture)
    if matrices is None:
        return None
    hybrid, hidden = shape.hybrid, shape.hidden_size
    head_dim = hybrid.attention_head_dim if hybrid else hidden // shape.num_attention_heads
    attention = 2 * hidden * head_dim * (shape.num_attention_heads + shape.num_query_groups)
    mlp = matrices * hidden * shape.ffn_hidden_size
    embeddings = 2 * shape.vocab_size * hidden
    if hybrid is None:
        return shape.num_layers * (attention + mlp) + embeddings
    inner, state = (
        hybrid.mamba_num_heads * hybrid.mamba_head_dim,
        hybrid.mamba_num_groups * hybrid.mamba_state_dim,
    )
    mamba = hidden * (2 * inner + 2 * state + hybrid.mamba_num_heads) + inner * hidden
    return (
        hybrid.num_attention_layers * attention
        + hybrid.num_mlp_layers * mlp
        + hybrid.num_mamba_layers * mamba
        + embeddings
    )


def contradiction(size: str, shape: ModelShape) -> str | None:
    """What is wrong with a model that has not the parameters which its size's name says; None if it has.

    A name such as `tiny` says nothing.
    """
    stated, counted = _STATED.fullmatch(size), count_parameters(shape)
    if stated is None or counted is None:
        return None
    total = float(stated["total"]) * 1e9
    if abs(counted - total) <= _TOLERANCE * total:
        return None
    return (
        f"this model has {counted / 1e9:.3g} billion parameters, and the name of its size says "
        f"{stated['total']}: give the sizes of that very model, or name the size by what it has"
    )
