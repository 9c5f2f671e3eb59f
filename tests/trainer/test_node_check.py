"""The node check: each fault of a GPU from a stand-in for nvidia-smi, and the real check of CPUs."""

import itertools
import json
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from trainer import gpu_health, node_check
from trainer.gpu_health import CannotTell, Demands, NodeFault

STAND_INS = Path(__file__).parents[1] / "stand_ins" / "gpu_node"
H100 = Demands(product="H100", count=8, free_memory_percent=95, power_limit_percent=100, clock_percent=100)


@pytest.fixture
def node(monkeypatch):
    """Return a function that gives this machine eight H100s with a fault."""
    monkeypatch.setenv("PATH", f"{STAND_INS}:{os.environ['PATH']}")
    return lambda fault: monkeypatch.setenv("STAND_IN_GPU_FAULTS", json.dumps({"*": fault}))


@pytest.mark.long
def test_each_fault_of_a_gpu_is_one_clause_with_its_values(node):
    told = {
        "none": [],
        "tells nothing": [],
        "old driver": [],
        "missing": ["nvidia-smi shows 7 GPUs, and 8 are needed"],
        "wrong type": ["GPU 3 is 'NVIDIA A100-SXM4-80GB', and H100 is planned"],
        "uncorrected ECC": ["GPU 3 has 2 uncorrected ECC errors"],
        "power limit": ["the power limit of GPU 3 is 500 of 700 W, below 100 %"],
        "low clock": ["the application clock of GPU 3 is 1200 of 1980 MHz, below 100 %"],
        "hot": ["GPU 3 is slowed down by its heat"],
        "power brake": ["GPU 3 is slowed down by its power supply"],
        "in use": ["the free memory of GPU 3 is 40211 of 81559 MiB, below 95 %"],
    }
    for fault, clauses in told.items():
        node(fault)
        assert list(gpu_health.find_faults(gpu_health.gpus_here(), H100)) == clauses
    node("none")
    assert not [*gpu_health.find_faults(gpu_health.gpus_here(), replace(H100, count=4))], "more than needed"


def test_a_gpu_that_nvidia_smi_cannot_reach_is_the_nodes_fault(node):
    node("lost")
    with pytest.raises(NodeFault, match=r"a GPU has fallen off the bus .*\(.*GPU is lost"):
        gpu_health.gpus_here()


def test_what_nvidia_smi_does_not_know_is_nobodys_fault(node, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_health, "_FIELDS", ("index", "colour"))
    with pytest.raises(CannotTell, match='exit code 2: Field "colour" is not a valid field'):
        gpu_health.gpus_here()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotTell, match="the program nvidia-smi is not on this node"):
        gpu_health.gpus_here()


@pytest.mark.long
def test_recent_hardware_errors_count_and_those_of_programs_do_not(node):
    told = {
        "none": [],
        "xid": ["Xid 79 (fallen off the bus) of the GPU at PCI 0000:41:00"],
        "xid of a program": [],
    }
    for fault, clauses in told.items():
        node(fault)
        assert gpu_health.hardware_errors(24) == clauses, fault
    node("no dmesg")
    with pytest.raises(CannotTell, match=r"dmesg .* Operation not permitted"):
        gpu_health.hardware_errors(24)


def test_hardware_errors_count_for_hours(monkeypatch, tmp_path):
    now_s, error_s = 100 * 3600.0, 98 * 3600.0
    (tmp_path / "uptime").write_text(f"{now_s} 0.0\n")
    dmesg = tmp_path / "dmesg"
    dmesg.write_text(f"#!/bin/sh\necho '[{error_s:.6f}] NVRM: Xid (PCI:0000:41:00): 79, pid=1'\n")
    dmesg.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_health, "UPTIME", tmp_path / "uptime")
    assert gpu_health.hardware_errors(within_h=1.9) == []
    for hours in (2.1, 24):
        assert gpu_health.hardware_errors(hours) == [
            "Xid 79 (fallen off the bus) of the GPU at PCI 0000:41:00"
        ]


def test_a_node_has_the_rate_of_its_slowest_rank_and_the_faults_of_all():
    nodes = {name: {"faults": [], "matmul_tflops": None} for name in ("a", "b")}
    reports = [
        {"node": "a", "matmul_tflops": 400.0, "rate_faults": []},
        {"node": "a", "matmul_tflops": 300.0, "rate_faults": ["rank 1 is slow"]},
        {"node": "b", "matmul_tflops": 500.0, "rate_faults": []},
        {"node": "b", "rate_faults": ["rank 3 fails"]},
    ]
    assert node_check._with_rates(nodes, reports) == {
        "a": {"faults": ["rank 1 is slow"], "matmul_tflops": 300.0},
        "b": {"faults": ["rank 3 fails"], "matmul_tflops": 500.0},
    }


