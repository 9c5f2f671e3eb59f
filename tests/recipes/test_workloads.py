"""The shipped workload files against the documents' tables, and broken ones against their complaints."""

import csv
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from printed_tables import workloads_on

from steptime import settings
from steptime.errors import UserError
from steptime.recipes import tables
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workload_file import BatchRule, Configuration, ModelParallelism
from steptime.recipes.workloads import dag_id, list_workloads, load_workload

CONFIGURATION_ROWS = settings.config_dir() / "references" / "configurations.csv"


def test_published_rows_are_the_documents() -> None:
    with CONFIGURATION_ROWS.open(newline="") as file:
        reader = csv.DictReader(file)
        printed = Counter(tuple(row.items()) for row in reader)
    ours = Counter(
        tuple((column, "" if cell is None else str(cell)) for column, cell in row.items())
        for name in list_workloads()
        for row in tables.published_rows(load_workload(name))
    )
    assert ours == printed


def test_what_nemotron4_runs_differs_from_what_is_printed_in_one_place() -> None:
    """It prints no virtual pipeline for 340b, and its launch script runs 12."""
    differing = {
        (recipe.size, rule.printed.virtual_pipeline, recipe.parallelism.virtual_pipeline)
        for recipe, rule in load_workload("nemotron4-25.04").recipes()
        if rule.printed and rule.printed.virtual_pipeline
    }
    assert differing == {("340b", "NA", 12)}


@pytest.mark.parametrize("name", workloads_on("cpu"))
def test_what_runs_on_the_cpu_is_a_tiny_size(name: str) -> None:
    tiny = [recipe for recipe, _ in load_workload(name).recipes() if recipe.size == "tiny"]
    assert {recipe.gpus for recipe in tiny} == {1, 2, 4}
    assert {recipe.scaling for recipe in tiny} == {"weak", "strong"}
    assert {(recipe.gpu_type, recipe.dtype, recipe.image) for recipe in tiny} == {("cpu", "fp32", None)}
    strong = {recipe.global_batch_size for recipe in tiny if recipe.scaling == "strong"}
    assert len(strong) == 1


@pytest.mark.parametrize("name", list_workloads())
def test_names_and_dags(name: str) -> None:
    workload = load_workload(name)
    assert (workload.workload, f"{workload.family}-{workload.release}") == (name, name)
    assert dag_id(name) == workload.dag_id
    assert [other for other in list_workloads() if dag_id(other) == workload.dag_id] == [name]


@pytest.mark.parametrize(
    ("name", "full"), [("nemotron4-340b", "nemotron4-340b-25.12"), ("Grok1", "grok1-25.08")]
)
def test_a_name_without_a_release_is_the_newest_one(name: str, full: str) -> None:
    assert load_workload(name).workload == full


DEFAULT = "default_release: true # llama3.1 means this one, which has a size for the CPU\n"


def test_a_family_may_mean_an_older_release(edit: Callable[[str, str], Path]) -> None:
    """As the newest may have no size for the default cluster: `llama3.1` goes on to mean what it meant."""
    path = edit(DEFAULT, DEFAULT)
    newer = path.with_name("llama3.1-99.01.yaml")
    text = path.read_text().replace(DEFAULT, "")
    text = text.replace("llama3.1-25.04\ntitle", "llama3.1-99.01\ntitle")
    newer.write_text(text.replace("dag_id: llama31", "dag_id: llama31_9901"))
    assert load_workload("llama3.1").workload == "llama3.1-25.04"
    assert load_workload("llama3.1-99.01").dag_id == "llama31_9901"
    with pytest.raises(UserError) as refused:
        plan(PlanRequest(workload="llama3.1", size="9b"))
    others = [name for name in list_workloads() if name.startswith("llama3.1-")][1:]
    assert "llama3.1-99.01" in others
    assert str(refused.value).endswith(f" 'llama3.1' is llama3.1-25.04; there is {', '.join(others)}, too.")

    path.write_text(path.read_text().replace(DEFAULT, ""))
    os.utime(path, ns=(1, 1))
    assert load_workload("llama3.1").workload == "llama3.1-99.01"
    for each in (path, newer):
        each.write_text(each.read_text().replace("\ntitle:", "\ndefault_release: true\ntitle:"))
        os.utime(each, ns=(2, 2))
    with pytest.raises(UserError) as refused:
        load_workload("llama3.1")
    assert str(refused.value) == f"{path} and {newer} both have default_release: true: leave it in one."


