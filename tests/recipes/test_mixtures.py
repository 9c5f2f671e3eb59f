"""Mixtures of experts, from files alone: public documents, cell by cell, and mistakes in their files.

The trainer does not launch them as upstream does, so the files are data of the tests, and not shipped.
"""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from printed_tables import config_with, formulas_for
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import UserError
from steptime.recipes import tables
from steptime.recipes.flops import Counted, model_flops, recipe_flops
from steptime.recipes.models import Recipe, TrainerSettings
from steptime.recipes.parameters import count_parameters
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.published import load_reference, published_performance
from steptime.recipes.workloads import load_workload
from steptime.results.metrics import throughput
from steptime.staging.checking import require_trainable
from trainer.errors import TrainerError
from trainer.run import read_run

MIXTURES = Path(__file__).parents[1] / "data" / "mixtures"
NAMES = tuple(sorted(path.stem for path in (MIXTURES / "workloads").iterdir()))
GROK, DEEPSEEK = "grok1-25.08", "deepseek-v3-25.08"
QWEN, LLAMA = "qwen3-25.12", "llama4-25.08"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped configuration, with the files of the mixtures in it."""
    folder = config_with(MIXTURES, tmp_path / "config")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))
    return folder


def recipes(name: str, **cell: Any) -> list[Recipe]:
    found = [recipe for recipe, _ in load_workload(name).recipes()]
    return [one for one in found if all(getattr(one, field) == value for field, value in cell.items())]


@pytest.mark.parametrize("name", NAMES)
def test_published_rows_are_the_documents(name: str) -> None:
    with (MIXTURES / "references" / "configurations.csv").open(newline="") as file:
        printed = Counter(tuple(row.items()) for row in csv.DictReader(file) if row["recipe"] == name)
    ours = Counter(
        tuple((column, str(cell)) for column, cell in row.items())
        for row in tables.published_rows(load_workload(name))
    )
    assert ours == printed


def test_what_runs_differs_from_what_is_printed_where_the_documents_misprint() -> None:
    differing = set()
    for name in NAMES:
        workload = load_workload(name)
        for (recipe, _), as_printed in zip(workload.recipes(), tables.published_rows(workload), strict=True):
            runs = tables.row(recipe)
            where = (name, recipe.gpu_type, recipe.gpus)
            cells = ((key, as_printed[key], runs[key]) for key in ("dp", "ga"))
            differing |= {(*where, *cell) for cell in cells if cell[1] != cell[2]}
    assert differing == {
        # Context parallelism is forgotten.
        *((GROK, "h100", gpus, "dp", gpus // 32, gpus // 64) for gpus in (512, 1024, 2048)),
        *((GROK, "h100", gpus, "ga", 64, 128) for gpus in (512, 1024, 2048)),
        (DEEPSEEK, "gb200", 128, "ga", 64, 32),
        (LLAMA, "h100", 1024, "dp", 128, 256),
    }


def test_the_documents_flops_to_the_last_operation() -> None:
    (grok,) = {recipe.model for recipe in recipes(GROK)}
    assert model_flops(grok, GROK) == 8192 * (53_150_220_288 + 463_856_467_968 + 4_728_029_184)
    (llama,) = {recipe.model for recipe in recipes(LLAMA)}
    assert model_flops(llama, LLAMA) == 6 * 8192 * (
        48 * (2 * 5120 * 5120 * 6 // 5 + 5120 * 8192 + 3 * 16384 * 5120) + 202048 * 5120
    )
    (deepseek,) = {recipe.model for recipe in recipes(DEEPSEEK)}
    per_layer = 7168 * 1536 + 1536 * 192 * 128 + 7168 * 64 + 7168 * 512 + 512 * 256 * 128 + 128 * 128 * 7168
    mlps = 3 * 7168 * (3 * 18432 + 59 * (2048 + 8 * 2048))
    products = 62 * per_layer + mlps + 2 * 129280 * 7168 + 2 * 7168 * 7168
    assert model_flops(deepseek, DEEPSEEK) == 6 * 4096 * products + 6 * 62 * 320 * 128 * 4096**2 // 2


def test_published_numbers_reproduce() -> None:
    compared: set[tuple[str, str]] = set()
    for name in NAMES:
        decimals = load_reference(name).decimals
        for recipe in recipes(name):
            if (row := published_performance(recipe)) is None:
                continue
            assert row.step_time_s is not None
            rates = throughput(recipe, row.step_time_s, logged_tflops=row.tflops_per_gpu)
            if row.tokens_per_s is not None:
                assert round(rates.tokens_per_s or 0) == row.tokens_per_s
                compared.add((name, "tokens"))
            if row.mfu_percent is not None:
                assert round(rates.mfu_percent or 0, decimals.mfu_percent) == row.mfu_percent
                compared.add((name, "MFU"))
            if row.days_per_1t_tokens is not None:
                days = round(rates.days_per_1t_tokens or 0, decimals.days_per_1t_tokens)
                assert days == row.days_per_1t_tokens
                compared.add((name, "days"))
            if row.tflops_per_gpu is not None and name in (DEEPSEEK, QWEN):
                assert rates.model_tflops_per_gpu == pytest.approx(row.tflops_per_gpu, abs=0.05)
                compared.add((name, "TFLOPS"))
    assert compared == {
        *((DEEPSEEK, number) for number in ("tokens", "MFU", "days", "TFLOPS")),
        *((LLAMA, number) for number in ("tokens", "MFU", "days")),
        (GROK, "MFU"),
        (QWEN, "TFLOPS"),
    }


def test_what_megatron_bridge_logs_can_be_counted() -> None:
    """Causal attention of heads that are twice as wide as the hidden size, and the chosen experts."""
    (recipe,) = recipes(QWEN, gpu_type="h100", gpus=256, dtype="bf16")
    row = published_performance(recipe)
    assert row is not None
    assert row.step_time_s is not None
    counted = Counted(mlp_matrices=3, attention="causal", experts=True)
    tflops = counted.flops(recipe.model) * 2048 / row.step_time_s / 256 / 1e12
    assert tflops == pytest.approx(row.tflops_per_gpu, abs=0.02)
    of_a_step_time = throughput(recipe, row.step_time_s)
    assert (of_a_step_time.mfu_percent, of_a_step_time.flops_per_sample) == (None, None)
    assert recipe_flops(recipe).per_sample is None


def test_a_formula_of_no_document_counts_what_a_model_has() -> None:
    for name in (GROK, DEEPSEEK, LLAMA):
        (model,) = {recipe.model for recipe in recipes(name)}
        assert model_flops(model, "megatron-core") == model_flops(model, name)
    described = load_workload("llama3.1").sizes["8b"].model
    dense = described.model_copy(update={"architecture": "gpt", "gated_linear_unit": True})
    scores = dense.num_layers * 2 * dense.seq_length**2 * dense.hidden_size
    assert model_flops(dense, "megatron-core") == model_flops(described, "llama3.1-25.04") - 3 * scores


def test_a_number_by_another_formula_is_that_formulas(config: Path) -> None:
    """Grok's logged TFLOPS are NeMo's for Mixtral: full attention, and a vocabulary of 32,000."""
    counted = "{mlp_matrices: 3, experts: true, vocab_size: 32000}"
    mixtral = f"\nmixtral: {{source: NeMo, architectures: [gpt], counted: {counted}}}\n"
    (config / "flops.yaml").write_text((config / "flops.yaml").read_text() + mixtral)
    (recipe,) = recipes(GROK, gpu_type="gb200", gpus=256, dtype="bf16")
    row = published_performance(recipe)
    assert row is not None
    assert row.step_time_s is not None
    flops = model_flops(recipe.model, "mixtral")
    assert round(flops / 1e15, 4) == 4.4033
    assert flops * 512 / row.step_time_s / 256 / 1e12 == pytest.approx(row.tflops_per_gpu, abs=0.1)


def test_llama_4s_logged_tflops_are_of_twice_as_many_gpus() -> None:
    """NeMo logs them by its formula of Llama 3, full attention and dense, with that model's vocabulary."""
    (recipe,) = recipes(LLAMA, gpu_type="gb200", gpus=128, dtype="bf16")
    row, model = published_performance(recipe), recipe.model
    assert row is not None
    assert row.step_time_s is not None
    dense = {"architecture": "llama", "moe": None, "gated_linear_unit": None, "kv_channels": None}
    flops = model_flops(model.model_copy(update=dense | {"vocab_size": 128_256}), "llama3.1-25.04")
    tflops = flops * recipe.global_batch_size / row.step_time_s / 1e12
    assert round(tflops / 128, 2) == 1057.06
    assert tflops / 256 == pytest.approx(row.tflops_per_gpu, rel=0.002)


