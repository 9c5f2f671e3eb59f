"""Mistakes in a workload's file: each has its sentence, all are told at once, and no other file suffers."""

import copy
import functools
import json
import operator
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from printed_tables import formulas_for

from steptime import settings
from steptime.errors import UserError
from steptime.recipes.flops import formula_names
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload

GOOD = """\
workload: small-1.0
title: Small
document: "A document"
dag_id: small
flops_formula: llama3.1-25.04
experiment: "pretrain_{size}_{gpus}"
defaults: {size: 8b, dtype: bf16}
steps: {max_steps: 50, window: "40:49", time_limit: {weak: "00:30:00"}}
profile: {first_step: 20, last_step: 25, max_steps: 25, ranks: [0, 1]}
nccl_trace: null
gpu_types:
  h100: {gpus_per_node: 8, image: "nvcr.io/nvidia/nemo:25.02.01"}
  b200: {gpus_per_node: 8, image: "nvcr.io/nvidia/nemo:25.07.01"}
performance:
  sources: {launch: "launch.sh"}
  rules:
    - {source: launch, vboost: true}
sizes:
  8b:
    model:
      architecture: llama
      num_layers: 32
      hidden_size: 4096
      ffn_hidden_size: 14336
      num_attention_heads: 32
      num_query_groups: 8
      vocab_size: 128256
      seq_length: 8192
    default_gpus: [16]
    configurations:
      - gpu_types: [h100]
        dtypes: [bf16]
        gpus: [16, 32]
        parallelism: {tensor: 4, pipeline: 1, context: 1}
        tensor_choices: [2, 4]
        micro_batch_size: 1
        global_batch_size: {weak: {per_gpu: 2}}
      - gpu_types: [b200]
        dtypes: [bf16]
        gpus: [16]
        parallelism: {tensor: 1, pipeline: 4, context: 1}
        micro_batch_size: 1
        global_batch_size: {weak: {per_gpu: 2}}
    proxies:
      - gpu_types: [h100]
        dtypes: [bf16]
        gpus: [8]
        num_layers: 4
        parallelism: {tensor: 1, pipeline: 1, context: 1}
        micro_batch_size: 1
        global_batch_size: {weak: {per_gpu: 2}}
"""

FIRST = "sizes.8b.configurations.0"
SECOND = "sizes.8b.configurations.1"

BATCH = "tensor_choices: [2, 4]\n        micro_batch_size: 1\n        global_batch_size: {weak: "

