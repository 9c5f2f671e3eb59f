"""How each document's runs are launched: the rules in its file, where later rules override earlier ones."""

import pytest
from printed_tables import workloads_on

from steptime.recipes.models import Mode, Parallelism, Performance, TrainerSettings
from steptime.recipes.performance_rules import Row, Rule, contradictions
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workload


def launched(**options):
    """Return the performance settings of the first run of a request."""
    request = {"gpu_type": "h100"} | options
    return plan(PlanRequest.model_validate(request)).runs[0].performance


def test_a_later_rule_counts():
    """A rule for some GPUs overrides one for all, and a rule for some modes overrides one for all."""
    on_gpu = {
        gpu_type: launched(workload="nemotron4-340b", gpu_type=gpu_type, gpus="512")
        for gpu_type in ("h100", "b200", "gb200", "gb300")
    }
    connections = {
        name: settings.environment["CUDA_DEVICE_MAX_CONNECTIONS"] for name, settings in on_gpu.items()
    }
    assert connections == {"h100": "1", "b200": "32", "gb200": "32", "gb300": "1"}
    options = {"workload": "nemotron4", "size": "340b", "gpus": "512"}
    gathers = {
        mode: launched(**options, **{mode: value}).trainer.overlap_param_gather_with_optimizer_step
        for mode, value in {
            "profile": True,
            "save_checkpoint": True,
            "load_checkpoint": "/checkpoints/one",
        }.items()
    }
    assert gathers == {"profile": True, "save_checkpoint": False, "load_checkpoint": False}