@pytest.mark.parametrize(
    ("name", "size", "total", "active"),
    [
        (GROK, "314b", 316.5, 84.5),
        (DEEPSEEK, "671b", 671.0, 37.6),
        (LLAMA, "400b", 400.7, 17.2),
        (QWEN, "30b-a3b", 30.5, 3.4),
        (QWEN, "235b-a22b", 235.1, 22.2),
    ],
)
def test_total_and_active_parameters(name: str, size: str, total: float, active: float) -> None:
    row = next(row for row in tables.rows(load_workload(name)) if row["size"] == size)
    assert (round(row["parameters"] / 1e9, 1), round(row["active_parameters"] / 1e9, 1)) == (total, active)


def planned(name: str, **asked: Any) -> Any:
    return plan(PlanRequest.model_validate({"workload": name, **asked})).runs[0]


def test_people_read_the_parameters() -> None:
    """In listings with the columns of experts, which those of dense models are without; and above a plan."""

    def told(*command: str) -> str:
        return CliRunner().invoke(app, command, catch_exceptions=False).stdout

    mixture, dense = (told("recipes", "--workload", name) for name in (DEEPSEEK, "llama3.1"))
    assert "671b, 37.6b active" in mixture
    assert ("8.03b" in dense, "3.67m" in dense) == (True, True)
    assert ("etp" in mixture, "etp" in dense) == (True, False)
    planned_one = told("plan", QWEN, "--size", "30b-a3b", "--gpu-type", "gb200", "--gpus", "8")
    assert f"{QWEN} 30b-a3b (30.5b, 3.35b active parameters), bf16 on gb200" in planned_one


