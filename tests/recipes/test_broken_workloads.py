"""Mistakes in a workload's file: each has its sentence, all are reported at once, no other file suffers."""

import json

import pytest
from called import steptime
from printed_tables import formulas_for

from steptime.errors import UserError
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workload

GOOD = """\
workload: small-1.0
title: Small
document: "A document"
# A model of 8 billion parameters.
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
    "a number format that only newer GPUs have": (
        "dtypes: [bf16]\n        gpus: [16, 32]",
        "dtypes: [bf16, fp8_mx]\n        gpus: [16, 32]",
        f"line 32, {FIRST}.dtypes.1: dtype 'fp8_mx' has no peak on h100 in config/gpus.yaml, which has bf16, "
        "fp8: add it there with its source, or correct it here.",
    ),
    "a GPU type without a peak": (
        "  b200: {",
        "  h1000: {gpus_per_node: 8, image: null}\n  b200: {",
        "line 13, gpu_types.h1000: unknown GPU type 'h1000' of config/gpus.yaml: did you mean 'h100'? "
        "Valid are: a100, h100, h200, gh200, b200, b300, gb200, gb300, vr200, cpu.",
    ),
    "an image without a version": (
        "nvidia/nemo:25.07.01",
        "nvidia/nemo",
        "line 13, gpu_types.b200.image: image 'nvcr.io/nvidia/nemo' names no version: add its tag, like "
        "nvcr.io/nvidia/nemo:25.04.01, so that the run can be repeated.",
    ),
    "an architecture that nobody has": (
        "architecture: llama",
        "architecture: bert",
        "line 21, sizes.8b.model.architecture: unknown model family 'bert'. Valid are: llama, nemotron4, "
        "nemotron_h, gpt, megatron_bridge.",
    ),
    "heads and query groups": (
        "num_query_groups: 8",
        "num_query_groups: 12",
        "line 26, sizes.8b.model.num_query_groups: 32 attention heads cannot be divided among 12 query "
        "groups: give a number that divides them.",
    ),
    "heads and their width": (
        "hidden_size: 4096",
        "hidden_size: 4100",
        "line 23, sizes.8b.model.hidden_size: a hidden_size of 4100 cannot be divided among 32 attention "
        "heads: correct one, or give kv_channels.",
    ),
    "heads and tensor parallel": (
        "gpus: [16, 32]\n        parallelism: {tensor: 4,",
        "gpus: [24, 48]\n        parallelism: {tensor: 3,",
        f"line 34, {FIRST}.parallelism.tensor: 32 attention heads cannot be spread over tensor parallel 3: "
        "give a number that divides them.",
    ),
    "two rules for one cell": (
        "gpu_types: [b200]",
        "gpu_types: [b200, h100]",
        f"line 38, {SECOND}: 16 h100 in bf16, weak scaling, is already in the rule {FIRST}: "
        "remove it from one of the two.",
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
    "a default size that there is not": (
        "size: 8b,",
        "size: 9b,",
        "line 7, defaults.size: unknown size '9b': did you mean '8b'? Valid are: 8b.",
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
        f"(8b): formulas that fit are {formulas_for('llama')}.",
    ),
    "a formula that there is not": (
        "flops_formula: llama3.1-25.04",
        "flops_formula: llama3.2-25.04",
        "line 5, flops_formula: unknown formula 'llama3.2-25.04': did you mean 'llama3.1-25.04'?; and",
    ),
    "a name without a release": (
        "workload: small-1.0",
        "workload: small",
        "line 1, workload: has to be a family and a release, as in llama3.1-25.04, not; and",
    ),
    "a scaling without its time limit": (
        BATCH + "{per_gpu: 2}",
        BATCH.replace("weak", "strong") + "{fixed: 2048}",
        f"line 37, {FIRST}.global_batch_size.strong: time_limit in the steps of this; and",
    ),
    "a variable of the job script's": (
        "vboost: true}",
        "environment: {PYTHONPATH: x}}",
        "line 17, performance.rules.0.environment: 'PYTHONPATH' is set by the job script; and",
    ),
    "layers that do not divide": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 4, context: 1, virtual_pipeline: 3}",
        f"line 41, {SECOND}.parallelism: 32 or 34 layers cannot be spread over 12 pipeline stages.",
    ),
    "GPUs that are no ranks": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 5, context: 1}",
        f"line 40, {SECOND}.gpus.0: 16 GPUs are not a multiple of tensor × pipeline × context parallel = 5; "
        "and",
    ),
    "a rule without a source": (
        "source: launch, vboost",
        "source: lunch, vboost",
        "line 15, performance.sources.launch: no rule has this source; and",
    ),
    "a batch that does not divide": (
        "tensor_choices: [2, 4]\n        micro_batch_size: 1",
        "tensor_choices: [2, 4]\n        micro_batch_size: 3",
        f"line 37, {FIRST}.global_batch_size.weak: 32 on 16 GPUs is not a multiple of micro batch "
        "size 3 × data parallel 4.",
    ),
    "a batch that does not grow in whole": (
        BATCH + "{per_gpu: 2}",
        BATCH + "{per_gpu: 0.3}",
        f"line 37, {FIRST}.global_batch_size.weak: 0.3 per GPU on 16 GPUs gives a global batch size "
        "of 4.8, which has to be a whole number above 0: correct per_gpu.",
    ),
    "a batch without end": (
        BATCH + "{per_gpu: 2}",
        BATCH + "{per_gpu: .inf}",
        f"line 37, {FIRST}.global_batch_size.weak.per_gpu: has to be a finite number, not .inf; and",
    ),
    "a placeholder with a format": (
        '"pretrain_{size}_{gpus}"',
        '"pretrain_{size:d}_{gpus}"',
        "line 6, experiment: 'size' cannot be formatted further: write {size}.",
    ),
    "an experiment that cannot name jobs": (
        '"pretrain_{size}_{gpus}"',
        '"pretrain/{size}"',
        "line 6, experiment: 'pretrain/{size}' cannot name jobs: use only letters, digits, '.', '_', '-' and "
        "placeholders, begin with a letter, a digit or a placeholder, at most 150 in all.",
    ),
    "a time that YAML reads as a number": (
        '{weak: "00:30:00"}',
        "{weak: 1:00:00}",
        "line 8, steps.time_limit.weak: 1:00:00 is a number in base 60 to YAML: write a decimal number, "
        "or put it in quotes.",
    ),
    "a placeholder that there is not": (
        "pretrain_{size}",
        "pretrain_{seize}",
        "line 6, experiment: unknown placeholder 'seize': did you mean 'size'? Valid are: size, "
        "dtype, gpus, tp, pp, cp, vp, ep, etp, mbs, gbs.",
    ),
    "a rule for a size that there is not": (
        "vboost: true}",
        "sizes: [9b], vboost: true}",
        "line 17, performance.rules.0.sizes: unknown size '9b': did you mean '8b'? Valid are: 8b.",
    ),
    "expert parallel without experts": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 1, context: 1, expert: 4}",
        f"line 41, {SECOND}.parallelism.expert: is for mixtures of experts, and this model has "
        "none: leave it out.",
    ),
    "checkpoints on a GPU type that the file lacks": (
        "    proxies:\n",
        "    checkpoint: {minimum_gpus_to_save: {h101: 16}, minimum_gpus_to_load: {h100: 16}}\n"
        "    proxies:\n",
        "line 44, sizes.8b.checkpoint.minimum_gpus_to_save.h101: unknown GPU type 'h101': did "
        "you mean 'h100'? Valid are: h100, b200.",
    ),
    "a default dtype that no row has": (
        "dtype: bf16}\nsteps",
        "dtype: fp8}\nsteps",
        "line 7, defaults.dtype: unknown dtype 'fp8' of the default size 8b. Valid are: bf16.",
    ),
    "a default GPU count that no row has": (
        "default_gpus: [16]",
        "default_gpus: [16, 24]",
        "line 29, sizes.8b.default_gpus.1: unknown GPU count '24' of 8b: did you mean '16'? Valid "
        "are: 16, 32.",
    ),
    "GPU counts that descend": (
        "gpus: [16, 32]",
        "gpus: [32, 16]",
        f"line 33, {FIRST}.gpus: GPU counts must be in ascending order, each once.",
    ),
    "a GPU count twice": (
        "gpus: [16, 32]",
        "gpus: [16, 16]",
        f"line 33, {FIRST}.gpus: GPU counts must be in ascending order, each once.",
    ),
    "a rank twice": (
        "ranks: [0, 1]",
        "ranks: [0, 1, 1]",
        "line 9, profile.ranks: rank 1 is named twice: name each once.",
    ),
    "a brace that is not closed": (
        '"pretrain_{size}_{gpus}"',
        '"pretrain_{size"',
        "line 6, experiment: 'pretrain_{size' is no template: every { needs its }, as in {size}.",
    ),
    "a profile that ends as it begins": (
        "first_step: 20",
        "first_step: 25",
        "line 9, profile.last_step: profiling from step 25 to step 25 ends before it has begun: let "
        "first_step "
        "be below last_step.",
    ),
    "a batch by two rules": (
        BATCH + "{per_gpu: 2}",
        BATCH + "{per_gpu: 2, fixed: 32}",
        f"line 37, {FIRST}.global_batch_size.weak: give either per_gpu or fixed.",
    ),
    "a batch by no rule": (
        BATCH + "{per_gpu: 2}",
        BATCH + "{}",
        f"line 37, {FIRST}.global_batch_size.weak: give either per_gpu or fixed.",
    ),
    "a configuration of fewer layers": (
        "      - gpu_types: [b200]\n",
        "      - num_layers: 8\n        gpu_types: [b200]\n",
        f"line 38, {SECOND}.num_layers: is for proxies, which have fewer layers: a configuration runs "
        "the whole "
        "model.",
    ),
    "a configuration of another model": (
        "      - gpu_types: [b200]\n",
        "      - model: {vocab_size: 64}\n        gpu_types: [b200]\n",
        f"line 38, {SECOND}.model: is for proxies, which have fewer layers: a configuration runs the "
        "whole model.",
    ),
    "a proxy of the whole model": (
        "        num_layers: 4\n",
        "",
        "line 45, sizes.8b.proxies.0: a proxy must change the model: set num_layers, or other fields "
        "of the model.",
    ),
    "a proxy whose heads do not divide": (
        "        num_layers: 4\n",
        "        num_layers: 4\n        model: {num_query_groups: 12}\n",
        "line 49, sizes.8b.proxies.0.model.num_query_groups: 32 attention heads cannot be divided "
        "among 12 query "
        "groups: give a number that divides them.",
    ),
    "a proxy with an unknown field": (
        "        num_layers: 4\n",
        "        num_layers: 4\n        model: {num_heads: 12}\n",
        "line 49, sizes.8b.proxies.0.model.num_heads: unknown field.",
    ),
    "virtual stages of one stage": (
        "{tensor: 4, pipeline: 1, context: 1}",
        "{tensor: 4, pipeline: 1, context: 1, virtual_pipeline: 2}",
        f"line 34, {FIRST}.parallelism.virtual_pipeline: 2 virtual stages need more than one pipeline stage: "
        "raise pipeline, or leave this out.",
    ),
    "an outer stage of one stage": (
        "{tensor: 4, pipeline: 1, context: 1}",
        "{tensor: 4, pipeline: 1, context: 1, last_stage_layers: 2}",
        f"line 34, {FIRST}.parallelism.last_stage_layers: is for a pipeline of several stages: leave it out, "
        "or raise pipeline.",
    ),
    "an outer stage that its virtual stages do not divide": (
        "{tensor: 1, pipeline: 4, context: 1}",
        "{tensor: 1, pipeline: 4, context: 1, virtual_pipeline: 2, first_stage_layers: 3}",
        f"line 41, {SECOND}.parallelism.first_stage_layers: 3 layers cannot be spread over the "
        "stage's 2 virtual "
        "stages; and",
    ),
    "a rule that sets nothing": (
        "vboost: true}",
        "gpu_types: [h100]}",
        "line 17, performance.rules.0: the rule sets nothing: give at least one of trainer, environment, "
        "ranks_per_numa_node, priority_cores, vboost and arguments.",
    ),
    "arguments for a script that does not train it": (
        "vboost: true}",
        'arguments: {recompute: "1"}}',
        "line 17, performance.rules.0.arguments: are for Megatron-Bridge's script, which does not "
        "train all sizes "
        "of this rule: leave them out, or limit the rule to sizes that are recipes of Megatron-Bridge.",
    ),
    "a head width in a family without": (
        "      seq_length: 8192\n",
        "      seq_length: 8192\n      kv_channels: 64\n",
        "line 29, sizes.8b.model.kv_channels: llama models have no head width of their own: leave "
        "kv_channels out.",
    ),
    "a frequency without its window": (
        "      seq_length: 8192\n",
        "      seq_length: 8192\n      window_attn_skip_freq: 2\n",
        "line 29, sizes.8b.model.window_attn_skip_freq: window_attn_skip_freq is for window_size.",
    ),
    "a window that ends before it begins": (
        '"40:49"',
        '"49:40"',
        "line 8, steps.window: window '49:40' ends before it begins: write the smaller step first.",
    ),
}
"""By mistake: a text of GOOD, its replacement, and the sentence, or its beginning if it ends in 'and'."""


def refusal(config, text):
    """Return the sentences that refuse a workload's file, each without the path of the file."""
    path = config / "workloads" / "small-1.0.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        load_workload("small")
    sentences = str(refused.value).split("\n")
    assert all(sentence.startswith(f"{path}, ") for sentence in sentences), sentences
    return [sentence.removeprefix(f"{path}, ") for sentence in sentences]