def test_the_bus_bandwidth_is_counted_as_nccl_tests_do(monkeypatch):
    """4 MiB in 2 ms on four ranks: 2 × 3/4 × 4 MiB / 2 ms, with a clock and a torch that stand in."""
    clock = iter([0.0, 9.0, 10.0, 10.003, 20.0, 20.002, 30.0, 30.005])
    distributed = ModuleType("torch.distributed")
    for name in ("init_process_group", "PrefixStore", "all_reduce", "destroy_process_group"):
        setattr(distributed, name, lambda *_, **__: None)
    distributed.ReduceOp = SimpleNamespace(MAX="max")  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.__dict__.update(distributed=distributed, ones=lambda *_, **__: None, float32="float32")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(node_check, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    ranks = SimpleNamespace(launch=SimpleNamespace(rank=0, world_size=4), store=None)

    measured = node_check._all_reduce(Namespace(device="cpu", time_limit_s=60), ranks)

    assert measured["bus_gb_per_s"] == pytest.approx(2 * 3 / 4 * 4 * 2**20 / 0.002 / 1e9)


def test_the_rate_of_a_cpu_is_its_best_one(monkeypatch):
    seconds = itertools.cycle([3.0, 0.5, 2.0])
    now = 0.0

    def multiply(*_, **__):
        nonlocal now
        now += next(seconds)

    torch = ModuleType("torch")
    torch.__dict__.update(rand=lambda *_: np.zeros((1, 1)), mm=multiply)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(node_check, "time", SimpleNamespace(perf_counter=lambda: now))
    assert node_check._matmul_tflops("cpu", 0) == pytest.approx(2 * node_check._CPU_SIZE**3 / 0.5 / 1e12)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ("CUDA error: uncorrectable ECC error encountered\nmore", "CUDA error: uncorrectable ECC error"),
        ("CUDA error: hardware stack error", "CUDA error: hardware stack error"),
        ("CUDA error: out of memory", None),
    ],
)
def test_a_product_that_fails_is_the_nodes_fault_if_no_program_can_cause_it(monkeypatch, error, fault):
    def fail(*_):
        raise RuntimeError(error)

    monkeypatch.setattr(node_check, "_matmul_tflops", fail)
    arguments = Namespace(device="cuda", least_matmul_tflops=None)
    launch = SimpleNamespace(rank=11, local_world_size=8)
    if fault is None:
        with pytest.raises(RuntimeError, match="out of memory"):
            node_check._multiply(arguments, launch)
    else:
        [told] = node_check._multiply(arguments, launch)["rate_faults"]
        assert f"GPU 3 failed at a matrix product: {fault}" in told
        assert "\n" not in told


TWO_RANKS = """
import os, socket, sys
from trainer import node_check
if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    child = os.fork()
    os.environ["RANK"] = "0" if child else "1"
    code = node_check.main(["--device=cpu", "--time-limit-s=300", *sys.argv[1:]])
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    sys.exit(code)
"""


@pytest.fixture
def two_ranks(warm_trainer, tmp_path):
    """Return a function that checks this machine on two ranks, and returns the findings too."""

    def check(*options):
        program = tmp_path / "two_ranks.py"
        program.write_text(TWO_RANKS, encoding="utf-8")
        done = warm_trainer.run(str(program), [*options], folder=tmp_path)
        return done, json.loads((tmp_path / node_check.OUTPUT).read_text())

    return check


@pytest.mark.trainer
def test_two_ranks_measure_their_rates(two_ranks):
    done, result = two_ranks()
    assert done.exit_code == 0, done.log
    assert f"steptime.node_check {json.dumps(result)}" in done.log.splitlines()
    assert result["refused"] == []
    assert (result["all_reduce"]["ranks"], result["all_reduce"]["backend"]) == (2, "gloo")
    assert result["all_reduce"]["bus_gb_per_s"] > 0
    [here] = result["nodes"]
    assert 0 < here["matmul_tflops"] < 20, "no core multiplies 20 TFLOPS in fp32"
    assert result["seconds"] > 0


@pytest.mark.trainer
def test_a_rank_that_is_too_slow_condemns_its_node(two_ranks):
    done, result = two_ranks("--least-matmul-tflops=1000")
    assert done.exit_code == node_check.REFUSED, done.log
    [here] = result["nodes"]
    assert [fault.partition(" multiplies")[0] for fault in here["faults"]] == ["rank 0", "rank 1"]
    assert f"multiplies matrices at {here['matmul_tflops']:.4g} TFLOPS, below 1000" in str(here["faults"])
    assert f"steptime: the node check refuses {here['node']}: {here['faults'][0]}" in done.log


def test_a_check_without_torch_judges_no_node(monkeypatch, tmp_path, capsys):
    """This environment never has torch."""
    monkeypatch.chdir(tmp_path)
    assert node_check.main(["--device=cpu", "--time-limit-s=5"]) == node_check.BROKEN
    assert "could not be made on" in (said := capsys.readouterr().err)
    assert "No module named 'torch'" in said
    assert not (tmp_path / node_check.OUTPUT).exists()
