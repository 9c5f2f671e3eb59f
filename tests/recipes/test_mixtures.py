"""Mixtures of experts, from files alone: their plans, and mistakes in their files."""

import json
import re
from pathlib import Path

import pytest
import yaml
from printed_tables import config_with, formulas_for
from typer.testing import CliRunner

from steptime.cli import app
from steptime.cli.output import with_experts
from steptime.errors import UserError
from steptime.measure.metrics import throughput
from steptime.recipes import tables
from steptime.recipes.memory import estimate_memory
from steptime.recipes.models import ModelShape, Run, TrainerSettings
from steptime.recipes.parameters import count_expert_weights, count_parameters
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workload
from steptime.staging.checking import require_trainable

MIXTURES = Path(__file__).parents[1] / "data" / "mixtures"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "workloads.md"
GROK, DEEPSEEK = "grok1-25.08", "deepseek-v3-25.08"


@pytest.fixture(autouse=True)
def config(config_folder, monkeypatch):
    """Return the shipped configuration with the files of the mixtures in it."""
    folder = config_with(MIXTURES, config_folder)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))
    return folder


def recipes(name, **cell):
    all_recipes = [recipe for recipe, _ in load_workload(name).recipes()]
    return [
        candidate
        for candidate in all_recipes
        if all(getattr(candidate, field) == value for field, value in cell.items())
    ]


@pytest.mark.parametrize(
    ("name", "size", "total", "active"),
    [
        (GROK, "314b", 316.5, 84.5),
        (DEEPSEEK, "671b", 671.0, 37.6),
    ],
)
def test_total_and_active_parameters(name, size, total, active):
    row = next(row for row in tables.rows(load_workload(name)) if row["size"] == size)
    assert (round(row["parameters"] / 1e9, 1), round(row["active_parameters"] / 1e9, 1)) == (total, active)


def planned(name, **options):
    return plan(PlanRequest.model_validate({"workload": name, **options})).runs[0]


def test_no_more_ranks_share_the_experts_than_there_are_experts():
    with pytest.raises(UserError, match="8 experts cannot be spread over expert parallel 16"):
        planned(GROK, gpu_type="h100", expert_parallel=16)


def test_people_read_the_parameters():
    """Listings have columns for experts, which those of dense models lack; plans begin with parameters."""

    def told(*command):
        return CliRunner().invoke(app, command, catch_exceptions=False).stdout

    mixture, dense = (told("recipes", "--workload", name) for name in (DEEPSEEK, "llama3.1"))
    assert "671b, 37.6b active" in mixture
    assert ("8.03b" in dense, "3.67m" in dense) == (True, True)
    assert ("etp" in mixture, "etp" in dense) == (True, False)
    assert "etp" in with_experts(["size", "ep", "etp"], [{"ep": None}, {"ep": 8}, {"ep": None}])
    plan_text = told("plan", GROK, "--gpu-type", "gb200", "--gpus", "128")
    assert f"{GROK} 314b (316b, 84.5b active parameters), fp8 on gb200" in plan_text


def test_several_fp8_recipes_on_one_type_of_gpu():
    options = {"gpu_type": "gb200", "gpus": "256"}
    runs = {dtype: planned(DEEPSEEK, dtype=dtype, **options) for dtype in ("bf16", "fp8", "fp8_mx")}
    trained = {dtype: run.performance.trainer for dtype, run in runs.items()}
    assert {dtype: settings.fp8_recipe for dtype, settings in trained.items()} == {
        **{"bf16": None, "fp8": "delayed", "fp8_mx": "mxfp8"}
    }
    assert {settings.recompute_modules for settings in trained.values()} == {("mla_up_proj",)}
    on_h100 = planned(DEEPSEEK, dtype="fp8_ss", gpu_type="h100", gpus="512")
    assert on_h100.recipe.parallelism.tensor == 2
    assert on_h100.performance.trainer.fp8_recipe == "blockwise"
    assert on_h100.performance.trainer.recompute_modules == ("mla_up_proj", "mlp", "moe")
    rates = throughput(on_h100.recipe, 30.0)
    assert rates.peak_tflops_per_gpu == 1979, "that of FP8"


