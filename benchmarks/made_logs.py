"""Generated logs for benchmarks: NCCL's tracing with some steps in it, and logs of steps alone."""

import gzip
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import zstandard

Line = Callable[[int, int, int], str]
"""Returns the line of a step, given its number, the rank and the last step."""
NOISY_STEPS = 50
_VALUES = random.Random(1)  # noqa: S311 - the same values every time


def nemo(step: int, rank: int, last: int) -> str:
    """Return a step as NeMo 2 prints it, after srun's label; each rank has its own times."""
    return (
        f"{rank}: Training epoch 0, iteration {step}/{last} | lr: {_VALUES.random() * 1e-5:.4g} | "
        f"global_batch_size: 256 | global_step: {step} | peak_memory_usage: 72972500992 | "
        f"memory_allocated: 34466545664 | reduced_train_loss: {_VALUES.uniform(1, 12):.4g} | "
        f"train_step_timing in s: {_VALUES.uniform(2, 3):.4g} | consumed_samples: {(step + 1) * 256}\n"
    )


def megatron(step: int, rank: int, last: int) -> str:
    """Return the two lines of a step of Megatron-Bridge."""
    return (
        f"{rank}: Step Time : 9.09s GPU utilization: {_VALUES.uniform(600, 700):.1f}MODEL_TFLOP/s/GPU\n"
        f"{rank}:  [2025-12-19 10:49:{step % 60:02}] iteration {step + 1:8d}/{last + 1:8d} | "
        f"consumed samples: {step * 512:12d} | elapsed time per iteration (ms): "
        f"{_VALUES.uniform(9e3, 1e4):.1f} | "
        f"learning rate: 3.000000E-04 | global batch size:   512 | lm loss: {_VALUES.uniform(1, 9):.6E} | "
        f"loss scale: 1.0 | grad norm: {_VALUES.random():.3f} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\n"
    )


def torchtitan(step: int, rank: int, _: int) -> str:
    """Return a line of torchtitan in its colours."""
    return (
        f"[rank{rank}]:[titan] 2026-05-18 16:04:46,{step % 1000:03} - root - INFO - "
        f"\x1b[31mstep: {step + 1:2}  "
        f"\x1b[32mloss:  {_VALUES.uniform(1, 9):.5f}  \x1b[38;2;180;60;0mgrad_norm:  {_VALUES.random():.4f}  "
        f"\x1b[36mmemory:  9.46GiB(64.99%)  \x1b[34mtps: {_VALUES.randrange(7000, 8000):,}  "
        "\x1b[36mtflops: 0.52  \x1b[35mmfu: 0.17%\x1b[39m\n"
    )


def nccl_lines(size: int) -> bytes:
    """Return about `size` bytes of NCCL's INFO lines."""
    noise = random.Random(1)  # noqa: S311 - the same noise every time
    lines: list[bytes] = []
    written = 0
    while written < size:
        rank, address = noise.randrange(8), noise.getrandbits(40)
        line = (
            f"node{noise.randrange(64):03}:{2000 + rank}:{2700 + rank} [{rank}] NCCL INFO AllReduce: opCount "
            f"{noise.randrange(9999):x} sendbuff 0x7f{address:010x} recvbuff 0x7f{address:010x} count "
            f"{noise.randrange(10**6)} datatype 9 op 0 root 0 comm 0x55d{address:09x} [nranks=64] "
            f"stream 0x55d{address:09x}\n"
        ).encode()
        lines.append(line)
        written += len(line)
    return b"".join(lines)


def write_noisy(log: Path, megabytes: int, line: Line) -> None:
    """Write a log of NCCL's tracing with some steps."""
    block = nccl_lines(megabytes * 1_000_000 // NOISY_STEPS)
    with log.open("wb") as stream:
        for step in range(NOISY_STEPS):
            stream.write(block)
            stream.write(line(step, 0, NOISY_STEPS - 1).encode())


def write_dense(log: Path, line: Line, ranks: int, steps: int) -> None:
    """Write a log of which every line is a step of a rank."""
    with log.open("w") as stream:
        for step in range(steps):
            stream.writelines(line(step, rank, steps - 1) for rank in range(ranks))


def write_packed(log: Path) -> dict[str, Path]:
    """Compress the log with each program; return the files by suffix."""
    packed, packed_by_zstd = log.with_suffix(".out.gz"), log.with_suffix(".out.zst")
    with log.open("rb") as stream, gzip.open(packed, "wb", 6) as target:
        shutil.copyfileobj(stream, target)
    with log.open("rb") as stream, packed_by_zstd.open("wb") as target:
        zstandard.ZstdCompressor().copy_stream(stream, target)
    return {".gz": packed, ".zst": packed_by_zstd}
