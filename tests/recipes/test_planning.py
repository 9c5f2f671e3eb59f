"""From requests to runs: defaults, modes, costs, and every refusal with the valid choices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from printed_tables import workloads_on

from steptime.errors import UserError
from steptime.recipes.flops import model_flops
from steptime.recipes.models import Mode, OwnProgram, Performance, Window
from steptime.recipes.planning import parse_request, plan, require_runnable
from steptime.recipes.workloads import list_workloads, load_workload


def planned(**values):
    return plan(parse_request(values))


def test_the_main_job_needs_only_its_name():
    made = planned(workload="llama3.1")
    assert [run.label for run in made.runs] == ["tiny·fp32·1", "tiny·fp32·2"]
    assert [run.recipe.global_batch_size for run in made.runs] == [8, 16]
    assert all(run.window == Window(first=10, last=19) for run in made.runs)
    assert all((run.max_steps, run.first_step, run.time_limit_s) == (20, 0, 600) for run in made.runs)
    assert made.checkpoint_pairs == ()
    assert made.request.cluster == "local"


LEFT_TO_OTHERS = {
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),  # left to the document
    *("micro_batch_size", "global_batch_size"),
    *("image", "cuda_graphs", "tp_comm_overlap", "async_save", "gpu_samples"),  # left to the recipe
    *("load_checkpoint", "profile_start", "profile_stop", "profile_ranks"),  # only for other kinds of runs
}


@pytest.mark.parametrize("name", workloads_on("cpu"))
def test_defaults_are_filled_in_and_mean_the_same_again(name):
    made = planned(workload=name, repeats=2)
    values = made.request.model_dump()
    unset = {field for field, value in values.items() if value is None}
    assert unset == LEFT_TO_OTHERS
    assert plan(made.request) == made


def test_a_run_has_what_was_asked_for():
    (run,) = planned(
        **{"workload": "llama3.1", "size": "70b", "dtype": "fp8", "gpus": "64", "max_steps": 30},
        **{"window": "11:19", "time_limit": "00:07:00", "environment": {"NCCL_DEBUG": "INFO"}},
        **{"cuda_graphs": True, "tp_comm_overlap": False},
    ).runs
    workload = load_workload("llama3.1")
    assert (run.max_steps, str(run.window), run.time_limit_s) == (30, "11:19", 420)
    assert run.environment == {"NCCL_DEBUG": "INFO"}
    assert (run.first_step, run.cluster, run.seed, run.checkpoint_path) == (0, "local", 1234, None)
    assert run.model_flops == pytest.approx(model_flops(workload.sizes["70b"].model, "llama3.1-25.04"))
    launched = workload.performance.of(run.recipe, "70b", Mode.PERFORMANCE, "local")
    options = {"cuda_graphs": True, "tp_comm_overlap": False}
    settings = launched.trainer.model_copy(update={**options, "gpu_samples": True})
    assert run.performance == launched.model_copy(update={"trainer": settings})
    assert run.performance != Performance()
    assert run.recipe.model == workload.sizes["70b"].model
    assert (run.recipe.image, run.recipe.gpus_per_node) == (workload.gpu_types["h100"].image, 8)
    assert (run.recipe.workload, run.recipe.flops_formula) == ("llama3.1-25.04", "llama3.1-25.04")


@pytest.mark.parametrize(
    ("values", "size", "dtype", "gpus", "window", "limit_s"),
    [
        ({"workload": "llama3.1", "gpu_type": "h100"}, "8b", "bf16", [8], "49:49", 1800),
        ({"workload": "nemotron4-340b", "gpu_type": "gb300"}, "340b", "fp8", [128], "35:44", 1500),
        ({"workload": "nemotron4-340b-24.11", "gpu_type": "h100"}, "340b", "bf16", [128], "49:49", 3600),
        ({"workload": "nemotron-h", "gpu_type": "h100"}, "56b", "fp8", [256], "11:44", 1500),
        ({"workload": "llama3.1", "proxy": True}, "405b-proxy", "bf16", [32], "49:49", 1800),
    ],
)
def test_defaults_of_the_documents(*, values, size, dtype, gpus, window, limit_s):
    runs = planned(**values).runs
    assert {(run.recipe.size, run.recipe.dtype, str(run.window), run.time_limit_s) for run in runs} == {
        (size, dtype, window, limit_s)
    }
    assert [run.recipe.gpus for run in runs] == gpus


@pytest.mark.parametrize(
    ("values", "experiment"),
    [
        ({"workload": "llama3.1", "size": "405b-proxy", "dtype": "fp8"}, "pretrain_llama3.1_405b_fp8_32"),
        (
            {"workload": "nemotron4-340b", "gpu_type": "gb200", "scaling": "strong"},
            "pretrain_nemotron4_340b_fp8_gpus128_tp8_pp4_cp1_vp12_mbs1_gbs512",
        ),
        (
            {"workload": "nemotron-h", "size": "56b", "gpus": "128"},
            "pretrain_nemotronh_56b_fp8_gpus128_tp8_pp1_cp1_vpNone_mbs1_gbs384",
        ),
        (
            {"workload": "gpt-oss-26.02", "gpu_type": "h100"},
            "pretrain_gpt_oss_120b_bf16_gpus64_tp1_pp4_cp1_vpNone_ep8_etp1_mbs1_gbs1280",
        ),
        ({"workload": "llama3.1", "gpus": "2", "tensor_parallel": 2}, "pretrain_llama3.1_tiny_fp32_2_tp2"),
        ({"workload": "llama3.1", "gpus": "4", "scaling": "strong"}, "pretrain_llama3.1_tiny_fp32_4_strong"),
    ],
)
def test_experiments_are_named_as_in_the_documents(values, experiment):
    assert [run.experiment for run in planned(**values).runs] == [experiment]


def test_names_may_be_written_in_capitals():
    written = planned(
        workload="LLAMA3.1", size="70B", dtype="FP8", gpu_type="H100", scaling="WEAK", gpus="64"
    )
    assert (
        written.runs == planned(workload="llama3.1", size="70b", dtype="fp8", gpu_type="h100", gpus="64").runs
    )


def test_a_launcher_of_a_dense_model_is_given_one_expert_rank():
    dense = planned(workload="llama3.1", gpus="4").runs[0].recipe
    launcher = OwnProgram(
        kind="command", command=("train", "--experts={expert}", "--gpus={gpus}", "--steps={max_steps}")
    )
    recipe = dense.model_copy(update={"launcher": launcher})
    assert recipe.command(50) == ("train", "--experts=1", "--gpus=4", "--steps=50")


def test_proxies_are_asked_for_in_either_way():
    by_flag = planned(workload="llama3.1", size="405b", proxy=True, gpus="32-128")
    by_name = planned(workload="llama3.1", size="405b-proxy", gpus="32-128")
    assert by_flag == by_name
    assert [(run.recipe.gpus, run.recipe.model.num_layers) for run in by_flag.runs] == [
        (32, 8),
        (64, 30),
        (128, 62),
    ]
    assert all(run.recipe.proxy for run in by_flag.runs)


def test_tensor_parallel_where_the_size_leaves_it_open():
    made = planned(workload="llama3.1", tensor_parallel=2)
    assert [(run.recipe.gpus, run.recipe.parallelism.data) for run in made.runs] == [(2, 1)]
    (four,) = planned(workload="llama3.1", tensor_parallel=2, gpus="4").runs
    assert (four.recipe.parallelism.tensor, four.recipe.parallelism.data) == (2, 2)
    assert planned(workload="llama3.1", tensor_parallel=4).runs[0].recipe.gpus == 4


def test_repeats_are_runs_of_their_own():
    runs = planned(workload="llama3.1", repeats=3, checkpoint=True).all_runs
    assert [run.label for run in runs] == [
        "tiny·fp32·1",
        "tiny·fp32·1·repeat 2",
        "tiny·fp32·1·repeat 3",
        "tiny·fp32·2",
        "tiny·fp32·2·repeat 2",
        "tiny·fp32·2·repeat 3",
        "tiny·fp32·2·checkpoint save",
        "tiny·fp32·2·checkpoint load",
    ]


def test_a_checkpoint_is_saved_and_loaded_on_the_largest_count():
    made = planned(workload="llama3.1", size="405b", gpus="512,1024", checkpoint=True, max_steps=10)
    (pair,) = made.checkpoint_pairs
    assert (pair.save.mode, pair.load.mode) == (Mode.CHECKPOINT_SAVE, Mode.CHECKPOINT_LOAD)
    assert pair.save.recipe == pair.load.recipe == made.runs[-1].recipe
    assert pair.save.experiment == "pretrain_llama3.1_405b_bf16_1024_checkpoint_save"
    assert (pair.save.first_step, pair.save.max_steps, str(pair.save.window)) == (0, 10, "9:9")
    assert (pair.load.first_step, pair.load.max_steps, str(pair.load.window)) == (10, 11, "10:10")


def test_gpu_hours_are_all_jobs_into_their_limit():
    made = planned(
        workload="llama3.1", size="8b", gpus="8,16", repeats=2, checkpoint=True, time_limit="00:15:00"
    )
    assert made.gpu_hours_max == (2 * (8 + 16) + 2 * 16) * 0.25
    assert made.gpu_hours_max == sum(run.recipe.gpus * run.time_limit_s for run in made.all_runs) / 3600


def test_a_plan_for_other_gpus_than_the_clusters_is_for_reading_only():
    made = planned(workload="llama3.1", size="8b")
    assert made.cluster_gpu_type == "cpu"
    with pytest.raises(UserError, match="cluster 'local' has cpu, not h100"):
        require_runnable(made)
    require_runnable(planned(workload="llama3.1"))


REFUSALS = [
    ({"workload": "lama3.1"}, "unknown workload 'lama3.1': did you mean 'llama3.1-"),
    ({"sise": "8b"}, "unknown parameter 'sise': did you mean 'size'? Valid are: workload, "),
    (
        {"size": "405b", "gpus": "512", "checkpoint": True},
        "is tested on 512 GPUs or more, loading on 1024 or more: also ask for one of these `gpus`: 1024",
    ),
    ({"size": "9b"}, "'9b' of llama3.1-25.04: did you mean '8b'? Valid are: 8b, 70b, 405b, "),
    (
        {"workload": "nemotron-h", "gpu_type": "h200"},
        "unknown GPU type 'h200' of nemotron-h-25.05: did you mean 'h100'",
    ),
    (
        {"workload": "nemotron4-340b", "size": "340b"},
        "name a cluster that has one of h100, gb300, gb200, b200",
    ),
    (
        {"size": "8b", "gpus": "24"},
        "unknown GPU count '24' of llama3.1-25.04 8b on h100: did you mean '16'? Valid are: 8, 16,",
    ),
    (
        {"workload": "nemotron4-340b", "gpu_type": "h100", "scaling": "strong"},
        "strong scaling is not offered for nemotron4-340b-25.12 340b on h100, only weak; strong is for",
    ),
    ({"scaling": "string"}, "unknown scaling 'string': did you mean 'strong'? Valid are: weak,"),
    (
        {"size": "8b", "proxy": True},
        "llama3.1-25.04 8b has no proxy: leave `proxy` out; sizes that have one: 405b.",
    ),
    ({"max_steps": 0}, "max_steps 0: has to be at least 1."),
    ({"window": "10:20"}, "`window` 10:20 lies outside of a run of 20 steps"),
    (
        {"workload": "nemotron-h", "size": "56b", "max_steps": 44},
        "`window` 11:44 (the workload's default) lies outside of a run",
    ),
    ({"cluster": "locl"}, "unknown cluster 'locl': did you mean 'local'? Valid are: local"),
    ({"tensor_parallel": 3}, "unknown tensor parallel '3' of llama3.1-25.04 tiny on cpu"),
    ({"size": "8b", "gpus": "8", "checkpoint": True}, "tested on 16 GPUs or more, loading on 16"),
    (
        {"workload": "nemotron4-340b", "gpu_type": "gb300", "checkpoint": True},
        "on gb300 is not tested: choose one of these GPU types: h100, gb200, b200.",
    ),
    (
        {"size": "405b", "gpu_type": "h100", "gpus": "64"},
        "The proxy of 405b has: 32, 64, 128; ask for it with `proxy`.",
    ),
    (
        {"workload": "nemotron4-340b-24.11", "gpu_type": "a100"},
        "does not run on a100: the document calls its BF16 recipe suitable for it and prints no numbers",
    ),
    (
        {"workload": "nemotron4-340b-24.11", "size": "340b", "gpu_type": "GH200"},
        "340b does not run on gh200: the document states only that its nodes have 2 GPUs",
    ),
    ({"workload": "nemotron4-25.04", "gpu_type": "a100"}, "unknown GPU type 'a100' of nemotron4-25.04"),
    ({"environment": {"HF_TOKEN": "x"}}, "environment: 'HF_TOKEN' looks like a secret"),
    (
        {"workload": "nemotron-h", "proxy": True, "gpu_type": "h100"},
        "no size of nemotron-h-25.05 has a proxy: leave `proxy` out.",
    ),
    (
        {"size": "405b", "gpu_type": "h100", "proxy": True, "gpus": "256"},
        "Valid are: 32, 64, 128. Without `proxy`, GPU counts are: 512, 1024, 2048.",
    ),
    (
        {"size": "8b", "gpu_type": "h100", "profile": True, "profile_start": 45, "profile_stop": 45},
        "profiling from step 45 to step 45 cannot be in a run of 45 steps: choose `profile_start` below "
        "`profile_stop`, and both within 0 to 45.",
    ),
    (
        {"size": "8b", "gpu_type": "h100", "profile": True, "profile_stop": 60, "max_steps": 50},
        "to step 60 cannot be in a run of 50 steps: choose",
    ),
    ({"workload": "nccl-26.11", "profile": True}, "nccl-26.11 has no settings for profiling; workloads that"),
    (
        {"workload": "nccl-26.11", "checkpoint": True},
        "checkpoints of nccl-26.11 all_reduce on cpu are not supported: leave out `checkpoint`, "
        "`save_checkpoint` and `load_checkpoint`; sizes of nccl-26.11 that support them: none.",
    ),
    (
        {"size": "405b", "gpu_type": "h100", "proxy": True, "gpus": "32", "checkpoint": True},
        "checkpoints of llama3.1-25.04 405b-proxy on h100 are not supported: leave out `checkpoint`, "
        "`save_checkpoint` and `load_checkpoint`; sizes of llama3.1-25.04 that support them: 8b, 70b, 405b, "
        "tiny.",
    ),
]


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ({"size": "8b"}, (8,)),
        ({"size": "8b", "checkpoint": True}, (16,)),
        ({"size": "405b", "save_checkpoint": True}, (1024,)),
        ({"checkpoint": True}, (1, 2)),
    ],
)
def test_by_default_a_checkpoint_is_made_at_a_scale_that_is_tested(values, counts):
    runs = planned(workload="llama3.1", **values).runs
    assert tuple(run.recipe.gpus for run in runs) == counts


@pytest.mark.parametrize(("values", "complaint"), REFUSALS, ids=[complaint[:40] for _, complaint in REFUSALS])
def test_refusals_name_the_value_and_the_choices(values, complaint):
    with pytest.raises(UserError) as refusal:
        planned(**{"workload": "llama3.1"} | values)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


CELLS = [
    (recipe.workload, recipe.size, recipe.dtype, recipe.gpu_type, recipe.scaling, recipe.gpus)
    for name in list_workloads()
    for recipe, _ in load_workload(name).recipes()
]


@pytest.mark.long
@given(cell=st.sampled_from(CELLS), repeats=st.integers(1, 4))
def test_every_row_can_be_planned_as_it_stands(cell, repeats):
    workload, size, dtype, gpu_type, scaling, gpus = cell
    made = planned(
        workload=workload,
        size=size,
        dtype=dtype,
        gpu_type=gpu_type,
        scaling=scaling,
        gpus=str(gpus),
        repeats=repeats,
    )
    rows = [recipe for recipe, _ in load_workload(workload).recipes()]
    assert len(made.runs) == repeats
    for run in made.runs:
        assert run.recipe in rows
        assert (run.recipe.size, run.recipe.dtype, run.recipe.scaling) == (size, dtype, scaling)
        assert run.recipe.gpus == gpus
        assert run.window.last < run.max_steps
        assert type(run).model_validate_json(run.model_dump_json()) == run