def test_nothing_launches_what_its_image_cannot_train():
    run = planned(GROK, gpu_type="gb200", gpus="128")
    with pytest.raises(UserError) as refused:
        require_trainable([run])
    assert str(refused.value) == (
        "grok1-25.08 314b is trained by Megatron-Bridge, for which image nvcr.io/nvidia/nemo:25.04.00 is too "
        "old: choose one from nemo:26.02 on."
    )
    newer = run.recipe.model_copy(update={"image": "nvcr.io/nvidia/nemo:26.02.01"})
    require_trainable([run.model_copy(update={"recipe": newer})])


def test_a_run_stored_with_a_config_of_nemo_is_read_without_it():
    run = planned(GROK, gpu_type="gb200", gpus="128")
    stored = run.model_dump(mode="json")
    for nemo in (None, {"config": "MixtralConfig8x7B", "fields": {"init_method_std": 0.008}}):
        stored["recipe"]["model"]["nemo"] = nemo
        assert Run.model_validate(stored) == run
        assert Run.model_validate_json(json.dumps(stored)) == run


def placed_refusal(config, name, *changes):
    """Return the line of each sentence that refuses a mixture's file, and the sentence from its field on."""
    path = config / "workloads" / f"{name}.yaml"
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_workload(name)
    told = [sentence.removeprefix(f"{path}, line ") for sentence in str(refused.value).split("\n")]
    return [(int(line), sentence) for line, _, sentence in (line_text.partition(", ") for line_text in told)]


def refusal(config, name, *changes):
    """Return only the sentences."""
    return [sentence for _, sentence in placed_refusal(config, name, *changes)]