MISTAKES = {
    "a dtype without a peak": (
        "dtypes: [bf16]\n        gpus: [16, 32]",
        "dtypes: [bf16, fp4]\n        gpus: [16, 32]",
        f"line 32, {FIRST}.dtypes.1: dtype 'fp4' has no peak on h100 in config/gpus.yaml, which has bf16, "
        "fp8: add it there with its source, or correct it here.",
    ),
    "a GPU type without a peak": (
        "  b200: {",
        "  h1000: {gpus_per_node: 8, image: null}\n  b200: {",
        "line 13, gpu_types.h1000: unknown GPU type 'h1000' of config/gpus.yaml: did you mean 'h100'? "
        "Valid are: a100, h100, h200, gh200, b200, b300, gb200, gb300, cpu.",
    ),
    "a GPU type of a rule that the file lacks": (
        "gpu_types: [b200]",
        "gpu_types: [h200]",
        f"line 38, {SECOND}.gpu_types.0: unknown GPU type 'h200': did you mean 'h100'? Valid are: "
        "h100, b200.",
    ),
    "heads and query groups": (
        "num_query_groups: 8",
        "num_query_groups: 12",
        "line 26, sizes.8b.model.num_query_groups: 32 attention heads cannot be shared out to 12 query "
        "groups: give a number that divides them.",
    ),
    "heads and tensor parallel": (
        "gpus: [16, 32]\n        parallelism: {tensor: 4,",
        "gpus: [24, 48]\n        parallelism: {tensor: 3,",
        f"line 34, {FIRST}.parallelism.tensor: 32 attention heads cannot be spread over tensor parallel 3: "
        "give a number that divides them.",
    ),
    "heads and a choice of tensor parallel": (
        "tensor_choices: [2, 4]",
        "tensor_choices: [2, 5]",
        f"line 35, {FIRST}.tensor_choices.1: 32 attention heads cannot be spread over tensor parallel 5: "
        "give a number that divides them.",
    ),
    "two rules for one cell": (
        "gpu_types: [b200]",
        "gpu_types: [b200, h100]",
        f"line 38, {SECOND}: 16 h100 in bf16, weak scaling, has a rule already, {FIRST}: "
        "take it out of one of the two.",
    ),
    "a window outside of the run": (
        '"40:49"',
        '"40:50"',
        "line 8, steps.window: 40:50 lies outside of a run of 50 steps, 0 to 49.",
    ),
    "a profile outside of its run": (
        "last_step: 25, max",
        "last_step: 26, max",
        "line 9, profile.last_step: profiling from step 20 to step 26 lies outside of a profiled run of "
        "25 steps: let it end by step 25, or give more max_steps.",
    ),
    "a profile that ends before it begins": (
        "first_step: 20",
        "first_step: 25",
        "line 9, profile.last_step: profiling from step 25 to step 25 ends before it has begun: "
        "let first_step be below last_step.",
    ),
    "no rank to profile": (
        "ranks: [0, 1]",
        "ranks: []",
        "line 9, profile.ranks: has to have entries, 1 or more.",
    ),
    "a default size that there is not": (
        "size: 8b,",
        "size: 9b,",
        "line 7, defaults.size: unknown size '9b': did you mean '8b'? Valid are: 8b.",
    ),
    "a default dtype that no configuration has": (
        "dtype: bf16}",
        "dtype: fp8}",
        "line 7, defaults.dtype: unknown dtype 'fp8' of the default size 8b. Valid are: bf16.",
    ),
    "a default GPU count that no configuration has": (
        "default_gpus: [16]",
        "default_gpus: [16, 64]",
        "line 29, sizes.8b.default_gpus.1: unknown GPU count '64' of 8b: did you mean '32'? Valid are: 16, "
        "32.",
    ),
    "a model that is not what its size's name says": (
        "num_layers: 32",
        "num_layers: 8",
        "line 20, sizes.8b.model: this model has 2.8 billion parameters, and the name of its size states 8: "
        "give the sizes of that very model, or name the size by what it has.",
    ),
    "a formula of another architecture": (
        "flops_formula: llama3.1-25.04",
        "flops_formula: nemotron-h-25.05",
        "line 5, flops_formula: formula 'nemotron-h-25.05' counts nemotron_h models, and this is llama "
        f"(8b): formulas for that are {formulas_for('llama')}.",
    ),
    "a formula that there is not": (
        "flops_formula: llama3.1-25.04",
        "flops_formula: llama3.1-25.4",
        "line 5, flops_formula: unknown formula 'llama3.1-25.4': did you mean 'llama3.1-25.04'? Valid are: "
        f"{', '.join(formula_names())}.",
    ),
    "a name that is no template": (
        "pretrain_{size}",
        "pretrain_{size",
        "line 6, experiment: 'pretrain_{size_{gpus}' is no template: every { needs its }, as in {size}.",
    ),
    "a proxy without layers of its own": (
        "        num_layers: 4\n",
        "",
        "line 45, sizes.8b.proxies.0: a proxy needs its num_layers, or what else of its model is otherwise.",
    ),
    "layers that do not divide": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 4, context: 1, virtual_pipeline: 3}",
        f"line 41, {SECOND}.parallelism: 32 or 34 layers cannot be spread over 12 pipeline stages.",
    ),
    "layers of a proxy that do not divide": (
        "num_layers: 4\n        parallelism: {tensor: 1, pipeline: 1,",
        "num_layers: 5\n        parallelism: {tensor: 1, pipeline: 4,",
        "line 49, sizes.8b.proxies.0.parallelism: 5 or 7 layers cannot be spread over 4 pipeline stages.",
    ),
    "GPUs that are no ranks": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 5, context: 1}",
        f"line 40, {SECOND}.gpus.0: 16 is no multiple of tensor × pipeline × context parallel = 5; and",
    ),
    "another name than the file's": (
        "workload: small-1.0",
        "workload: small-1.1",
        "line 1, workload: 'small-1.1' is not the file's name, 'small-1.0': let the two agree.",
    ),
    "a rule without a source": (
        "source: launch, vboost",
        "source: lunch, vboost",
        "line 15, performance.sources.launch: no rule has this source; and",
    ),
    "a key that there is not": (
        "title: Small",
        "titel: Small",
        "line 2, titel: unknown field, perhaps 'title' is meant.",
    ),
    "a field too many": (
        "tensor_choices: [2, 4]\n",
        "tensor_choices: [2, 4]\n        batch: 3\n",
        f"line 36, {FIRST}.batch: unknown field.",
    ),
    "a key that is there twice": (
        "title: Small",
        "title: Small\ntitle: Large",
        "line 3, title: is given twice; keep one.",
    ),
    "a number in words": (
        "num_layers: 32",
        "num_layers: many",
        'line 22, sizes.8b.model.num_layers: has to be a whole number, not "many".',
    ),
    "a model without layers": (
        "num_layers: 32",
        "num_layers: 0",
        "line 22, sizes.8b.model.num_layers: has to be above 0, not 0.",
    ),
    "an architecture that there is not": (
        "architecture: llama",
        "architecture: lama",
        "line 21, sizes.8b.model.architecture: unknown model family 'lama': did you mean "
        "'llama'? Valid are: llama, nemotron4, nemotron_h, gpt, megatron_bridge.",
    ),
    "a rank that is profiled twice": (
        "ranks: [0, 1]",
        "ranks: [0, 1, 0]",
        "line 9, profile.ranks: rank 0 is there twice: give each once.",
    ),
    "no micro batch": (
        "tensor_choices: [2, 4]\n        micro_batch_size: 1",
        "tensor_choices: [2, 4]\n        micro_batch_size: 0",
        f"line 36, {FIRST}.micro_batch_size: has to be above 0, not 0.",
    ),
    "a batch that does not divide": (
        "tensor_choices: [2, 4]\n        micro_batch_size: 1",
        "tensor_choices: [2, 4]\n        micro_batch_size: 3",
        f"line 37, {FIRST}.global_batch_size.weak: 32 on 16 GPUs is no multiple of micro batch "
        "size 3 × data parallel 4.",
    ),
    "a batch that does not grow in whole": (
        BATCH + "{per_gpu: 2}",
        BATCH + "{per_gpu: 0.3}",
        f"line 37, {FIRST}.global_batch_size.weak: 0.3 per GPU on 16 GPUs is no whole global batch size.",
    ),
    "both kinds of batch": (
        BATCH + "{per_gpu: 2}",
        BATCH + "{per_gpu: 2, fixed: 3}",
        f"line 37, {FIRST}.global_batch_size.weak: give either per_gpu or fixed.",
    ),
    "a kind of scaling that there is not": (
        "tensor_choices: [2, 4]\n        micro_batch_size: 1\n        global_batch_size: {weak:",
        "tensor_choices: [2, 4]\n        micro_batch_size: 1\n        global_batch_size: {week:",
        f"line 37, {FIRST}.global_batch_size.week: has to be 'weak' or 'strong', not \"week\".",
    ),
    "a time that YAML reads as a number": (
        '{weak: "00:30:00"}',
        "{weak: 1:00:00}",
        "line 8, steps.time_limit.weak: has to be text, not 3600 (put it in quotes).",
    ),
    "a time that is none": (
        '{weak: "00:30:00"}',
        '{weak: "half an hour"}',
        "line 8, steps.time_limit.weak: time limit 'half an hour' is not of the form HH:MM:SS "
        "with more than no time, as in 00:30:00.",
    ),
    "a window that ends before": (
        '"40:49"',
        '"49:40"',
        "line 8, steps.window: window '49:40' ends before it begins: write the smaller step first.",
    ),
    "a window that is none": (
        '"40:49"',
        '"40-49"',
        "line 8, steps.window: window '40-49' is not of the form FIRST:LAST, two global steps such as 35:44.",
    ),
    "a placeholder that there is not": (
        "pretrain_{size}",
        "pretrain_{seize}",
        "line 6, experiment: unknown placeholder 'seize': did you mean 'size'? Valid are: size, "
        "dtype, gpus, tp, pp, cp, vp, ep, etp, mbs, gbs.",
    ),
    "a DAG that Airflow would not take": (
        "dag_id: small",
        "dag_id: Small-1",
        'line 4, dag_id: has to be small letters, digits and _, as in llama31, not "Small-1".',
    ),
    "a kind of log that there is not": (
        "title: Small",
        "title: Small\nstep_log: line",
        "line 3, step_log: has to be 'lines' or 'bar', not \"line\".",
    ),
    "a rank below 0": (
        "ranks: [0, 1]",
        "ranks: [-1]",
        "line 9, profile.ranks.0: has to be at least 0, not -1.",
    ),
    "GPUs per node in words": (
        "h100: {gpus_per_node: 8",
        "h100: {gpus_per_node: none",
        'line 12, gpu_types.h100.gpus_per_node: has to be a whole number, not "none".',
    ),
    "a type of GPU without an image": (
        ', image: "nvcr.io/nvidia/nemo:25.07.01"}',
        "}",
        "line 13, gpu_types.b200.image: is missing.",
    ),
    "a setting that there is not": (
        "vboost: true}",
        "trainer: {fp8_recip: delayed}}",
        "line 17, performance.rules.0.trainer.fp8_recip: unknown field.",
    ),
    "a setting with another value": (
        "vboost: true}",
        "trainer: {fp8_recipe: late}}",
        "line 17, performance.rules.0.trainer.fp8_recipe: has to be 'delayed', 'current', "
        "'blockwise', 'mxfp8' or 'nvfp4', not \"late\".",
    ),
    "a variable that is a number": (
        "vboost: true}",
        "environment: {X: 1}}",
        "line 17, performance.rules.0.environment.X: has to be text, not 1 (put it in quotes).",
    ),
    "a mode that there is not": (
        "vboost: true}",
        "modes: [checkpoint], vboost: true}",
        "line 17, performance.rules.0.modes.0: has to be 'performance', 'checkpoint_save', "
        "'checkpoint_load', 'profile' or 'nccl_trace', not \"checkpoint\".",
    ),
    "a kind of cluster that there is not": (
        "vboost: true}",
        "cluster_kinds: [slum], vboost: true}",
        "line 17, performance.rules.0.cluster_kinds.0: unknown kind of cluster 'slum': did you "
        "mean 'slurm'? Valid are: local, runai, slurm.",
    ),
    "a rule for a size that there is not": (
        "vboost: true}",
        "sizes: [9b], vboost: true}",
        "line 17, performance.rules.0.sizes: unknown size '9b': did you mean '8b'? Valid are: 8b.",
    ),
    "a kind of parallelism that there is not": (
        "parallelism: {tensor: 1, pipeline: 4, context: 1}",
        "parallelism: {tensor: 1, pipelines: 4, context: 1}",
        f"line 41, {SECOND}.parallelism.pipelines: unknown field, perhaps 'pipeline' is meant.",
    ),
    "parts of a stage where there is one stage": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 1, context: 1, virtual_pipeline: 2}",
        f"line 41, {SECOND}.parallelism.virtual_pipeline: 2 parts of each stage need more than "
        "one stage: raise pipeline, or leave this out.",
    ),
    "expert parallel without experts": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 1, context: 1, expert: 4}",
        f"line 41, {SECOND}.parallelism.expert: is for mixtures of experts, and this model has "
        "none: leave it out.",
    ),
    "experts that a Llama has not": (
        "seq_length: 8192",
        "seq_length: 8192\n      moe: {num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 14336}",
        "line 29, sizes.8b.model.moe: llama models have no experts: leave moe out.",
    ),
    "a GPU count that is there twice": (
        "gpus: [16, 32]",
        "gpus: [16, 16]",
        f"line 33, {FIRST}.gpus: GPU counts must ascend, each once.",
    ),
    "a GPU count in quotes": (
        "gpus: [16, 32]",
        'gpus: ["16", 32]',
        f'line 33, {FIRST}.gpus.0: has to be a whole number, not "16".',
    ),
    "a sequence that context does not divide": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 1, context: 3}",
        f"line 40, {SECOND}.gpus.0: 16 is no multiple of tensor × pipeline × context parallel = 3.",
    ),
    "checkpoints on a GPU type that the file lacks": (
        "    proxies:\n",
        "    checkpoint: {size_gb: 1, minimum_gpus_to_save: {h101: 16}, minimum_gpus_to_load: {h100: 16}}\n"
        "    proxies:\n",
        "line 44, sizes.8b.checkpoint.minimum_gpus_to_save.h101: unknown GPU type 'h101': did "
        "you mean 'h100'? Valid are: h100, b200.",
    ),
}
"""By what is wrong: what to replace in GOOD by what, and the sentence; those that end in 'and' begin so."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped configuration, which is the one that is read."""
    config = tmp_path / "config"
    shutil.copytree(settings.config_dir(), config)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    return config


