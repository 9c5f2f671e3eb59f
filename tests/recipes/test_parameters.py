"""Parameters are counted from a model's sizes, and agree with the name of its size."""

import pytest

from steptime.recipes.models import ModelShape
from steptime.recipes.parameters import checkpoint_bytes, contradiction, count_parameters
from steptime.recipes.workloads import list_workloads, load_workload

SHAPES = {
    (name, size): described.model
    for name in list_workloads()
    for size, described in load_workload(name).sizes.items()
}
LLAMA_8B = SHAPES["llama3.1-25.04", "8b"]

BUILT = {"8b": 8_030_261_248, "70b": 70_553_706_496, "405b": 405_853_388_800} | {
    **{"15b": 15_628_775_424, "340b": 341_029_195_776, "56b": 56_324_350_464}
}
"""The parameters of models that the trainer builds, as tests/trainer/test_rows.py counts them."""


def test_they_are_those_of_the_models_that_are_built():
    """Norms, biases and convolutions are not counted, hence the tolerance."""
    built = [
        (size, shape)
        for (_, size), shape in SHAPES.items()
        if size in BUILT and isinstance(shape, ModelShape)
    ]
    assert {size for size, _ in built} == BUILT.keys()
    for size, shape in built:
        parameters = count_parameters(shape)
        assert parameters is not None
        assert parameters.total == parameters.active == pytest.approx(BUILT[size], rel=2e-4), size


def test_every_shipped_size_is_what_its_name_says():
    assert {size: contradiction(size, shape) for (_, size), shape in SHAPES.items()} == {
        size: None for _, size in SHAPES
    }


@pytest.mark.parametrize("size", ["8b", "9.5b", "tiny"])
def test_a_name_may_round_or_say_nothing(size):
    assert contradiction(size, LLAMA_8B) is None


@pytest.mark.parametrize(("size", "said"), [("6b", "6"), ("10.1b", "10.1"), ("1t", "1000")])
def test_a_name_that_says_another_number_is_contradicted(size, said):
    assert contradiction(size, LLAMA_8B) == (
        f"this model has 8.03 billion parameters, and the name of its size states {said}: give the sizes of "
        "that very model, or name the size by what it has"
    )


@pytest.mark.parametrize(
    ("workload", "size", "printed"),
    [
        ("llama3.1-25.04", "8b", 105 * 2**30),
        ("llama3.1-25.04", "70b", 920 * 2**30),
        ("llama3.1-25.04", "405b", 5.2 * 2**40),
        ("nemotron4-25.04", "15b", 204 * 2**30),
        ("nemotron4-25.04", "340b", 4.4 * 2**40),
        ("nemotron4-340b-25.12", "340b", 4.4 * 2**40),
    ],
)
def test_checkpoints_have_the_sizes_that_the_documents_print(workload, size, printed):
    estimated = checkpoint_bytes(load_workload(workload).sizes[size].model)
    assert estimated == pytest.approx(printed, rel=0.02)