MOE = "moe: {num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 32768}"
IN_GROK = "sizes.314b.configurations.0"
MISTAKES = {
    "experts that do not divide": (
        GROK,
        ("expert: 8, expert_tensor: 4", "expert: 16, expert_tensor: 4"),
        "expert: 16, expert_tensor: 4",
        f"{IN_GROK}.parallelism.expert: 8 experts cannot be spread over expert parallel 16: give a number "
        "that divides them.",
    ),
    "ranks of experts that do not divide the GPUs": (
        GROK,
        ("expert: 8, expert_tensor: 4", "expert: 8, expert_tensor: 32"),
        "gpus: [128, 256, 512]",
        f"{IN_GROK}.gpus.0: 128 GPUs are not a multiple of expert × expert tensor × pipeline parallel = 256.",
    ),
    "more experts chosen than there are": (
        GROK,
        ("moe_router_topk: 2", "moe_router_topk: 9"),
        "moe_router_topk: 9",
        "sizes.314b.model.moe.moe_router_topk: 9 of 8 experts cannot be chosen: lower "
        "moe_router_topk, or raise num_moe_experts.",
    ),
    "no layer with experts": (
        DEEPSEEK,
        ("num_dense_layers: 3", "num_dense_layers: 61"),
        "num_dense_layers: 61",
        "sizes.671b.model.moe.num_dense_layers: 61 dense layers of 61 leave none with experts.",
    ),
    "experts in a family that has none": (
        GROK,
        ("architecture: gpt", "architecture: llama"),
        "gated_linear_unit: true",
        "sizes.314b.model.gated_linear_unit: llama models have no choice of MLP, or",
    ),
    "a formula for another family": (
        GROK,
        ("flops_formula: megatron-core", "flops_formula: llama3.1-25.04"),
        "flops_formula: ",
        "flops_formula: formula 'llama3.1-25.04' counts llama models, and this is gpt (314b, tiny): formulas "
        f"that fit are {formulas_for('gpt')}.",
    ),
    "a first stage that leaves the others uneven": (
        DEEPSEEK,
        ("pipeline: 4, context: 1, virtual_pipeline: 1", "pipeline: 4, context: 1, first_stage_layers: 15"),
        "first_stage_layers: 15",
        "sizes.671b.configurations.6.parallelism.first_stage_layers: 61 layers minus these 15 cannot be "
        "spread over the other 3 pipeline stages.",
    ),
    "first and last stage that leave layers to no other": (
        DEEPSEEK,
        (
            "pipeline: 4, context: 1, virtual_pipeline: 1",
            "pipeline: 2, context: 1, first_stage_layers: 30, last_stage_layers: 30",
        ),
        "first_stage_layers: 30",
        "sizes.671b.configurations.6.parallelism.first_stage_layers: 61 layers minus these 60 cannot be "
        "spread over the other 0 pipeline stages.",
    ),
    **{
        f"{name} among Megatron's fields": (
            DEEPSEEK,
            ("mtp_num_layers: 1", f"mtp_num_layers: 1\n      megatron_fields: {{{name}: 8}}"),
            f"megatron_fields: {{{name}",
            f"sizes.671b.model.megatron_fields.{name}: is not given here: give {name} {place}.",
        )
        for name, place in {
            "kv_channels": "beside megatron_fields",
            "moe_router_score_function": "in moe",
            "kv_lora_rank": "in mla",
        }.items()
    },
    "the config of NeMo that older files have": (
        GROK,
        (MOE, f"{MOE}\n      nemo: {{config: MixtralConfig8x7B}}"),
        "nemo: {config",
        "sizes.314b.model.nemo: unknown field, or",
    ),
    "a dtype with another recipe than its own": (
        DEEPSEEK,
        ("dtypes: [fp8], trainer", "dtypes: [fp8, fp8_mx], trainer"),
        "dtypes: [fp8, fp8_mx]",
        "performance.rules.0.trainer.fp8_recipe: 671b in fp8_mx on b200, performance: fp8_recipe is "
        "delayed: dtype fp8_mx means mxfp8, so leave it out, or",
    ),
    "what the run decides among Megatron's fields": (
        GROK,
        (MOE, f"{MOE}\n      megatron_fields: {{expert_model_parallel_size: 8}}"),
        "expert_model_parallel_size: 8",
        "sizes.314b.model.megatron_fields.expert_model_parallel_size: is decided by the run (its "
        "parallelism, number format and settings): leave it out.",
    ),
    "experts' tensor parallelism without the experts'": (
        GROK,
        ("expert: 8, expert_tensor: 4", "expert_tensor: 4"),
        "expert_tensor: 4",
        f"{IN_GROK}.parallelism.expert_tensor: needs the field expert, which is missing: set it, to 1 "
        "if every "
        "rank has all experts.",
    ),
    "an expert that its ranks do not divide": (
        GROK,
        ("moe_ffn_hidden_size: 32768", "moe_ffn_hidden_size: 32770"),
        "expert: 8, expert_tensor: 4",
        f"{IN_GROK}.parallelism.expert_tensor: an expert's moe_ffn_hidden_size of 32770 cannot be "
        "spread over its "
        "tensor parallelism, 4 ranks: set expert_tensor to a divisor of 32770, or",
    ),
    "a head width beside latent attention": (
        DEEPSEEK,
        ("mtp_num_layers: 1", "mtp_num_layers: 1\n      kv_channels: 64"),
        "kv_channels: 64",
        "sizes.671b.model.kv_channels: latent attention takes its widths from mla: leave kv_channels out.",
    ),
    "a window beside latent attention": (
        DEEPSEEK,
        ("mtp_num_layers: 1", "mtp_num_layers: 1\n      window_size: 128"),
        "window_size: 128",
        "sizes.671b.model.window_size: window_size does not go with mla.",
    ),
}
"""By mistake: file, replaced text, replacement, part of the line named first, sentence or its start."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_sentence(config, mistake):
    name, change, line, said = MISTAKES[mistake]
    (number, first), *others = placed_refusal(config, name, change)
    lines = (config / "workloads" / f"{name}.yaml").read_text().splitlines()
    assert number == next(n for n, text in enumerate(lines, 1) if line in text)
    if said.endswith(", or"):
        assert first.startswith(said.removesuffix(", or"))
    else:
        assert (first, others) == (said, [])


def test_experts_are_spread_over_the_models_tensor_parallelism_unless_they_have_their_own(
    config,
):
    narrower = (MOE, MOE.replace("32768", "32766"))
    said = refusal(config, GROK, narrower, ("expert: 8, expert_tensor: 4", "expert: 8"))
    assert said == [
        f"{IN_GROK}.parallelism.expert_tensor: an expert's moe_ffn_hidden_size of 32766 cannot be spread "
        "over its tensor parallelism, 4 ranks: set expert_tensor to a divisor of 32766.",
    ]


def test_a_dense_model_under_a_mixtures_name_is_refused_for_all_that_it_is_not(config):
    assert refusal(config, GROK, (f"      {MOE}\n", "")) == [
        "sizes.314b.model: this model has 45.9 billion parameters, and the name of its size states 314: give "
        "the sizes of that very model, or name the size by what it has.",
        *(
            f"sizes.314b.configurations.{index}.parallelism.expert: is for mixtures of experts, and this "
            "model has none: leave it out."
            for index in range(3)
        ),
    ]


PROXY = """\
    proxies:
      - gpu_types: [h100]
        dtypes: [bf16]
        gpus: [16]
        num_layers: 8
        model: {moe: {num_moe_experts: 64, num_dense_layers: 1}, mtp_num_layers: null}
        parallelism: {tensor: 1, pipeline: 1, context: 1, expert: 16, expert_tensor: 1}
        micro_batch_size: 1
        global_batch_size: {weak: {per_gpu: 8}}
    checkpoint: null
