"""How each document's runs are launched: the rules of its file, laid over one another for a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from docs.make_launch_settings import PAGE, page
from steptime.recipes.models import Run
from steptime.recipes.performance import Performance, TrainerSettings
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.results.repeating import repeat_command, request_of


def launched(**asked: Any) -> Performance:
    """How the first run of a request is launched."""
    request = {"gpu_type": "h100"} | asked
    return plan(PlanRequest.model_validate(request)).runs[0].performance


def test_a_later_rule_counts() -> None:
    """Of a rule for all GPUs and one for some; of a rule for all modes and one for some."""
    on_gpu = {
        gpu_type: launched(workload="nemotron4-340b", gpu_type=gpu_type, gpus="512")
        for gpu_type in ("h100", "b200", "gb200", "gb300")
    }
    connections = {name: one.environment["CUDA_DEVICE_MAX_CONNECTIONS"] for name, one in on_gpu.items()}
    assert connections == {"h100": "1", "b200": "32", "gb200": "32", "gb300": "1"}
    asked = {"workload": "nemotron4", "size": "340b", "gpus": "512"}
    gathers = {
        mode: launched(**asked, **{mode: value}).trainer.overlap_param_gather_with_optimizer_step
        for mode, value in {
            "profile": True,
            "save_checkpoint": True,
            "load_checkpoint": "/checkpoints/one",
        }.items()
    }
    assert gathers == {"profile": True, "save_checkpoint": False, "load_checkpoint": False}


def test_parallelism_decides() -> None:
    """The proxies of 405b have one pipeline stage, or one replica of the model."""
    gathers, chunks = {}, {}
    for gpus in ("32", "64", "128"):
        proxy = launched(workload="llama3.1", size="405b", proxy=True, gpus=gpus)
        gathers[gpus] = proxy.trainer.overlap_param_gather_with_optimizer_step
        chunks[gpus] = "NCCL_P2P_NET_CHUNKSIZE" in proxy.environment
        assert proxy.trainer.wgrad_deferral_limit == 50
    assert gathers == {"32": False, "64": False, "128": True}
    assert chunks == {"32": False, "64": True, "128": True}


def test_what_is_for_slurm_is_left_out_elsewhere() -> None:
    workload = load_workload("nemotron4-340b-25.12")
    (recipe, *_) = [one for one, _ in workload.recipes() if one.gpu_type == "gb200"]
    mode = plan(PlanRequest(workload="llama3.1")).runs[0].mode
    on = {kind: workload.performance.of(recipe, "340b", mode, kind) for kind in ("slurm", "runai")}
    assert (on["slurm"].ranks_per_numa_node, on["runai"].ranks_per_numa_node) == (2, None)
    only_slurm = {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C"}
    assert on["slurm"].environment.keys() - on["runai"].environment.keys() == only_slurm


def test_the_page_of_launch_settings_is_of_todays_data() -> None:
    """`python docs/make_launch_settings.py` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", list_workloads())
def test_nothing_is_set_on_the_cpu(name: str) -> None:
    for run in plan(PlanRequest(workload=name, size="tiny", checkpoint=True)).all_runs:
        assert run.performance == Performance()


def test_a_run_recorded_before_is_read_and_repeated(tmp_path: Path) -> None:
    """It said three of the settings of its recipe, and had no others."""
    run = plan(PlanRequest(workload="llama3.1", gpus="2")).runs[0]
    before = json.loads(run.model_dump_json())
    del before["performance"]
    before["recipe"] |= {"fp8_recipe": None, "cuda_graphs": False, "tp_comm_overlap": False}
    assert Run.model_validate_json(json.dumps(before)) == run
    known = Run.model_validate(before)
    assert repeat_command(known, request_of(known, {})) is not None

    before["recipe"] |= {"dtype": "fp8", "fp8_recipe": "current", "tp_comm_overlap": True}
    read = Run.model_validate(before)
    assert read.performance.trainer == TrainerSettings(fp8_recipe="current", tp_comm_overlap=True)
    assert Run.model_validate_json(read.model_dump_json()) == read
    assert repeat_command(read, request_of(read, {})) is None
