"""The layers that a plan describes."""

import pytest

from trainer.spec import MoeShape


@pytest.mark.parametrize(
    ("dense", "one_in", "layers"), [(0, 1, (1, 1, 1, 1, 1)), (1, 1, (0, 1, 1, 1, 1)), (1, 2, (0, 1, 0, 1, 0))]
)
def test_the_first_layer_after_the_dense_ones_has_experts(dense, one_in, layers):
    shape = MoeShape(
        num_moe_experts=4,
        moe_router_topk=2,
        moe_ffn_hidden_size=8,
        num_dense_layers=dense,
        moe_layer_freq=one_in,
    )
    assert shape.expert_layers(5) == layers
