"""The layers that a plan describes."""

from importlib.metadata import EntryPoint

import pytest

from trainer import families
from trainer.spec import MoeShape


def test_a_family_of_another_package_is_added_and_does_not_replace_one_of_the_trainer(monkeypatch):
    points = [EntryPoint(name, "acme.models", "steptime.trainer_families") for name in ("acme", "llama")]
    monkeypatch.setattr(families, "entry_points", lambda **_: points)
    assert families.families() == {"acme": "acme.models", **families.FAMILIES}


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
