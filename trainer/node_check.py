"""`python -m trainer.node_check`: test every node of a job before training, on all of its ranks.

Each node reports its memory and GPUs, then each rank multiplies matrices, then all ranks do an all-reduce.
Faulty nodes are named in `node_check.json`, and every rank ends with the exit code REFUSED. If the check
itself fails (no torch, ranks that cannot connect, an all-reduce that fails), no node is judged, the exit code
is BROKEN, and the training may start.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainer import gpu_health, records
from trainer.environment import EXPECTED_WARNINGS
from trainer.errors import TrainerError
from trainer.launch import Launch, read_launch

REFUSED = 69
"""Exit code if at least one node was refused: EX_UNAVAILABLE of sysexits.h."""
BROKEN = 1
"""Exit code if the check could not be made."""
OUTPUT = "node_check.json"
"""Name of the report in the job's folder."""

_CPU_SIZE, _GPU_SIZE = 1024, 8192
"""Rows and columns of the matrices, which are fp32 on the CPU and bf16 on GPUs."""
_CPU_MIB, _GPU_MIB = 4, 256
"""MiB that each rank contributes to the all-reduce."""
_REPEATS_CPU, _REPEATS_GPU = 3, 100

_HARDWARE_ERRORS = ("uncorrectable ECC error", "uncorrectable NVLink error", "hardware stack error")
"""CUDA's error messages that no program can cause."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of the node check, which exchange their results through torch's TCPStore."""

    launch: Launch
    store: Any
    """torch's TCPStore."""

    def exchange(self, what: str, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        """Call `judge` on rank 0 with all ranks' JSON values, in order; return its result on every rank.

        `what` is a name that only this exchange uses; all ranks must pass the same.
        """
        self.store.set(f"{what}/{self.launch.rank}", json.dumps(value))
        if self.launch.rank == 0:
            reports = [json.loads(self.store.get(f"{what}/{rank}")) for rank in range(self.launch.world_size)]
            self.store.set(what, json.dumps(judge(reports)))
        return json.loads(self.store.get(what))

    def part(self) -> None:
        """Wait on rank 0, whose process holds the store, until all other ranks have finished with it."""
        if self.launch.rank:
            self.store.set(f"parted/{self.launch.rank}", "")
        else:
            self.store.wait([f"parted/{rank}" for rank in range(1, self.launch.world_size)])


def main(argv: Sequence[str] | None = None) -> int:
    """Check the nodes of the job; return 0, or the exit code REFUSED or BROKEN."""
    arguments = _parser().parse_args(argv)
    node = records.own_node_name()
    try:
        return _check(arguments, read_launch(), node)
    except (TrainerError, gpu_health.CannotTell, ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        print(f"steptime: the node check could not be made on {node}: {reason}", file=sys.stderr, flush=True)
        return BROKEN


def _check(arguments: argparse.Namespace, launch: Launch, node: str) -> int:
    began = time.perf_counter()
    for text, kind in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=text, category=kind)
    import torch  # seconds; `main` reports it if it is missing

    torch.set_num_threads(launch.threads)
    if arguments.device == "cpu" and launch.on_one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks the host's name up
    ranks = Ranks(launch, _store(launch, arguments.time_limit_s))

    def by_node(reports: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {report["node"]: report for report in reports if "faults" in report}

    first_of_node = launch.rank % launch.local_world_size == 0
    # Nothing has been put onto a GPU before, so that memory that is taken is somebody else's.
    report = {"node": node, **(_look(arguments, launch) if first_of_node else {})}
    nodes = ranks.exchange("nodes", report, by_node)
    all_reduce = None
    if not _refused(nodes):
        report = {"node": node, **_multiply(arguments, launch)}
        nodes = ranks.exchange("rates", report, lambda reports: _with_rates(nodes, reports))
    if not _refused(nodes) and launch.world_size > 1:
        all_reduce = _all_reduce(arguments, ranks)
    refused = _refused(nodes)
    if launch.rank == 0:
        result = {
            "schema": 1,
            "refused": refused,
            "seconds": round(time.perf_counter() - began, 3),
            "all_reduce": all_reduce,
            "nodes": [nodes[name] for name in nodes],
        }
        Path(OUTPUT).write_text(json.dumps(result) + "\n", encoding="utf-8")
        records.emit("node_check", result)
        for name in refused:
            print(f"steptime: the node check refuses {name}: {'; '.join(nodes[name]['faults'])}", flush=True)
    # Nobody ends before the file is there: srun ends the others some time after the first.
    ranks.exchange("end", None, len)
    ranks.part()
    return REFUSED if refused else 0


def _store(launch: Launch, timeout_s: float) -> Any:
    """Return the TCPStore through which the ranks connect; it is in the process of rank 0."""
    from torch.distributed import TCPStore

    return TCPStore(
        os.environ.get("MASTER_ADDR", "127.0.0.1"),
        int(os.environ.get("MASTER_PORT", "0")),
        world_size=launch.world_size,
        is_master=launch.rank == 0,
        timeout=timedelta(seconds=timeout_s),
    )


def _refused(nodes: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, result in nodes.items() if result["faults"]]


def _look(arguments: argparse.Namespace, launch: Launch) -> dict[str, Any]:
    """Return what this node reports about itself, with its faults."""
    free = gpu_health.free_memory_percent()
    result: dict[str, Any] = {"faults": [], "unknown": [], "free_memory_percent": round(free, 1)}
    result["matmul_tflops"] = None  # not known yet
    if free < arguments.least_free_memory_percent:
        least = arguments.least_free_memory_percent
        result["faults"].append(f"its free memory is {free:.1f} % of all, below {least:g} %")
    if arguments.product is None:
        return result
    demands = gpu_health.Demands(
        product=arguments.product,
        count=launch.local_world_size,
        free_memory_percent=arguments.least_free_gpu_memory_percent,
        power_limit_percent=arguments.least_power_limit_percent,
        clock_percent=arguments.least_clock_percent,
    )
    try:
        gpus = gpu_health.gpus_here()
    except gpu_health.NodeFault as fault:
        result["faults"].append(str(fault))
        gpus = []
    else:
        result["faults"] += gpu_health.find_faults(gpus, demands)
    try:
        result["faults"] += gpu_health.hardware_errors(arguments.xid_within_h)
    except gpu_health.CannotTell as unknown:
        result["unknown"].append(f"Xid errors: {unknown}")
    return {**result, "gpus": len(gpus), **_lowest_values(gpus)}


def _lowest_values(gpus: Sequence[gpu_health.Gpu]) -> dict[str, Any]:
    """Return the names of the node's GPUs and the lowest value of each metric; None if no GPU reports it."""

    def least(values: Sequence[float | None]) -> float | None:
        return min((value for value in values if value is not None), default=None)

    return {
        "gpu_names": sorted({gpu.name for gpu in gpus}),
        "power_limit_w": least([gpu.power_limit_w for gpu in gpus]),
        "clock_mhz": least([gpu.clock_mhz for gpu in gpus]),
        "free_gpu_memory_mib": least([gpu.free_memory_mib for gpu in gpus]),
    }


def _multiply(arguments: argparse.Namespace, launch: Launch) -> dict[str, Any]:
    """Measure this rank's matrix multiplication rate while all ranks multiply; return it with its faults.

    Raises RuntimeError if torch fails with an error that is not known as a hardware error.
    """
    local_rank = launch.rank % launch.local_world_size
    what = f"rank {local_rank}" if arguments.device == "cpu" else f"GPU {local_rank}"
    try:
        tflops = _matmul_tflops(arguments.device, local_rank)
    except RuntimeError as error:
        if not any(words in str(error) for words in _HARDWARE_ERRORS):
            raise
        return {"rate_faults": [f"{what} failed at a matrix product: {str(error).splitlines()[0]}"]}
    least = arguments.least_matmul_tflops
    slow = least is not None and tflops < least
    faults = [f"{what} multiplies matrices at {tflops:.4g} TFLOPS, below {least:g}"] if slow else []
    return {"matmul_tflops": tflops, "rate_faults": faults}


def _matmul_tflops(device: str, local_rank: int) -> float:
    """Return the matrix multiplication rate in TFLOPS: the best one on the CPU, the mean on a GPU."""
    import torch

    if device == "cpu":
        left = torch.rand(_CPU_SIZE, _CPU_SIZE)
        product = left @ left  # also starts the threads
        times = []
        for _ in range(_REPEATS_CPU):
            start = time.perf_counter()
            torch.mm(left, left, out=product)
            times.append(time.perf_counter() - start)
        return 2 * _CPU_SIZE**3 / min(times) / 1e12
    torch.cuda.set_device(local_rank)
    left = torch.rand(_GPU_SIZE, _GPU_SIZE, device="cuda", dtype=torch.bfloat16)
    for _ in range(_REPEATS_GPU):  # until the clocks are up
        product = left @ left
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(_REPEATS_GPU):
        torch.mm(left, left, out=product)
    torch.cuda.synchronize()
    return _REPEATS_GPU * 2 * _GPU_SIZE**3 / (time.perf_counter() - start) / 1e12


def _with_rates(nodes: dict[str, dict[str, Any]], reports: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add to each node its slowest rank's rate and the faults of all its ranks; return the nodes."""
    for name, result in nodes.items():
        of_node = [report for report in reports if report["node"] == name]
        rates = [report["matmul_tflops"] for report in of_node if "matmul_tflops" in report]
        result["matmul_tflops"] = min(rates, default=None)
        result["faults"] = [
            *result["faults"],
            *(fault for report in of_node for fault in report["rate_faults"]),
        ]
    return nodes


def _all_reduce(arguments: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Measure the bandwidth of an all-reduce over all ranks, which cannot show a fault of a single node.

    Raises RuntimeError if it fails.
    """
    import torch
    from torch import distributed

    on_cpu = arguments.device == "cpu"
    backend, mib = ("gloo", _CPU_MIB) if on_cpu else ("nccl", _GPU_MIB)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("all_reduce", ranks.store),
        rank=ranks.launch.rank,
        world_size=ranks.launch.world_size,
        timeout=timedelta(seconds=arguments.time_limit_s),
    )
    tensor = torch.ones(mib << 18, dtype=torch.float32, device="cpu" if on_cpu else "cuda")
    times = []
    for _ in range(4):  # the first also connects the ranks
        start = time.perf_counter()
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        if not on_cpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    distributed.destroy_process_group()
    size, count = mib << 20, ranks.launch.world_size
    return {
        "backend": backend,
        "ranks": count,
        "mib": mib,
        # As nccl-tests count it, so that numbers of ranks compare.
        "bus_gb_per_s": size / min(times[1:]) * 2 * (count - 1) / count / 1e9,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.node_check",
        description="Look at every node of a job before it trains; started as the trainer is.",
        epilog=f"exit codes: 0 all are well, {REFUSED} nodes are refused ({OUTPUT} names them), "
        f"{BROKEN} the check could not be made",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True, help="what the training is for")
    parser.add_argument(
        "--time-limit-s", type=float, required=True, help="how long ranks wait for each other"
    )
    parser.add_argument(
        "--product", help="a word that the names of the GPUs have; without it none is looked at"
    )
    parser.add_argument("--least-matmul-tflops", type=float, help="of each rank, in bf16 (fp32 on the CPU)")
    for what, of in (
        ("free-memory", "the node's memory"),
        ("free-gpu-memory", "each GPU's memory"),
        ("power-limit", "each GPU's default power limit"),
        ("clock", "each GPU's default application clock"),
    ):
        parser.add_argument(f"--least-{what}-percent", type=float, default=0, help=f"of {of}")
    parser.add_argument("--xid-within-h", type=float, default=24, help="how far back the kernel's log counts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
