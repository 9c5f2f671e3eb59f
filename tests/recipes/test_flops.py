"""Each named formula, compared with the worked example in its document."""

import pytest

from steptime.errors import UserError
from steptime.measure.metrics import throughput
from steptime.recipes.flops import Counted, broken_formulas, model_flops, recipe_flops
from steptime.recipes.models import LatentAttention, ModelShape, MoeShape
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workload

LLAMA_8B = load_workload("llama3.1-25.04").sizes["8b"].model
NEMOTRON4_15B = load_workload("nemotron4-25.04").sizes["15b"].model
NEMOTRON4_340B = load_workload("nemotron4-340b-24.11").sizes["340b"].model
NEMOTRON_H_56B = load_workload("nemotron-h-25.05").sizes["56b"].model


def _with_moe(shape, **changes):
    assert shape.moe is not None
    return shape.model_copy(update={"moe": shape.moe.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("shape", "formula", "worked_out", "stated"),
    [
        # The terms that the documents print, and the rounded result that they state.
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
def test_the_documents_worked_examples(shape, formula, worked_out, stated):
    flops = model_flops(shape, formula)
    assert flops == pytest.approx(worked_out, rel=1e-15)
    digits = len(stated.partition("e")[0].replace(".", ""))
    assert float(f"{flops:.{digits - 1}e}") == float(stated)


GPT = LLAMA_8B.model_copy(
    update={
        **{"architecture": "gpt", "gated_linear_unit": True, "num_layers": 4, "seq_length": 32},
        **{"hidden_size": 64, "ffn_hidden_size": 96, "vocab_size": 1000},
        **{"num_attention_heads": 8, "num_query_groups": 2},
    }
)
MIXTURE = GPT.model_copy(
    update={
        "moe": MoeShape(num_moe_experts=16, moe_router_topk=3, moe_ffn_hidden_size=24, num_dense_layers=1)
    }
)
LATENT = GPT.model_copy(
    update={"mla": LatentAttention(kv_lora_rank=16, qk_head_dim=12, qk_pos_emb_head_dim=4, v_head_dim=10)}
)
PER_TOKEN = {
    # shape, switches of its formula, and the operations for a token forward, written out
    "as the model is": (GPT, {}, 4 * (2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96 + 2 * 32 * 64) + 64_000),
    "causal": (
        GPT,
        {"attention": "causal"},
        4 * (2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 96 + 32 * 64) + 64_000,
    ),
    "two matrices, four times as wide": (
        GPT,
        {"mlp_matrices": 2, "mlp_width": 4},
        4 * (2 * 64 * 64 + 2 * 64 * 16 + 2 * 64 * 256 + 2 * 32 * 64) + 64_000,
    ),
    "heads of their own width": (
        GPT.model_copy(update={"kv_channels": 16}),
        {},
        4 * (2 * 64 * 128 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 32 * 128) + 64_000,
    ),
    "experts": (
        MIXTURE,
        {},
        4 * (2 * 64 * 64 + 2 * 64 * 16 + 2 * 32 * 64) + 3 * 64 * (96 + 3 * 3 * 24) + 64_000,
    ),
    "experts beside a shared one": (
        _with_moe(MIXTURE, moe_shared_expert_intermediate_size=40),
        {},
        4 * (2 * 64 * 64 + 2 * 64 * 16 + 2 * 32 * 64) + 3 * 64 * (96 + 3 * (3 * 24 + 40)) + 64_000,
    ),
    "experts in every second layer": (
        _with_moe(MIXTURE, moe_layer_freq=2),  # the first and the third of three
        {},
        4 * (2 * 64 * 64 + 2 * 64 * 16 + 2 * 32 * 64) + 3 * 64 * (2 * 96 + 2 * 3 * 24) + 64_000,
    ),
    "latent attention, queries straight": (
        LATENT,
        {},
        4 * (64 * 128 + 64 * 20 + 16 * 8 * 22 + 80 * 64 + 3 * 64 * 96 + 32 * 8 * 26) + 64_000,
    ),
    "further tokens": (
        MIXTURE.model_copy(update={"mtp_num_layers": 2}),
        {},
        6 * (2 * 64 * 64 + 2 * 64 * 16 + 2 * 32 * 64)
        + 3 * 64 * (96 + 5 * 3 * 24)
        + 3 * 64_000
        + 2 * 2 * 64 * 64,
    ),
}


@pytest.mark.parametrize("case", PER_TOKEN)
def test_every_switch(case):
    shape, switches, products = PER_TOKEN[case]
    counted = Counted.model_validate({"mlp_matrices": 3, **switches})
    assert counted.flops(shape) == 6 * 32 * products


@pytest.fixture
def formulas(config):
    return config / "flops.yaml"


def _recipe(size, formula):
    run = plan(PlanRequest(workload="llama3.1", size=size, gpu_type="h100")).runs[0]
    return run.recipe.model_copy(update={"flops_formula": formula, "workload": "acme-1.0"})


def test_a_sliding_window_counts_the_positions_within_it():
    """GPT-OSS 120B: every second of 36 layers attends to 128 positions and its own."""
    everywhere = ModelShape(
        **{"architecture": "gpt", "gated_linear_unit": True, "num_layers": 36, "hidden_size": 2880},
        **{"ffn_hidden_size": 2880, "num_attention_heads": 64, "num_query_groups": 8, "kv_channels": 64},
        **{"vocab_size": 201088, "seq_length": 4096},
        moe=MoeShape(num_moe_experts=128, moe_router_topk=4, moe_ffn_hidden_size=2880),
    )
    windowed = everywhere.model_copy(update={"window_size": 128, "window_attn_skip_freq": 2})
    left_out = sum(range(1, 4097)) - sum(min(position, 129) for position in range(1, 4097))
    products = 18 * left_out * 2 * 2 * 64 * 64  # layers, positions, scores and sums, operations, heads, width
    flops = [model_flops(shape, "megatron-core") for shape in (everywhere, windowed)]
    assert flops[0] == pytest.approx(1.406192e14, rel=1e-6)
    assert flops[0] - flops[1] == pytest.approx(3 * products, rel=2e-3)
    assert flops[0] / flops[1] == pytest.approx(1.052, abs=5e-4)


def test_a_window_over_all_positions_changes_nothing():
    shape = LLAMA_8B.model_copy(update={"architecture": "gpt", "gated_linear_unit": True})
    whole = shape.model_copy(update={"window_size": 100_000})
    assert model_flops(whole, "megatron-core") == model_flops(shape, "megatron-core")


def test_a_document_may_state_the_result_alone(formulas):
    formulas.write_text(
        formulas.read_text() + "\nacme: {source: x, architectures: [llama], stated: {8b: 4.7e+14}}\n"
    )
    assert recipe_flops(_recipe("8b", "acme")) == (4.7e14, "as acme states", False)
    assert recipe_flops(_recipe("70b", "acme")) == (None, "acme states none for 70b", False)
    rates = throughput(_recipe("8b", "acme"), 12.27)
    assert rates.model_tflops_per_gpu == pytest.approx(128 * 4.7e14 / 12.27 / 8 / 1e12)
    unknown = throughput(_recipe("70b", "acme"), 12.27)
    assert (unknown.model_tflops_per_gpu, unknown.mfu_percent) == (None, None)
    assert unknown.tokens_per_s is not None
    with pytest.raises(UserError, match="the formula acme cannot compute the FLOPs of a model"):
        model_flops(LLAMA_8B, "acme")


def test_a_document_may_take_what_is_logged(formulas):
    formulas.write_text(formulas.read_text() + "\nacme: {source: x, architectures: [llama], logged: true}\n")
    recipe = _recipe("8b", "acme")
    assert recipe_flops(recipe) == (None, "the TFLOPS that a run logs", True)
    of_step_time = throughput(recipe, 12.27)
    assert (of_step_time.model_tflops_per_gpu, of_step_time.mfu_percent) == (None, None)
    measured = throughput(recipe, 12.27, logged_tflops=494.5)
    assert (measured.model_tflops_per_gpu, measured.mfu_percent) == (494.5, 50.0)
    assert measured.flops_source == "the TFLOPS that a run logs"
    assert throughput(_recipe("8b", "llama3.1-25.04"), 12.27, logged_tflops=1.0).mfu_percent != 100 / 989


BROKEN = {
    "": ": set exactly one of these fields: counted, stated, or logged: true.",
    ", counted: {mlp_matrices: 4}": ".counted.mlp_matrices: has to be 2 or 3, not 4.",
    ", counted: {mlp_matrices: 3, expert: true}": ".counted.expert: unknown field.",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_formula_is_told_with_its_place_and_hides_no_other(formulas, broken):
    before = formulas.read_text()
    formulas.write_text(f"{before}acme: {{source: x, architectures: [llama]{broken}}}\n")
    told = f"{formulas}, line {before.count(chr(10)) + 1}, acme{BROKEN[broken]}"
    assert str(broken_formulas()) == told
    with pytest.raises(UserError) as refused:
        model_flops(LLAMA_8B, "acme")
    assert str(refused.value) == told
    assert model_flops(LLAMA_8B, "llama3.1-25.04")
