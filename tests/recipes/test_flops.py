"""Each named formula against the worked example of its document."""

import pytest

from steptime.errors import UserError
from steptime.plug_points import FLOPS_FORMULAS
from steptime.recipes.flops import model_flops
from steptime.recipes.models import ModelShape
from steptime.recipes.workloads import load_workload

LLAMA_8B = load_workload("llama3.1-25.04").sizes["8b"].model
NEMOTRON4_15B = load_workload("nemotron4-25.04").sizes["15b"].model
NEMOTRON4_340B = load_workload("nemotron4-340b-24.11").sizes["340b"].model
NEMOTRON_H_56B = load_workload("nemotron-h-25.05").sizes["56b"].model


@pytest.mark.parametrize(
    ("shape", "formula", "worked_out", "stated"),
    [
        # The terms that the documents print, and the rounded result they state.
        (LLAMA_8B, "llama3.1-25.04", 8192 * (20_937_965_568 + 33_822_867_456 + 3_152_019_456), "4.74e14"),
        (NEMOTRON4_15B, "nemotron4-24.11", 434_478_891_663_360, "434.5e12"),
        (
            NEMOTRON4_340B,
            "nemotron4-24.11",
            4096 * (869_730_877_440 + 1_565_515_579_392 + 28_311_552_000),
            "1.01e16",
        ),
        (
            NEMOTRON4_340B,
            "nemotron4-25.12",
            4096 * (510_966_890_496 + 1_565_515_579_392 + 28_311_552_000),
            "8.62124e15",
        ),
        (
            NEMOTRON_H_56B,
            "nemotron-h-25.05",
            (237_494_511_599_616 + 23_364_622_090_240 + 199_690_209_460_224 + 8_796_093_022_208) * 6,
            "2.816e15",
        ),
    ],
    ids=["llama 8b", "nemotron4 15b", "nemotron4 340b by 24.11", "nemotron4 340b by 25.12", "nemotron-h 56b"],
)
def test_the_documents_worked_examples(shape: ModelShape, formula: str, worked_out: int, stated: str) -> None:
    flops = model_flops(shape, formula)
    assert flops == pytest.approx(worked_out, rel=1e-15)
    digits = len(stated.partition("e")[0].replace(".", ""))
    assert float(f"{flops:.{digits - 1}e}") == float(stated)


def test_formulas_of_one_model_differ_too_much_to_compare() -> None:
    by_2411, by_2512 = (model_flops(NEMOTRON4_15B, f"nemotron4-{version}") for version in ("24.11", "25.12"))
    assert f"{by_2512:.2e}" == "3.85e+14"
    assert by_2411 / by_2512 > 1.12


def test_an_unknown_formula_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"did you mean 'nemotron4-25.12'\? Valid are: llama3.1-25.04, "):
        model_flops(LLAMA_8B, "nemotron4-25.21")


def test_the_hybrid_formula_refuses_a_plain_transformer() -> None:
    with pytest.raises(
        UserError, match=r"nemotron-h-25.05 needs the Mamba sizes .* this llama model has none"
    ):
        model_flops(LLAMA_8B, "nemotron-h-25.05")


@pytest.mark.parametrize("formula", FLOPS_FORMULAS.built_in)
def test_twice_the_layers_cost_more_but_not_the_embedding(formula: str) -> None:
    shape = NEMOTRON_H_56B if formula.startswith("nemotron-h") else NEMOTRON4_15B
    wider = shape.model_copy(update={"vocab_size": 2 * shape.vocab_size})
    embedding = model_flops(wider, formula) - model_flops(shape, formula)
    assert embedding == pytest.approx(6 * shape.vocab_size * shape.hidden_size * shape.seq_length, rel=1e-9)
