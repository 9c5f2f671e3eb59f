"""`python -m trainer.collectives COLLECTIVE`: time a collective operation over message sizes, on all ranks.

Terms are those of nccl-tests (doc/PERFORMANCE.md): the size of an all-gather, a reduce-scatter and an
all-to-all is the sum over all ranks, and the bus bandwidth is the data rate of each rank's link. Each cycle
measures all sizes. The time of the largest message is the step time of the cycle; the record
`steptime.collective` has the medians of all sizes.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainer import records
from trainer.errors import TrainerError
from trainer.launch import Launch, read_launch

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
_WARM_UP = 5
"""Untimed calls before each measurement on GPUs."""
_ROW = re.compile(r"\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+]+)\s+[\d.]+\s+[\d.]+\s+(\S+)")
"""A row of nccl-tests: bytes, elements, type, operation, root; µs, two bandwidths, wrong values."""
_RANK = re.compile(r"#\s+Rank\s+\d+ ")
_HEADING = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
_UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"


def bus_bandwidth_gb_s(collective: str, size: int, ranks: int, seconds: float) -> float:
    """Return the bus bandwidth in 10⁹ bytes per second; 0 for one rank, which sends nothing."""
    passes = 2 if collective == "all_reduce" else 1
    return passes * (ranks - 1) / ranks * size / seconds / 1e9


class Measurements:
    """Communication times by message size, collected on rank 0 and printed in one record at the end.

    Each pass over all sizes (a cycle) is also printed as a step, with the time of the largest message as the
    step time.
    """

    def __init__(self, collective: str, launch: Launch, arguments: argparse.Namespace) -> None:
        self._collective, self._ranks = collective, launch.world_size
        self._cycles, self._largest = arguments.cycles, arguments.max_bytes
        self._times = defaultdict[int, list[float]](list)

    def add(self, size: int, seconds: float, *, last: bool) -> None:
        """Add the time of a message of `size` bytes; if it is the `last` of a cycle, print the step."""
        self._times[size].append(seconds)
        if last:
            step = len(self._times[size]) - 1
            print(
                f"Training epoch 0, iteration {step}/{self._cycles - 1} | global_step: {step} | "
                f"train_step_timing in s: {seconds:.6g}",
                flush=True,
            )

    def emit(self) -> None:
        """Print the record `steptime.collective`: median time and bus bandwidth of each message size."""
        medians = {size: statistics.median(times) for size, times in sorted(self._times.items())}
        messages = [
            {
                "bytes": size,
                "time_s": seconds,
                "bus_bandwidth_gb_s": bus_bandwidth_gb_s(self._collective, size, self._ranks, seconds),
            }
            for size, seconds in medians.items()
        ]
        record = {"schema": 1, "collective": self._collective, "ranks": self._ranks, "messages": messages}
        records.emit("collective", record)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one collective operation; return the exit code, 1 if the measurement failed."""
    arguments = _parser().parse_args(argv)
    on_cpu = arguments.device == "cpu"
    arguments.min_bytes = arguments.min_bytes or (1 << 12 if on_cpu else 1 << 20)
    arguments.max_bytes = arguments.max_bytes or (1 << 22 if on_cpu else 1 << 33)
    arguments.factor = arguments.factor or (16 if on_cpu else 2)
    arguments.calls = arguments.calls or (3 if on_cpu else 20)
    try:
        launch = read_launch()
        measurements = Measurements(arguments.collective, launch, arguments)
        measure = _by_nccl_tests if arguments.nccl_tests and not on_cpu else _by_torch
        measure(arguments, launch, measurements)
    except (TrainerError, OSError, RuntimeError) as error:
        print(f"steptime: {arguments.collective} was not measured: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _sizes(arguments: argparse.Namespace) -> Iterator[int]:
    size = arguments.min_bytes
    while size < arguments.max_bytes:
        yield size
        size *= arguments.factor
    yield arguments.max_bytes


def _by_torch(arguments: argparse.Namespace, launch: Launch, measurements: Measurements) -> None:
    """Measure with torch.distributed: NCCL on GPUs, gloo on the CPU."""
    import torch
    import torch.distributed as dist

    on_cpu = arguments.device == "cpu"
    torch.set_num_threads(launch.threads)
    if on_cpu and launch.on_one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks the host's name up
    if not on_cpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(
        "gloo" if on_cpu else "nccl", rank=launch.rank, world_size=launch.world_size, init_method=_meeting()
    )
    if launch.rank == 0:
        print(f"{_HEADING}\n{_UNITS}", flush=True)
    for _ in range(arguments.cycles):
        for size in _sizes(arguments):
            call, elements, dtype = _call(arguments.collective, size, launch.world_size, on_cpu=on_cpu)
            seconds = _time(call, arguments.calls, on_cpu=on_cpu)
            if launch.rank == 0:
                moved = elements * dtype.itemsize
                bus = bus_bandwidth_gb_s(arguments.collective, moved, launch.world_size, seconds)
                redop = "sum" if "reduce" in arguments.collective else "none"
                kind = str(dtype).removeprefix("torch.")
                print(
                    f"{moved:12d}  {elements:12d}  {kind:>8s}  {redop:>6s}      -1  {seconds * 1e6:7.1f}  "
                    f"{moved / seconds / 1e9:6.2f}  {bus:6.2f}    N/A",
                    flush=True,
                )
                measurements.add(moved, seconds, last=size == arguments.max_bytes)
    if launch.rank == 0:
        measurements.emit()
    dist.destroy_process_group()


def _meeting() -> str:
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "0")
    return f"tcp://{address}:{port}" if "TORCHELASTIC_RUN_ID" not in os.environ else "env://"