def test_a_plan_of_a_mixture() -> None:
    run = planned(GROK, gpu_type="gb200", gpus="128")
    assert run.experiment == "pretrain_grok1_314b_fp8_gpus128_tp4_pp1_cp1_vp1_ep8_etp4_mbs1_gbs256"
    assert (run.recipe.parallelism.expert, run.recipe.parallelism.world_size) == (8, 128)
    assert run.model_flops == pytest.approx(4.27e15, rel=1e-3)
    assert run.performance.trainer == TrainerSettings(fp8_recipe="delayed", cuda_graphs=True)


def test_several_fp8_recipes_on_one_type_of_gpu() -> None:
    asked = {"gpu_type": "gb200", "gpus": "256"}
    runs = {dtype: planned(DEEPSEEK, dtype=dtype, **asked) for dtype in ("bf16", "fp8", "fp8_mx")}
    trained = {dtype: run.performance.trainer for dtype, run in runs.items()}
    assert {dtype: one.fp8_recipe for dtype, one in trained.items()} == {
        **{"bf16": None, "fp8": "delayed", "fp8_mx": "mxfp8"}
    }
    assert {one.recompute_modules for one in trained.values()} == {("mla_up_proj",)}
    on_h100 = planned(DEEPSEEK, dtype="fp8_ss", gpu_type="h100", gpus="512")
    assert on_h100.recipe.parallelism.tensor == 2
    assert on_h100.performance.trainer.fp8_recipe == "blockwise"
    assert on_h100.performance.trainer.recompute_modules == ("mla_up_proj", "mlp", "moe")
    rates = throughput(on_h100.recipe, 30.0)
    assert rates.peak_tflops_per_gpu == 1979, "that of FP8"


def test_nothing_launches_what_nothing_trains(tmp_path: Path) -> None:
    run = planned(GROK, gpu_type="gb200", gpus="128")
    with pytest.raises(UserError) as refused:
        require_trainable([run])
    assert str(refused.value) == (
        "grok1-25.08 314b can be planned and measured, and not be trained yet: its model does not name the "
        "config of NeMo to build it from: give nemo (docs/adding-a-workload.md)."
    )
    path = tmp_path / "run.json"
    path.write_text(run.model_dump_json())
    with pytest.raises(TrainerError, match="does not name the config of NeMo"):
        read_run(path)