def refusal(config: Path, text: str) -> list[str]:
    """What is said of a workload's file, a sentence an entry, without the file's path; all begin with it."""
    path = config / "workloads" / "small-1.0.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_workload("small")
    sentences = str(refused.value).split("\n")
    assert all(sentence.startswith(f"{path}, ") for sentence in sentences), sentences
    return [sentence.removeprefix(f"{path}, ") for sentence in sentences]


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_the_good_one_loads(config: Path) -> None:
    (config / "workloads" / "small-1.0.yaml").write_text(GOOD)
    assert load_workload("small").size_names() == ("8b", "8b-proxy")


def test_each_mistake_has_its_sentence(config: Path) -> None:
    wrong = {}
    for name, (old, new, sentence) in MISTAKES.items():
        told = refusal(config, changed(GOOD, old, new))
        beginning = sentence.removesuffix("; and")
        if told != [sentence] and not (sentence != beginning and told[0].startswith(beginning)):
            wrong[name] = (told, sentence)
    assert not wrong, "\n".join(f"{name}: {told}" for name, told in wrong.items())


def test_a_dense_stand_in_under_the_name_of_a_mixture_is_refused(config: Path) -> None:
    """Grok-1 has 8 experts, of which a token passes 2: a Llama of one expert's width has half its flops."""
    text = GOOD.replace("8b", "314b").replace("tensor_choices: [2, 4]", "tensor_choices: [2, 8]")
    for dense, grok in (
        ("num_layers: 32", "num_layers: 64"),
        ("hidden_size: 4096\n", "hidden_size: 6144\n"),
        ("ffn_hidden_size: 14336", "ffn_hidden_size: 32768"),
        ("num_attention_heads: 32", "num_attention_heads: 48"),
    ):
        text = changed(text, dense, grok)
    assert refusal(config, text) == [
        "line 20, sizes.314b.model: this model has 45.9 billion parameters, and the name of its size states "
        "314: give the sizes of that very model, or name the size by what it has."
    ]


