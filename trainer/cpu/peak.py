"""Measure the peak FLOP rate of a CPU rank by matrix products on all ranks at once."""

import time
from dataclasses import dataclass

import torch

SIZE = 1024
REPEATS = 5
TIME_LIMIT_S = 0.8


@dataclass(frozen=True)
class MeasuredPeak:
    """The highest measured FLOP rate of a rank."""

    tflops: float
    """10¹² operations per second, per rank."""
    source: str
    """How it was measured."""


def measure_peak() -> MeasuredPeak:
    """Measure the peak by multiplying two fp32 matrices on all ranks at once (collective, about 0.2 s).

    Each repetition starts at a barrier and takes the time of its slowest rank, as a training step does; the
    fastest repetition gives the peak. Ranks that share cores also share the peak.
    """
    left, right = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    product = torch.mm(left, right)  # the first product also starts the threads
    best_s = float("inf")
    begin = time.perf_counter()
    repeats = 0
    while repeats < REPEATS:
        torch.distributed.barrier()
        start = time.perf_counter()
        torch.mm(left, right, out=product)
        slowest = torch.tensor(
            [time.perf_counter() - start, time.perf_counter() - begin], dtype=torch.float64
        )
        torch.distributed.all_reduce(slowest, op=torch.distributed.ReduceOp.MAX)
        duration_s, elapsed_s = slowest.tolist()
        best_s = min(best_s, duration_s)
        repeats += 1
        if elapsed_s > TIME_LIMIT_S:  # agreed by all ranks, as all see the same maximum
            break
    return MeasuredPeak(
        tflops=2 * SIZE**3 / best_s / 1e12,
        source=(
            f"GEMM fp32 {SIZE}×{SIZE}×{SIZE}, {torch.get_num_threads()} thread(s), "
            f"{torch.distributed.get_world_size()} rank(s) at once, best of {repeats}, measured at start"
        ),
    )