def placed_refusal(config: Path, name: str, *changes: tuple[str, str]) -> list[tuple[int, str]]:
    """What is said of a mixture's file with changes: the line, and the sentence from its field on."""
    path = config / "workloads" / f"{name}.yaml"
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_workload(name)
    told = [sentence.removeprefix(f"{path}, line ") for sentence in str(refused.value).split("\n")]
    return [(int(line), sentence) for line, _, sentence in (one.partition(", ") for one in told)]


def refusal(config: Path, name: str, *changes: tuple[str, str]) -> list[str]:
    """The sentences alone."""
    return [sentence for _, sentence in placed_refusal(config, name, *changes)]


MOE = "moe: {num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 32768}"
IN_GROK = "sizes.314b.configurations.0"
FOR_LATENT_EXPERTS = formulas_for("gpt", "experts", "latent_attention", "further_tokens")
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
        f"{IN_GROK}.gpus.0: 128 is no multiple of expert × expert tensor × pipeline parallel = 256.",
    ),
    "an expert that does not divide": (
        GROK,
        ("moe_ffn_hidden_size: 32768", "moe_ffn_hidden_size: 32767"),
        "expert: 8, expert_tensor: 4",
        f"{IN_GROK}.parallelism.expert_tensor: an expert's moe_ffn_hidden_size of 32767 cannot be spread "
        "over expert tensor parallel 4: give a number that divides it.",
    ),
    "expert tensor parallel alone": (
        GROK,
        ("expert: 8, expert_tensor: 4", "expert_tensor: 4"),
        ", expert_tensor: 4}",
        f"{IN_GROK}.parallelism.expert_tensor: goes with expert, which is missing: give it, 1 for all "
        "experts on each rank.",
    ),
    "more experts chosen than there are": (
        GROK,
        ("moe_router_topk: 2", "moe_router_topk: 9"),
        "moe_router_topk: 9",
        "sizes.314b.model.moe.moe_router_topk: 9 of 8 experts cannot be chosen: give fewer, or more "
        "num_moe_experts.",
    ),
    "a router that there is not": (
        GROK,
        ("moe_router_topk: 2", "moe_router_topk: 2, moe_router_score_function: tanh"),
        "tanh",
        "sizes.314b.model.moe.moe_router_score_function: has to be 'softmax' or 'sigmoid', not \"tanh\".",
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
    "a family that leaves open what its MLP is": (
        GROK,
        ("      gated_linear_unit: true\n", ""),
        "    model:",
        "sizes.314b.model: gpt models have a gated MLP or none: give gated_linear_unit.",
    ),
    "two kinds of attention": (
        DEEPSEEK,
        ("gated_linear_unit: true", "gated_linear_unit: true\n      kv_channels: 128"),
        "kv_channels: 128",
        "sizes.671b.model.kv_channels: latent attention has widths of its own, in mla: leave kv_channels "
        "out.",
    ),
    "a formula that counts another attention": (
        GROK,
        ("flops_formula: grok1-25.08", "flops_formula: deepseek-v3-25.08"),
        "flops_formula: ",
        "flops_formula: formula 'deepseek-v3-25.08' counts latent attention, and this gpt model has none "
        f"(314b): formulas for that are {formulas_for('gpt', 'experts')}.",
    ),
    "a formula of dense models": (
        GROK,
        ("flops_formula: grok1-25.08", "flops_formula: llama3.1-25.04"),
        "flops_formula: ",
        "flops_formula: formula 'llama3.1-25.04' counts llama models, and this is gpt (314b): formulas for "
        f"that are {formulas_for('gpt', 'experts')}.",
    ),
    "stages that do not divide, however layers are counted": (
        DEEPSEEK,
        ("virtual_pipeline: 2", "virtual_pipeline: 3"),
        "virtual_pipeline: 3",
        "sizes.671b.configurations.0.parallelism: 61 or 63 or 64 layers cannot be spread over 24 pipeline "
        "stages, or",
    ),
    "a first stage that leaves the others uneven": (
        DEEPSEEK,
        ("pipeline: 4, context: 1, virtual_pipeline: 1", "pipeline: 4, context: 1, first_stage_layers: 15"),
        "first_stage_layers: 15",
        "sizes.671b.configurations.6.parallelism.first_stage_layers: 61 layers less these 15 cannot be "
        "spread over the other 3 pipeline stages.",
    ),
    "first and last stage that leave none for the others": (
        DEEPSEEK,
        ("pipeline: 4, context: 1, virtual_pipeline: 1", "pipeline: 4, context: 1, last_stage_layers: 61"),
        "last_stage_layers: 61",
        "sizes.671b.configurations.6.parallelism.last_stage_layers: 61 layers less these 61 cannot be spread "
        "over the other 3 pipeline stages.",
    ),
    "first and last of two stages that leave layers over": (
        LLAMA,
        ("virtual_pipeline: 12", "first_stage_layers: 24, last_stage_layers: 23"),
        "last_stage_layers: 23",
        "sizes.400b.configurations.0.parallelism.first_stage_layers: 48 layers less these 47 cannot be "
        "spread over the other 0 pipeline stages.",
    ),
    "a first stage that its parts do not divide": (
        LLAMA,
        ("virtual_pipeline: 12", "virtual_pipeline: 12, first_stage_layers: 18"),
        "first_stage_layers: 18",
        "sizes.400b.configurations.0.parallelism.first_stage_layers: 18 layers cannot be spread over 12 "
        "parts of the stage, or",
    ),
    "a last stage of one stage": (
        GROK,
        ("{tensor: 4, pipeline: 1,", "{tensor: 4, pipeline: 1, last_stage_layers: 60,"),
        "last_stage_layers: 60",
        "sizes.314b.configurations.0.parallelism.last_stage_layers: is for a pipeline of several stages: "
        "leave it out, or raise pipeline.",
    ),
    "further tokens whose loss has no weight": (
        DEEPSEEK,
        ("mtp_num_layers: 1", "mtp_num_layers: 1\n      nemo: {config: DeepSeekV3Config}"),
        "nemo: {config",
        "sizes.671b.model.nemo.fields: lacks mtp_loss_scaling_factor, which NeMo has no default of: give the "
        "weight of the further tokens' loss, such as 0.1.",
    ),
    "a dtype with another recipe than its own": (
        DEEPSEEK,
        ("dtypes: [fp8], trainer", "dtypes: [fp8, fp8_mx], trainer"),
        "dtypes: [fp8, fp8_mx]",
        "performance.rules.0.trainer.fp8_recipe: 671b in fp8_mx on b200, performance: fp8_recipe is "
        "delayed: dtype fp8_mx means mxfp8, so leave it out, or",
    ),
    "parts to recompute without its kind": (
        GROK,
        ("trainer: {cuda_graphs: true}", "trainer: {recompute_modules: [moe]}"),
        "trainer: {recompute_modules: [moe]}",
        "performance.rules.1.trainer.recompute_modules: 314b in fp8 on gb200, performance: recompute_modules "
        "is for recompute_granularity: selective, or",
    ),
    "a formula without latent attention": (
        DEEPSEEK,
        ("flops_formula: deepseek-v3-25.08", "flops_formula: llama4-25.08"),
        "flops_formula: ",
        "flops_formula: formula 'llama4-25.08' counts no latent attention, and this gpt model has some "
        f"(671b): formulas for that are {FOR_LATENT_EXPERTS}.",
    ),
    "a dtype without a peak": (
        DEEPSEEK,
        ("dtypes: [fp8_ss]", "dtypes: [nvfp4]"),
        "dtypes: [nvfp4]",
        "sizes.671b.configurations.3.dtypes.0: dtype 'nvfp4' has no peak on h100 in config/gpus.yaml, "
        "which has bf16, fp8: add it there with its source, or correct it here.",
    ),
    "a config that is no name of a class": (
        GROK,
        (MOE, f"{MOE}\n      nemo: {{config: os.system}}"),
        "os.system",
        'sizes.314b.model.nemo.config: has to be the name of a class, as in MixtralConfig, not "os.system".',
    ),
    "a size among the fields of the config": (
        GROK,
        (MOE, f"{MOE}\n      nemo: {{config: MixtralConfig, fields: {{hidden_size: 4096}}}}"),
        "fields: {hidden_size: 4096}",
        "sizes.314b.model.nemo.fields.hidden_size: is a size of the model: give hidden_size beside nemo, or "
        "in moe or mla.",
    ),
    "what the run decides among the fields of the config": (
        GROK,
        (MOE, f"{MOE}\n      nemo: {{config: MixtralConfig, fields: {{expert_model_parallel_size: 8}}}}"),
        "expert_model_parallel_size: 8",
        "sizes.314b.model.nemo.fields.expert_model_parallel_size: is decided by the run (its parallelism, "
        "number format and settings): leave it out.",
    ),
    "a placeholder that there is not": (
        GROK,
        ("{etp}", "{ept}"),
        "{ept}",
        "experiment: unknown placeholder 'ept': did you mean 'ep'? Valid are: size, dtype, gpus, tp, pp, "
        "cp, vp, ep, etp, mbs, gbs.",
    ),
    "a column that no table has": (
        GROK,
        ("printed: {data_parallel: 16", "printed: {data_paralel: 16"),
        "data_paralel",
        "sizes.314b.configurations.2.printed.data_paralel: unknown field.",
    ),
}
"""By what is wrong: the file, what to replace in it by what, a part of the first line that is named, and the
sentence, or how it begins ('or')."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_sentence(config: Path, mistake: str) -> None:
    name, change, line, said = MISTAKES[mistake]
    (number, first), *others = placed_refusal(config, name, change)
    lines = (config / "workloads" / f"{name}.yaml").read_text().splitlines()
    assert number == next(n for n, text in enumerate(lines, 1) if line in text)
    if said.endswith(", or"):
        assert first.startswith(said.removesuffix(", or"))
    else:
        assert (first, others) == (said, [])


def test_a_dense_model_under_a_mixtures_name_is_refused_for_all_that_it_is_not(config: Path) -> None:
    assert refusal(config, GROK, (f"      {MOE}\n", "")) == [
        "flops_formula: formula 'grok1-25.08' counts experts, and this gpt model has none (314b): formulas "
        f"for that are {formulas_for('gpt')}.",
        "sizes.314b.model: this model has 45.9 billion parameters, and the name of its size states 314: give "
        "the sizes of that very model, or name the size by what it has.",
        *(
            f"sizes.314b.configurations.{index}.parallelism.expert: is for mixtures of experts, and this "
            "model has none: leave it out."
            for index in range(5)
        ),
    ]


def test_a_name_may_say_the_active_parameters(config: Path) -> None:
    path = config / "workloads" / f"{GROK}.yaml"
    text = path.read_text().replace("314b", "314b-a86b")
    path.write_text(text)
    assert load_workload(GROK).size_names() == ("314b-a86b",)
    path.write_text(text.replace("314b-a86b", "314b-a40b"))
    with pytest.raises(UserError, match=r"84.5 billion active parameters, and the name of .* states 40:"):
        load_workload(GROK)


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


def test_a_proxy_may_differ_in_more_than_its_depth(config: Path) -> None:
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

    for old, new, said in (
        (
            "num_moe_experts: 64",
            "num_moe_experts: none",
            "model.moe.num_moe_experts: has to be a whole number",
        ),
        ("num_moe_experts: 64", "num_experts: 64", "model.moe.num_experts: unknown field"),
        (
            "num_moe_experts: 64",
            "num_moe_experts: 4",
            "model.moe.moe_router_topk: 8 of 4 experts",
        ),
        (
            "num_moe_experts: 64",
            "num_moe_experts: 24",
            "parallelism.expert: 24 experts cannot be",
        ),
    ):
        path.write_text(whole + PROXY.replace(old, new))
        assert refusal(config, DEEPSEEK)[0].startswith(f"sizes.671b.proxies.0.{said}")


def test_a_configuration_runs_the_whole_model(config: Path) -> None:
    asked = "gpus: [128, 256, 512]\n        num_layers: 32"
    assert refusal(config, GROK, ("gpus: [128, 256, 512]", asked)) == [
        f"{IN_GROK}.num_layers: is for proxies: a configuration runs the whole model."
    ]


def test_a_run_of_a_mixture_comes_back_as_it_was() -> None:
    run = planned(DEEPSEEK, gpu_type="h100", gpus="512")
    assert type(run).model_validate_json(run.model_dump_json()) == run
    assert json.loads(run.model_dump_json())["recipe"]["model"]["moe"]["num_moe_experts"] == 256