def _call(collective: str, size: int, ranks: int, *, on_cpu: bool) -> tuple[Callable[[], Any], int, Any]:
    """Return the call to time, the number of elements in its message, and their data type."""
    import torch
    import torch.distributed as dist

    device, dtype = ("cpu", torch.float32) if on_cpu else ("cuda", torch.bfloat16)
    part = max(1, size // dtype.itemsize // ranks)
    whole, shard = (
        torch.ones(part * ranks, device=device, dtype=dtype),
        torch.ones(part, device=device, dtype=dtype),
    )
    call: Callable[[], Any] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
        "alltoall": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
    }[collective]
    return call, part * ranks, dtype


def _time(call: Callable[[], Any], calls: int, *, on_cpu: bool) -> float:
    """Return the mean seconds of a call, over all ranks."""
    import torch
    import torch.distributed as dist

    for _ in range(1 if on_cpu else _WARM_UP):
        call()
    dist.barrier()
    if not on_cpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    if not on_cpu:
        torch.cuda.synchronize()
    launched = dist.get_world_size()
    seconds = torch.tensor([(time.perf_counter() - began) / calls], dtype=torch.float64)
    mean = seconds if on_cpu else seconds.cuda()
    dist.all_reduce(mean)
    return float(mean.item() / launched)


def _by_nccl_tests(arguments: argparse.Namespace, launch: Launch, measurements: Measurements) -> None:
    """Run the nccl-tests program, built with MPI, on this rank; on rank 0 it prints the table of times."""
    program = f"{arguments.collective}_perf_mpi"
    options = {
        "-b": arguments.min_bytes,
        "-e": arguments.max_bytes,
        "-f": arguments.factor,
        "-w": _WARM_UP,
        "-n": arguments.calls,
        "-N": arguments.cycles,
        "-d": "bfloat16",
        "-g": 1,
    }
    command = [program, *(str(text) for pair in options.items() for text in pair)]
    ranks = rows = 0
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise TrainerError(
            f"the image has no {program}: choose one with nccl-tests built with MPI, or leave --nccl-tests "
            "out of the workload's command to measure with torch."
        ) from None
    with child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            ranks += bool(_RANK.match(line))
            if (row := _ROW.match(line)) is None:
                continue
            if ranks != launch.world_size:
                child.terminate()
                raise TrainerError(
                    f"{program} has {ranks} of {launch.world_size} ranks: MPI does not connect them. On "
                    "Slurm write mpi: pmix into the cluster's file; elsewhere leave --nccl-tests out "
                    "of the workload's command to measure with torch."
                )
            if row[3] not in ("0", "N/A"):
                child.terminate()
                raise TrainerError(
                    f"{program} received {row[3]} wrong values in a message of {row[1]} bytes."
                )
            rows += 1
            size = int(row[1])
            measurements.add(size, float(row[2]) / 1e6, last=size * arguments.factor > arguments.max_bytes)
    if child.returncode:
        raise TrainerError(f"{program} ended with exit code {child.returncode}.")
    if rows:
        measurements.emit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.collectives", description=__doc__)
    parser.add_argument("collective", choices=COLLECTIVES)
    parser.add_argument("--device", default="cpu", help="cpu, or a type of GPU")
    parser.add_argument("--cycles", type=int, default=20, help="how often all sizes are measured")
    parser.add_argument("--min-bytes", type=int, help="by default 4 KiB on the CPU, 1 MiB on GPUs")
    parser.add_argument("--max-bytes", type=int, help="by default 4 MiB on the CPU, 8 GiB on GPUs")
    parser.add_argument("--factor", type=int, help="from one size to the next; 16 on the CPU, 2 on GPUs")
    parser.add_argument("--calls", type=int, help="of a measurement; by default 3 on the CPU, 20 on GPUs")
    parser.add_argument("--nccl-tests", action="store_true", help="on GPUs run nccl-tests, not torch")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