def test_mistakes_of_every_kind_are_told_at_once(config: Path) -> None:
    """Of one file: a wrong type, a field too many, and what only the rest of the file shows."""
    text = GOOD
    for old, new in (
        ("title: Small", "title: 5\ntopic: x"),
        ("hidden_size: 4096\n", "hidden_size: -1\n"),
        ('window: "40:49"', 'window: "40:99"'),
        ("size: 8b,", "size: 9b,"),
        ("gpu_types: [b200]", "gpu_types: [b300]"),
        ("tensor_choices: [2, 4]", "tensor_choices: [2, four]"),
        ("        gpus: [8]\n", "        gpus: [8]\n        gpus: [9]\n"),
    ):
        text = changed(text, old, new)
    assert [sentence.partition(": ")[0] for sentence in refusal(config, text)] == [
        "line 2, title",
        "line 3, topic",
        "line 8, defaults.size",
        "line 9, steps.window",
        "line 24, sizes.8b.model.hidden_size",
        "line 36, sizes.8b.configurations.0.tensor_choices.1",
        "line 39, sizes.8b.configurations.1.gpu_types.0",
        "line 49, sizes.8b.proxies.0.gpus",
    ]


def test_five_mistakes_are_five_sentences(config: Path) -> None:
    five = (
        *("a dtype without a peak", "heads and query groups", "a profile outside of its run"),
        *("a default size that there is not", "a formula of another architecture"),
    )
    text = GOOD
    for name in five:
        text = changed(text, *MISTAKES[name][:2])
    expected = sorted((MISTAKES[name][2] for name in five), key=lambda told: int(told.split()[1].strip(",")))
    assert refusal(config, text) == expected


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything that stands in a file, as it is read."""
    if place:
        yield place
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        yield from places(below, (*place, key))


@pytest.mark.long
def test_whatever_is_of_a_wrong_type_is_all_that_is_told(config: Path) -> None:
    """What needs it to be judged is left out: there is one mistake, and it is told where it stands."""
    content = yaml.safe_load(GOOD)
    small = copy.deepcopy(content["sizes"]["8b"]) | {"steps": content["steps"], "proxies": []}
    content["sizes"]["7b"] = small | {"configurations": small["configurations"][:1]}
    elsewhere = []
    for place in places(content):
        text = json.loads(json.dumps(content))
        *above, last = place
        inside = functools.reduce(operator.getitem, above, text)
        inside[last] = True if isinstance(inside[last], dict) else {"wrong": 1}
        told = refusal(config, json.dumps(text, indent=1))
        where = ".".join(map(str, place))
        if not all(sentence.partition(", ")[2].startswith(where) for sentence in told):
            elsewhere.append(f"{where}: {told}")
        if any(words in sentence for sentence in told for words in PYDANTICS):
            elsewhere.append(f"{where}, not in our words: {told}")
    assert not elsewhere, "\n".join(elsewhere)


PYDANTICS = ("Input", "should", "Unable", "must be", "type=")
"""Words of its messages, which none of ours has."""


def test_what_has_to_have_an_entry_is_not_empty(config: Path) -> None:
    content = yaml.safe_load(GOOD)
    refused = set()
    for place in places(content):
        text = json.loads(json.dumps(content))
        *above, last = place
        inside = functools.reduce(operator.getitem, above, text)
        if not isinstance(inside[last], list | dict) or place in (("gpu_types",), ("sizes",)):
            continue
        inside[last] = type(inside[last])()
        (config / "workloads" / "small-1.0.yaml").write_text(json.dumps(text, indent=1))
        try:
            load_workload("small")
        except UserError as error:
            if "has to have entries, 1 or more" in str(error):
                refused.add(".".join(map(str, place)))
    assert refused == {
        *("profile.ranks", "sizes.8b.default_gpus", "sizes.8b.configurations"),
        *(
            f"sizes.8b.{rule}.{field}"
            for rule in ("configurations.0", "configurations.1", "proxies.0")
            for field in ("gpu_types", "dtypes", "gpus", "global_batch_size")
        ),
    }


OF_PERFORMANCE = (
    ('launch: "launch.sh"}', 'launch: "launch.sh", spare: "x"}'),
    ("  rules:\n", "  rules:\n    - {source: launch, at_least: {tensor: 8}, vboost: true}\n"),
    ("vboost: true}\nsizes", "gpu_types: [b200], trainer: {fp8_recipe: delayed}}\nsizes"),
)
"""A source too many, a rule for no row, and settings that cannot go together."""
UNUSED = "line 15, performance.sources.spare: no rule has this source."
FOR_NO_ROW = "line 17, performance.rules.0: the rule holds for no row of this workload."
MISFIT = (
    "line 18, performance.rules.1.trainer.fp8_recipe: 8b in bf16 on b200, performance: fp8_recipe is "
    "delayed: rows of dtype fp8 need one, and no others."
)


def test_rules_of_performance_are_checked_beside_the_rest(config: Path) -> None:
    text = changed(changed(GOOD, "size: 8b,", "size: 9b,"), "num_query_groups: 8", "num_query_groups: 12")
    for old, new in OF_PERFORMANCE:
        text = changed(text, old, new)
    of_heads = MISTAKES["heads and query groups"][2].replace("line 26", "line 27")
    of_default = MISTAKES["a default size that there is not"][2]
    assert refusal(config, text) == [of_default, UNUSED, FOR_NO_ROW, MISFIT, of_heads]


def test_what_follows_from_a_row_that_cannot_be_read_is_left_out(config: Path) -> None:
    """The rule may be for that very row; the row of which more is known is judged by all rules."""
    text = GOOD
    for old, new in (*OF_PERFORMANCE, ("tensor: 4,", "tensor: 4.5,")):
        text = changed(text, old, new)
    found = refusal(config, text)
    assert found[:2] == [UNUSED, MISFIT]
    assert [sentence.partition(": ")[0] for sentence in found[2:]] == [f"line 35, {FIRST}.parallelism.tensor"]
    misnamed = changed(text, "gpu_types: [b200], trainer", "gpu_types: [b2000], trainer")
    [_, name, _] = refusal(config, misnamed)
    assert name.startswith("line 18, performance.rules.1.gpu_types: unknown GPU type 'b2000'")


RULE = "    - {source: launch, vboost: true}\n"


def test_an_unknown_name_in_a_rule_hides_no_settings_that_cannot_be(config: Path) -> None:
    """But for rows that the misspelt rule may be meant for: what they have nobody knows."""
    unknown = "    - {source: launch, gpu_types: [b2000], dtypes: [bf16], vboost: true}\n"
    wrong = "    - {source: launch, trainer: {recompute_modules: [mlp]}}\n"
    elsewhere = unknown.replace("vboost", "at_least: {tensor: 64}, vboost")
    told = refusal(config, changed(GOOD, RULE, RULE + wrong + elsewhere))
    assert [sentence.partition(": ")[0] for sentence in told] == [
        "line 18, performance.rules.1.trainer.recompute_modules",
        "line 19, performance.rules.2.gpu_types",
    ]
    [name] = refusal(config, changed(GOOD, RULE, RULE + wrong + unknown))
    assert name.startswith("line 19, performance.rules.2.gpu_types: unknown GPU type 'b2000'")


def test_all_settings_that_cannot_be_are_named_with_the_rule_that_has_them(config: Path) -> None:
    rules = (
        "    - {source: launch, trainer: {fp8_recipe: delayed, tp_comm_overlap_cfg: userbuffers_x}}\n"
        "    - {source: launch, trainer: {recompute_method: block}}\n"
    )
    told = refusal(config, changed(GOOD, RULE, RULE + rules))
    assert [sentence.partition(": ")[0] for sentence in told] == [
        "line 18, performance.rules.1.trainer.fp8_recipe",
        "line 18, performance.rules.1.trainer.tp_comm_overlap_cfg",
        "line 19, performance.rules.2.trainer.recompute_method",
    ]


@pytest.mark.parametrize("part", ["gpu_types", "sizes"])
def test_a_part_that_cannot_be_read_hides_nothing_that_is_wrong_elsewhere(config: Path, part: str) -> None:
    content = yaml.safe_load(GOOD)
    content["flops_formula"], content["steps"]["window"] = "llama9", "40:99"
    content["experiment"] = "pretrain_{sise}"
    content["sizes"]["8b"]["model"]["num_query_groups"] = 12
    content[part] = 5
    told = refusal(config, yaml.safe_dump(content, sort_keys=False))
    found = [sentence.partition(": ")[0].partition(", ")[2] for sentence in told]
    of_sizes = [] if part == "sizes" else ["sizes.8b.model.num_query_groups"]
    assert found == ["flops_formula", "experiment", "steps.window", part, *of_sizes]


def test_a_broken_workload_hides_no_other(config: Path) -> None:
    (config / "workloads" / "small-1.0.yaml").write_text(changed(GOOD, "size: 8b,", "size: 9b,"))
    assert plan(PlanRequest(workload="llama3.1")).runs
    command = [str(Path(sys.executable).with_name("steptime")), "recipes", "--format", "json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 1
    assert {row["recipe"] for row in json.loads(listed.stdout)["recipes"]} == {
        path.stem for path in (config / "workloads").glob("*.yaml") if path.stem != "small-1.0"
    }
    assert listed.stderr.startswith(
        f"steptime: {config}/workloads/small-1.0.yaml, line 7, defaults.size: unknown size '9b'"
    )


def test_a_broken_gpu_type_hides_no_other(config: Path) -> None:
    """What has no peak that can be read is not run; everything else is listed and planned."""
    gpus = config / "gpus.yaml"
    gpus.write_text(gpus.read_text().replace("{bf16: 2250, ", "{bf16: fast, "))
    assert load_workload("nemotron4-340b").gpu_types.keys() >= {"b200", "h100"}
    assert plan(PlanRequest(workload="llama3.1")).runs
    cluster = config / "clusters" / "local.yaml"
    cluster.write_text(cluster.read_text().replace("gpu_type: cpu", "gpu_type: b200"))
    with pytest.raises(UserError, match=r"gpus\.yaml, line \d+, b200\.peak_tflops\.bf16: .*not \"fast\""):
        plan(PlanRequest(workload="nemotron4-340b"))


def test_a_document_that_profiles_ranks_beyond_the_gpus_is_no_fault_of_ours(config: Path) -> None:
    path = config / "workloads" / "llama3.1-25.04.yaml"
    path.write_text(path.read_text().replace("ranks: [0, 1, 2, 3, 4, 5, 6, 7]", "ranks: [8, 9]"))
    with pytest.raises(UserError) as refused:
        plan(PlanRequest(workload="llama3.1", gpus="1,2", profile=True))
    assert str(refused.value) == (
        "profile: the document of llama3.1-25.04 profiles the ranks 8, 9, and a run on 1 GPUs has the ranks "
        "0 to 0: name some of these as profile_ranks."
    )


def test_what_a_document_does_not_have_is_told_with_those_that_do(config: Path) -> None:
    """Of the workloads that are left there are such with a profile, and none with a trace."""
    for path in (config / "workloads").iterdir():
        path.unlink()
    (config / "workloads" / "small-1.0.yaml").write_text(GOOD)
    without = changed(
        GOOD, "profile: {first_step: 20, last_step: 25, max_steps: 25, ranks: [0, 1]}", "profile: null"
    )
    other = without.replace("small-1.0", "other-1.0").replace("dag_id: small", "dag_id: other")
    (config / "workloads" / "other-1.0.yaml").write_text(other)
    for asked, said in (
        (
            PlanRequest(workload="other", profile=True, gpu_type="h100"),
            "the document of other-1.0 has no profiling; workloads that have it: small-1.0.",
        ),
        (
            PlanRequest(workload="small", nccl_trace=True, gpu_type="h100"),
            "the document of small-1.0 has no NCCL trace; workloads that have one: none.",
        ),
    ):
        with pytest.raises(UserError) as refused:
            plan(asked)
        assert str(refused.value) == said
    (config / "workloads" / "small-1.0.yaml").unlink()
    (config / "workloads" / "other-1.0.yaml").unlink()
    with pytest.raises(UserError, match=r"workloads: holds no workload \(\*\.yaml\)\."):
        list_workloads()


def test_gpu_types_that_cannot_be_read_are_a_problem_of_their_own(config: Path) -> None:
    """The workload is not blamed for a dtype without a peak."""
    (config / "gpus.yaml").write_text("- h100\n")
    (config / "workloads" / "small-1.0.yaml").write_text(GOOD)
    assert load_workload("small").size_names() == ("8b", "8b-proxy")


@pytest.mark.parametrize(("saves", "loads"), [("h100", "b200"), ("b200", "h100"), ("b200", "b200")])
def test_checkpoints_that_are_only_saved_or_only_loaded_are_tested_at_no_scale(
    config: Path, saves: str, loads: str
) -> None:
    limits = f"minimum_gpus_to_save: {{{saves}: 16}}, minimum_gpus_to_load: {{{loads}: 16}}"
    text = changed(GOOD, "    proxies:\n", f"    checkpoint: {{size_gb: 1, {limits}}}\n    proxies:\n")
    (config / "workloads" / "small-1.0.yaml").write_text(text)
    for asked in ({"checkpoint": True}, {"save_checkpoint": True}, {"load_checkpoint": "/x"}):
        with pytest.raises(UserError) as refused:
            plan(PlanRequest.model_validate({"workload": "small", "gpu_type": "h100", "gpus": "16", **asked}))
        assert str(refused.value) == (
            f"checkpoints of small-1.0 8b on h100 are tested at no scale; GPU types that are: {loads}."
        )


CLUSTERS = {
    # a cluster's file, what is asked for there, and what is said
    "name: local\nkind: local\ngpu_type: h101\n": (
        *(
            {"workload": "small"},
            "local.yaml, line 3, gpu_type: unknown GPU type 'h101': did you mean 'h100'?",
        ),
    ),
    "name: local\nkind: [local]\ngpu_type: h100\n": (
        *({"workload": "small"}, "local.yaml, line 2, kind: has to be text."),
    ),
    "name: local\nkind: local\ngpu_type: gb200\n": (
        *(
            {"workload": "small"},
            "small-1.0 does not run on gb200, which cluster 'local' has: name a cluster that has ",
        ),
    ),
    "name: local\nkind: local\ngpu_type: cpu\n": (
        *({"workload": "small", "size": "8b"}, "small-1.0 8b does not run on cpu, which cluster 'local' has"),
    ),
}


def test_a_cluster_that_a_workload_does_not_run_on_is_told(config: Path) -> None:
    (config / "workloads" / "small-1.0.yaml").write_text(GOOD)
    for text, (asked, said) in CLUSTERS.items():
        (config / "clusters" / "local.yaml").write_text(text)
        with pytest.raises(UserError) as refused:
            plan(PlanRequest.model_validate(asked))
        assert said in str(refused.value)
    (config / "clusters" / "local.yaml").write_text("name: local\nkind: local\ngpu_type: b200\nmore: 1\n")
    assert plan(PlanRequest(workload="small")).runs[0].recipe.gpu_type == "b200"


UNEVEN = {
    # of the first configuration, where GPUs are no ranks its batch is not judged
    "{weak: {per_gpu: 2}}\n      - gpu_types: [b200]": (
        "{weak: {fixed: 13}}\n      - gpu_types: [b200]",
        ["13 on 16 GPUs is no multiple of micro batch size 1 × data parallel 4."],
    ),
    "gpus: [16, 32]": (
        "gpus: [16, 30]",
        ["30 is no multiple of tensor × pipeline × context parallel = 4."],
    ),
}


def test_of_an_uneven_configuration_the_first_cause_is_told(config: Path) -> None:
    for old, (new, said) in UNEVEN.items():
        told = refusal(config, changed(GOOD, old, new))
        assert [sentence.partition(": ")[2] for sentence in told] == said
