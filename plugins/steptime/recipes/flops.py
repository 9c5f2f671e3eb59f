"""Model flops: the formula each document prints, by name.

Each counts the floating-point operations of one training step on one sample (global batch size 1, forward
and backward), and each counts differently: Nemotron4 15b is 4.345e14 by the formula of 24.11 and 3.85e14 by
that of 25.12. An MFU therefore always carries the name of its formula, and two formulas are never compared.
"""

from collections.abc import Callable
from typing import NamedTuple

from steptime.errors import UserError
from steptime.plug_points import FLOPS_FORMULAS
from steptime.recipes.models import ModelShape


def _llama31_2504(shape: ModelShape) -> float:
    """Llama 3.1 (release 25.04, Notes): grouped-query attention and the three matrices of a gated MLP."""
    layers, hidden = shape.num_layers, shape.hidden_size
    attention = 12 * layers * hidden * (_query_and_output(shape) + shape.seq_length)
    mlp = 18 * layers * shape.ffn_hidden_size * hidden
    return shape.seq_length * (attention + mlp + _embedding(shape))


def _nemotron4_2411(shape: ModelShape) -> float:
    """Nemotron4 (releases 24.11 and 25.04, Notes): as if without grouped queries, with an MLP of 4 × hidden.

    25.04 prints 38,666,279,738 as the attention term of the 15b model; its own formula gives 38,654,705,664,
    and both round to the stated 434.5e12.
    """
    layers, hidden = shape.num_layers, shape.hidden_size
    attention = 24 * layers * hidden**2 + 12 * layers * hidden * shape.seq_length
    mlp = 48 * layers * hidden**2
    return float(shape.seq_length * (attention + mlp + _embedding(shape)))


def _nemotron4_2512(shape: ModelShape) -> float:
    """Nemotron4 (release 25.12, Notes): grouped-query attention, the two matrices of a squared-ReLU MLP."""
    layers, hidden = shape.num_layers, shape.hidden_size
    attention = 12 * layers * hidden * (_query_and_output(shape) + shape.seq_length)
    mlp = 12 * layers * hidden * shape.ffn_hidden_size
    return shape.seq_length * (attention + mlp + _embedding(shape))


def _nemotron_h_2505(shape: ModelShape) -> float:
    """Nemotron-H (release 25.05, Notes): attention, MLP and Mamba layers counted apart; × 6 for both ways."""
    hybrid = shape.hybrid
    if hybrid is None:
        raise UserError(
            "the formula nemotron-h-25.05 needs the Mamba sizes of a hybrid model, and this "
            f"{shape.architecture} model has none: give its recipe the formula of its own document."
        )
    seq, hidden = shape.seq_length, shape.hidden_size
    mlp = 2 * seq * hidden * shape.ffn_hidden_size * hybrid.num_mlp_layers
    heads_width = (shape.num_attention_heads + shape.num_query_groups) * hybrid.attention_head_dim
    attention = (2 * seq * hidden * heads_width + 2 * seq * seq * hidden) * hybrid.num_attention_layers
    groups_width = hybrid.mamba_num_groups * hybrid.mamba_state_dim
    mamba_width = (
        hybrid.mamba_num_heads * hybrid.mamba_head_dim * 3 + groups_width * 2 + hybrid.mamba_num_heads
    )
    mamba = (
        seq * hidden * mamba_width
        + seq * hidden * hybrid.expand * hybrid.chunk_size
        + 2 * seq * hidden * hybrid.expand * hybrid.mamba_state_dim
        + seq * hybrid.chunk_size * groups_width
    ) * hybrid.num_mamba_layers
    lm_head = seq * hidden * shape.vocab_size
    return float((mlp + attention + mamba + lm_head) * 6)


def _query_and_output(shape: ModelShape) -> float:
    """hidden × (1 + query groups / heads): the projections of attention, as the documents count."""
    return shape.hidden_size * (1 + shape.num_query_groups / shape.num_attention_heads)


def _embedding(shape: ModelShape) -> int:
    """Flops per token of the output embedding."""
    return 6 * shape.vocab_size * shape.hidden_size


class Formula(NamedTuple):
    """A document's formula, and the architectures that it counts."""

    of: Callable[[ModelShape], float]
    architectures: tuple[str, ...]


LLAMA31_2504 = Formula(_llama31_2504, ("llama",))
NEMOTRON4_2411 = Formula(_nemotron4_2411, ("nemotron4",))
NEMOTRON4_2512 = Formula(_nemotron4_2512, ("nemotron4",))
NEMOTRON_H_2505 = Formula(_nemotron_h_2505, ("nemotron_h",))


def load_formula(name: str) -> Formula:
    """The formula of `plug_points.FLOPS_FORMULAS`. Raises UserError if there is none of that name."""
    formula: Formula = FLOPS_FORMULAS.load(name)
    return formula


def model_flops(shape: ModelShape, formula: str) -> float:
    """Floating-point operations of one training step on one sample, by the named formula.

    Raises UserError for a formula that is not there, or that does not fit the model's architecture.
    """
    return load_formula(formula).of(shape)