"""


def test_a_proxy_may_differ_in_more_than_its_depth(config):
    path = config / "workloads" / f"{DEEPSEEK}.yaml"
    text = path.read_text()
    whole = text[: text.index("    checkpoint: null")]
    path.write_text(whole + PROXY)
    recipe = planned(DEEPSEEK, size="671b", proxy=True, gpu_type="h100").recipe
    assert (recipe.size, recipe.proxy) == ("671b-proxy", True)
    full = load_workload(DEEPSEEK).sizes["671b"].model
    assert full.moe is not None
    assert recipe.model == full.model_copy(
        update={
            "num_layers": 8,
            "mtp_num_layers": None,
            "moe": full.moe.model_copy(update={"num_moe_experts": 64, "num_dense_layers": 1}),
        }
    )
    counted = count_parameters(recipe.model)
    assert counted is not None
    assert counted.active < counted.total < 30e9
    on_64 = recipe.model_copy(update={"parallelism": recipe.parallelism.model_copy(update={"data": 64})})
    estimate, experts = estimate_memory(on_64, TrainerSettings()), count_expert_weights(recipe.model)
    assert estimate is not None
    # Each GPU has all weights but those of 60 of the 64 experts, and 1/64 and 1/4 of the optimizer's states.
    of_dense, of_experts = (counted.total - experts) * (4 + 12 / 64), experts / 16 * (4 + 12 / 4)
    assert 1e9 * estimate.states_gb == pytest.approx(of_dense + of_experts)

    for old, new, said in (
        (
            "num_moe_experts: 64",
            "num_moe_experts: none",
            "model.moe.num_moe_experts: has to be a whole number",
        ),
        ("num_moe_experts: 64", "num_experts: 64", "model.moe.num_experts: unknown field"),
        ("num_moe_experts: 64", "num_moe_experts: 4", "model.moe.moe_router_topk: 8 of 4 experts"),
        ("num_moe_experts: 64", "num_moe_experts: 24", "parallelism.expert: 24 experts cannot be"),
    ):
        path.write_text(whole + PROXY.replace(old, new))
        assert refusal(config, DEEPSEEK)[0].startswith(f"sizes.671b.proxies.0.{said}")


def test_the_documented_example_is_deepseek_v3():
    block = re.search(r"```yaml\n(model:.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    example = yaml.safe_load(block[1].replace("…", ""))["model"]
    whole = recipes(DEEPSEEK, size="671b")[0].model.model_dump()
    assert ModelShape.model_validate(whole | example).moe is not None
    assert {name: whole[name] for name in ("num_layers", "gated_linear_unit", "mtp_num_layers")} == {
        name: example[name] for name in ("num_layers", "gated_linear_unit", "mtp_num_layers")
    }