def changed(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_the_good_one_loads(config):
    (config / "workloads" / "small-1.0.yaml").write_text(GOOD)
    assert load_workload("small").size_names() == ("8b", "8b-proxy")


def test_each_mistake_has_its_sentence(config):
    wrong = {}
    for name, (old, new, sentence) in MISTAKES.items():
        told = refusal(config, changed(GOOD, old, new))
        beginning = sentence.removesuffix("; and")
        if told != [sentence] and not (sentence != beginning and told[0].startswith(beginning)):
            wrong[name] = (told, sentence)
    assert not wrong, "\n".join(f"{name}: {told}" for name, told in wrong.items())


WRONG_VALUES = (
    ("title: Small", "title: 5\ntopic: x"),
    ("pretrain_{size}", "pretrain_{seize}"),
    ('window: "40:49"', 'window: "40:99"'),
    ("vboost: true}\nsizes", "environment: {PYTHONPATH: x}}\nsizes"),
    ("hidden_size: 4096\n", "hidden_size: -1\n"),
    ("tensor_choices: [2, 4]", "tensor_choices: [2, four]"),
    ("        gpus: [8]\n", "        gpus: [8]\n        gpus: [9]\n"),
)
"""Wrong types, unknown fields, repeated keys, and fields of one part that contradict each other."""
MISFITTING_PARTS = (
    ("flops_formula: llama3.1-25.04", "flops_formula: llama9"),
    ("size: 8b,", "size: 9b,"),
    ("num_query_groups: 8", "num_query_groups: 12"),
    ("gpu_types: [b200]", "gpu_types: [b300]"),
)
"""What shows only when parts of the file are compared with others, or with other files."""


def with_all(text, changes):
    for old, new in changes:
        text = changed(text, old, new)
    return text


def test_parts_are_compared_once_every_part_is_valid(config):
    """All wrong values are told at once; after they are mended, all parts that do not fit together."""
    text = with_all(GOOD, MISFITTING_PARTS)
    assert [sentence.partition(": ")[0] for sentence in refusal(config, with_all(text, WRONG_VALUES))] == [
        "line 2, title",
        "line 3, topic",
        "line 7, experiment",
        "line 9, steps.window",
        "line 18, performance.rules.0.environment",
        "line 24, sizes.8b.model.hidden_size",
        "line 36, sizes.8b.configurations.0.tensor_choices.1",
        "line 49, sizes.8b.proxies.0.gpus",
    ]
    assert [sentence.partition(": ")[0] for sentence in refusal(config, text)] == [
        "line 5, flops_formula",
        "line 7, defaults.size",
        "line 26, sizes.8b.model.num_query_groups",
        "line 38, sizes.8b.configurations.1.gpu_types.0",
    ]


UNUSED = "line 15, performance.sources.spare: no rule has this source."
OF_PERFORMANCE = (
    ("  rules:\n", "  rules:\n    - {source: launch, at_least: {tensor: 8}, vboost: true}\n"),
    ("vboost: true}\nsizes", "gpu_types: [h100], trainer: {fp8_recipe: delayed}}\nsizes"),
)
"""A rule for no row, and settings that cannot be combined, in three rows."""
FOR_NO_ROW = "line 17, performance.rules.0: the rule holds for no row of this workload."
MISFIT = (
    "line 18, performance.rules.1.trainer.fp8_recipe: 8b in bf16 on h100, performance: fp8_recipe is "
    "delayed: rows of dtype fp8 need one, and no others."
)


def test_rules_of_performance_are_checked_beside_the_rest(config):
    text = changed(changed(GOOD, "size: 8b,", "size: 9b,"), "num_query_groups: 8", "num_query_groups: 12")
    text = with_all(text, OF_PERFORMANCE)
    of_heads = MISTAKES["heads and query groups"][2].replace("line 26", "line 27")
    of_default = MISTAKES["a default size that there is not"][2]
    assert refusal(config, text) == [of_default, FOR_NO_ROW, MISFIT, of_heads]
    assert refusal(config, changed(text, 'launch: "launch.sh"}', 'launch: "launch.sh", spare: "x"}')) == [
        UNUSED
    ]


def test_a_scaling_that_only_newer_gpus_have_is_refused(config):
    fp8 = changed(GOOD, "dtypes: [bf16]\n        gpus: [16, 32]", "dtypes: [fp8]\n        gpus: [16, 32]")
    rule = "dtypes: [fp8], trainer: {{fp8_recipe: {}}}}}\nsizes"
    assert refusal(config, changed(fp8, "vboost: true}\nsizes", rule.format("mxfp8"))) == [
        "line 17, performance.rules.0.trainer.fp8_recipe: 8b in fp8 on h100, performance: h100 has no mxfp8: "
        "config/gpus.yaml lists no fp8_mx for it."
    ]
    (config / "workloads" / "small-1.0.yaml").write_text(
        changed(fp8, "vboost: true}\nsizes", rule.format("blockwise"))
    )
    assert load_workload("small").workload == "small-1.0"


def test_a_misspelt_name_in_a_rule_is_its_only_mistake(config):
    """The rule then holds for no row, and may set what contradicts others: neither was meant."""
    rule = "gpu_types: [b2000], trainer: {fp8_recipe: delayed}}\nsizes"
    assert refusal(config, changed(GOOD, "vboost: true}\nsizes", rule)) == [
        "line 17, performance.rules.0.gpu_types: unknown GPU type 'b2000': did you mean 'b200'? Valid are: "
        "h100, b200."
    ]


def test_a_broken_workload_hides_no_other(config, capsys):
    (config / "workloads" / "small-1.0.yaml").write_text(changed(GOOD, "size: 8b,", "size: 9b,"))
    assert plan(PlanRequest(workload="llama3.1")).runs
    assert steptime("recipes", "--format", "json") == 1
    listed = capsys.readouterr()
    assert {row["recipe"] for row in json.loads(listed.out)["recipes"]} == {
        path.stem for path in (config / "workloads").glob("*.yaml") if path.stem != "small-1.0"
    }
    assert listed.err.startswith(
        f"steptime: {config}/workloads/small-1.0.yaml, line 7, defaults.size: unknown size '9b'"
    )


def test_a_broken_gpu_type_hides_no_other(config):
    """A GPU type whose peak cannot be read is not used; everything else is listed and planned."""
    gpus = config / "gpus.yaml"
    gpus.write_text(gpus.read_text().replace("{bf16: 2250, ", "{bf16: fast, "))
    assert load_workload("nemotron4-340b").gpu_types.keys() >= {"b200", "h100"}
    assert plan(PlanRequest(workload="llama3.1")).runs
    cluster = config / "clusters" / "local.yaml"
    cluster.write_text(cluster.read_text().replace("gpu_type: cpu", "gpu_type: b200"))
    with pytest.raises(UserError, match=r"gpus\.yaml, line \d+, b200\.peak_tflops\.bf16: .*not \"fast\""):
        plan(PlanRequest(workload="nemotron4-340b"))