def test_what_is_for_slurm_is_left_out_elsewhere():
    workload = load_workload("nemotron4-340b-25.12")
    (recipe, *_) = [row for row, _ in workload.recipes() if row.gpu_type == "gb200"]
    mode = plan(PlanRequest(workload="llama3.1")).runs[0].mode
    on = {kind: workload.performance.of(recipe, "340b", mode, kind) for kind in ("slurm", "runai")}
    assert (on["slurm"].ranks_per_numa_node, on["runai"].ranks_per_numa_node) == (2, None)
    only_slurm = {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C"}
    assert on["slurm"].environment.keys() - on["runai"].environment.keys() == only_slurm


@pytest.mark.parametrize("name", workloads_on("cpu"))
def test_nothing_is_set_on_the_cpu(name):
    for run in plan(PlanRequest(workload=name, size="tiny", checkpoint=True)).all_runs:
        assert run.performance == Performance()


ROW = Row("8b", "8b", "bf16", "h100", Parallelism(tensor=2, pipeline=2, context=2, data=2))
OTHERS = {
    "name": ROW._replace(name="8b-proxy"),
    "size": ROW._replace(size="70b"),
    "dtype": ROW._replace(dtype="fp8"),
    "gpu_type": ROW._replace(gpu_type="b200"),
    "cpu": ROW._replace(gpu_type="cpu"),
    **{
        name: ROW._replace(parallelism=ROW.parallelism.model_copy(update={name: 1}))
        for name in ("tensor", "pipeline", "context", "data")
    },
    "virtual_pipeline": ROW._replace(parallelism=ROW.parallelism.model_copy(update={"virtual_pipeline": 2})),
}
"""Rows that each differ from `ROW` in one thing."""
HOLDS_FOR = [
    # the conditions of a rule, and the other rows that it holds for beside ROW
    ({}, OTHERS.keys() - {"cpu"}),
    ({"gpu_types": ["h100", "cpu"]}, OTHERS.keys() - {"gpu_type"}),
    ({"sizes": ["8b"]}, OTHERS.keys() - {"size", "cpu"}),
    ({"dtypes": ["bf16"]}, OTHERS.keys() - {"dtype", "cpu"}),
    ({"at_least": {"tensor": 2}}, OTHERS.keys() - {"tensor", "cpu"}),
    ({"at_least": {"pipeline": 2}}, OTHERS.keys() - {"pipeline", "cpu"}),
    ({"at_least": {"context": 2}}, OTHERS.keys() - {"context", "cpu"}),
    ({"at_least": {"data": 2}}, OTHERS.keys() - {"data", "cpu"}),
    ({"at_least": {"virtual_pipeline": 1}}, OTHERS.keys() - {"cpu"}),
]


def rule_of(**conditions):
    return Rule.model_validate({"source": "x", "vboost": True} | conditions)


def test_a_rule_holds_where_all_its_conditions_do():
    for conditions, others in HOLDS_FOR:
        rule = rule_of(**conditions)
        assert rule.holds_for_row(ROW), conditions
        assert {name for name, row in OTHERS.items() if rule.holds_for_row(row)} == others, conditions
    stages = rule_of(at_least={"virtual_pipeline": 2})
    assert [name for name, row in OTHERS.items() if stages.holds_for_row(row)] == ["virtual_pipeline"]
    assert not stages.holds_for_row(ROW)


def test_a_rule_may_be_for_some_modes_and_some_clusters():
    save, load = Mode.CHECKPOINT_SAVE, Mode.CHECKPOINT_LOAD
    for conditions, held in (
        ({}, [True, True, True, True]),
        ({"modes": [save]}, [True, True, False, False]),
        ({"cluster_kinds": ["slurm"]}, [True, False, True, False]),
        ({"modes": [save], "cluster_kinds": ["slurm"]}, [True, False, False, False]),
    ):
        rule = rule_of(**conditions)
        applies = [rule.holds_for_job(mode, kind) for mode in (save, load) for kind in ("slurm", "runai")]
        assert applies == held, conditions


CALLBACK = {"comm_overlap_callback": True}
SETTINGS = [
    # dtype of a row without tensor parallelism, settings, and why they are refused
    ("bf16", {}),
    ("fp8", {}, "fp8_recipe is None: rows of dtype fp8 need one, and no others"),
    ("fp8", {"fp8_recipe": "current"}),
    ("bf16", {"fp8_recipe": "current"}, "fp8_recipe is current: rows of dtype fp8 need one, and no others"),
    (
        *("bf16", {"tp_comm_overlap": True}),
        "tp_comm_overlap needs comm_overlap_callback, which does it",
        "tp_comm_overlap needs tensor parallelism",
    ),
    ("bf16", {"tp_comm_overlap": True, **CALLBACK}, "tp_comm_overlap needs tensor parallelism"),
    ("bf16", {"tp_comm_overlap_cfg": "userbuffers_x"}, "tp_comm_overlap_cfg is for tp_comm_overlap"),
    ("bf16", {"cuda_graph_scope": ["attn"]}, "cuda_graph_scope is for cuda_graphs"),
    ("bf16", {"cuda_graph_impl": "transformer_engine"}, "cuda_graph_impl is for cuda_graphs"),
    ("bf16", {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"], "cuda_graphs": True}),
    ("bf16", {"overlap_param_gather_with_optimizer_step": True, **CALLBACK}),
    (
        *("bf16", {"overlap_param_gather_with_optimizer_step": True}),
        "overlap_param_gather_with_optimizer_step needs comm_overlap_callback, which does it",
    ),
    ("bf16", {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 0, **CALLBACK}),
    (
        *("bf16", {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 0}),
        "defer_embedding_wgrad_compute needs comm_overlap_callback, which does it",
    ),
    (
        *("bf16", {"defer_embedding_wgrad_compute": True, **CALLBACK}),
        "defer_embedding_wgrad_compute and wgrad_deferral_limit go together",
    ),
    ("bf16", {"wgrad_deferral_limit": 0}, "defer_embedding_wgrad_compute and wgrad_deferral_limit go"),
]


def test_settings_that_cannot_go_together_are_told():
    for dtype, settings, *complaints in SETTINGS:
        row = ROW._replace(dtype=dtype, parallelism=Parallelism(tensor=1, data=2))
        told = [problem for _, problem in contradictions(row, TrainerSettings.model_validate(settings))]
        assert len(told) == len(complaints), (settings, told)
        for problem, complaint in zip(told, complaints, strict=True):
            assert problem.startswith(complaint), (problem, complaint)