def test_unknown_workload_lists_the_known() -> None:
    with pytest.raises(UserError) as refusal:
        load_workload("lama3.1")
    assert "did you mean 'llama3.1-" in str(refusal.value)
    assert all(name in str(refusal.value) for name in list_workloads())


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Replaces text in a copy of the shipped llama3.1-25.04.yaml, which is then the one that is loaded."""
    config = tmp_path / "config"
    shutil.copytree(settings.config_dir(), config)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    path = config / "workloads" / "llama3.1-25.04.yaml"

    def replace(old: str, new: str) -> Path:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return path

    return replace


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "num_layers: 32",
            "num_layers: 0",
            "sizes.8b.model.num_layers: has to be above 0, not 0",
        ),
        (
            "num_layers: 32",
            "layers: 32",
            "sizes.8b.model.layers: unknown field, perhaps 'num_layers' is meant",
        ),
        ("dag_id: llama31", "dag_id: llama31\ntopic: x", "topic: unknown field"),
        (
            "llama3.1-25.04\nexp",
            "llama3.2-25.04\nexp",
            "flops_formula: unknown formula 'llama3.2-25.04': did",
        ),
        ("size: 8b", "size: 9b", "defaults.size: unknown size '9b': did you mean '8b'?"),
        ("_{gpus}", "_{gpu}", "experiment: unknown placeholder 'gpu': did you mean 'gpus'?"),
        ("[8, 16, 32, 64, 128]", "[8, 32, 16]", "sizes.8b.configurations.0.gpus: GPU counts must ascend"),
        ("[8, 16, 32, 64, 128]", "[7, 16]", "sizes.8b.configurations.0.gpus.0: 7 is no multiple of"),
        ("{per_gpu: 16}", "{per_gpu: 16, fixed: 8}", "global_batch_size.weak: give either per_gpu or fixed"),
        ("{per_gpu: 16}", "{per_gpu: 0.3}", "global_batch_size.weak: 0.3 per GPU on 8 GPUs is no whole"),
        ("{per_gpu: 16}", "{fixed: 130}", "global_batch_size.weak: 130 on 8 GPUs is no multiple of"),
        ("{weak: {per_gpu: 16}}", "{strong: {fixed: 2048}}", "global_batch_size.strong: the steps of this"),
        ("{weak: {per_gpu: 16}}", "{linear: {per_gpu: 16}}", "has to be 'weak' or 'strong'"),
        (
            "gpu_types: [h100]",
            "gpu_types: [h101]",
            "gpu_types.0: unknown GPU type 'h101': did you mean 'h100'?",
        ),
        (
            "pipeline: 4, context: 2, virtual_pipeline: 5",
            "pipeline: 4, context: 2, virtual_pipeline: 7",
            "28 pip",
        ),
        ("- num_layers: 8\n        gpu", "- gpu", "sizes.405b.proxies.0: a proxy needs its num_layers"),
        ('window: "10:19"', 'window: "10:20"', "sizes.tiny.steps.window: 10:20 lies outside of a run of 20"),
        (
            'window: "10:19"',
            "window: 10:19",
            "sizes.tiny.steps.window: has to be text, not 619",
        ),
        ('"00:15:00"', '"15 minutes"', "nccl_trace.time_limit: time limit '15 minutes' is not of the form"),
        (
            "expert_parallel: NA",
            "expert_parallel: true",
            "configurations.0.printed.expert_parallel: has to be ",
        ),
        (
            "workload: llama3.1-25.04",
            "workload: llama3.1",
            "workload: has to be a family and a release, as in llama3.1-25.04, not ",
        ),
        ("comm_overlap_callback: true", "comm_overlap: true", "rules.5.trainer.comm_overlap: unknown field"),
        (
            "gc_interval: 100",
            'gc_interval: "100"',
            "trainer.gc_interval: has to be a whole number, not",
        ),
        (
            "fp8_recipe: delayed",
            "fp8_recipe: fast",
            "fp8_recipe: has to be 'delayed', 'current', 'block",
        ),
        ('_ENABLE: "0"', "_ENABLE: 0", "environment.NCCL_NVLS_ENABLE: has to be text, not 0"),
        ("NVTE_FLASH_ATTN:", "PYTHONPATH:", "environment: 'PYTHONPATH' is set by the job script"),
        ("source: pretrain, vboost: true", "source: pretrain", "rules.2: give at least one of trainer, env"),
        ("source: launch", "source: lunch", "performance.rules.0.source: unknown source 'lunch': did you"),
        ("  rules:", '    spare: "x"\n  rules:', "performance.sources.spare: no rule has this source"),
        ("sizes: [70b, 405b]", "sizes: [71b]", "rules.6.sizes: unknown size '71b': did you mean '70b'?"),
        ("dtypes: [fp8], trainer", "dtypes: [fp4], trainer", "rules.4.dtypes: unknown dtype 'fp4'"),
        ("sizes: [70b, 405b]", "gpu_types: [b200]", "rules.6.gpu_types: unknown GPU type 'b200'"),
        ("sizes: [70b, 405b]", "dtypes: [fp32]", "performance.rules.6: the rule holds for no row of this"),
        (
            "modes: [checkpoint_save, ",
            "modes: [save, ",
            "modes.0: has to be 'performance', 'checkpoint",
        ),
        (
            "dtypes: [fp8], trainer",
            "trainer",
            "trainer.fp8_recipe: 8b in bf16 on h100, performance: fp8_recipe is",
        ),
        (
            "wgrad_deferral_limit: 22",
            "wgrad_deferral_limit: null",
            "70b in bf16 on h100, performance: defer_",
        ),
        (
            "comm_overlap_callback: true",
            "comm_overlap_callback: false",
            "tp_comm_overlap needs comm_overlap_",
        ),
        (
            "sizes: [70b, 405b]",
            "sizes: [8b]",
            "8b in bf16 on h100, performance: tp_comm_overlap needs tensor",
        ),
    ],
)
def test_broken_file_names_line_and_field(
    edit: Callable[[str, str], Path], old: str, new: str, complaint: str
) -> None:
    path = edit(old, new)
    with pytest.raises(UserError) as refusal:
        load_workload(path.stem)
    sentence = str(refusal.value)
    assert sentence.startswith(f"{path}, line ")
    assert complaint in sentence
    line = int(sentence.removeprefix(f"{path}, line ").partition(",")[0])
    assert line > 1 or "missing" in sentence


def test_file_and_name_must_agree(edit: Callable[[str, str], Path]) -> None:
    path = edit("workload: llama3.1-25.04", "workload: llama3.1-25.05")
    with pytest.raises(UserError, match=r"'llama3\.1-25\.05' is not the file's name"):
        load_workload("llama3.1")
    path.rename(path.with_name("llama3.1-25.05.yaml"))
    assert load_workload("llama3.1").workload == "llama3.1-25.05"


def test_a_changed_file_is_read_again(edit: Callable[[str, str], Path]) -> None:
    assert load_workload("llama3.1").title == "Llama 3.1"
    edit("title: Llama 3.1", "title: Changed")
    assert load_workload("llama3.1").title == "Changed"


def test_comments_tell_where_a_document_and_its_script_differ() -> None:
    text = (settings.config_dir() / "workloads" / "nemotron4-25.04.yaml").read_text()
    assert yaml.safe_load(text)["sizes"]["340b"]["configurations"][0]["printed"]["virtual_pipeline"] == "NA"
    assert "prints VP as NA, its launch script runs 12" in text


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    context=st.sampled_from([1, 2]),
    micro_batch=st.integers(1, 4),
    accumulation=st.integers(1, 32),
    replicas=st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True).map(sorted),
)
def test_a_rule_per_gpu_makes_the_same_accumulation_at_every_scale(
    *, tensor: int, pipeline: int, context: int, micro_batch: int, accumulation: int, replicas: list[int]
) -> None:
    """Weak scaling: the batch a replica runs stays, so GBS / (MBS × DP) does."""
    replica = tensor * pipeline * context
    rule = Configuration(
        gpu_types=("h100",),
        dtypes=("bf16",),
        gpus=tuple(replica * count for count in replicas),
        parallelism=ModelParallelism(tensor=tensor, pipeline=pipeline, context=context),
        micro_batch_size=micro_batch,
        global_batch_size={"weak": BatchRule(per_gpu=micro_batch * accumulation / replica)},
    )
    for gpus in rule.gpus:
        batch, data = rule.global_batch_size["weak"].at(gpus), rule.parallelism_on(gpus, tensor).data
        assert gpus == data * replica
        assert batch == micro_batch * data * accumulation


@given(fixed=st.integers(1, 4096), gpus=st.integers(1, 4096))
def test_a_fixed_rule_is_the_same_at_every_scale(fixed: int, gpus: int) -> None:
    assert BatchRule(fixed=fixed).at(gpus) == fixed
