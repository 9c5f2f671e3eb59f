"""How fast training logs are read: `python benchmarks/log_reading.py [--peer PATH] [--megabytes N]`.

Logs are written into a temporary folder: `noisy`, NCCL's tracing with 50 steps in it, plain and packed, and
dense ones, of which every line is a step, by format and ranks. Each is read by steptime and, in the same run,
by what there is beside it:

- `rg -c -F` with steptime's own words (ripgrep; of packed logs `rg -z`, which calls gzip and zstd);
- the parsers of a peer, if `--peer` names a checkout of NVIDIA's dgxc-benchmarking from v26.05 on: its NeMo
  parser over all steps and over ten, and its Megatron parser. It reads no other format and no packed log;
- a pass that only counts line ends, or of packed logs only unpacks them: the limit of this machine.

Rates are megabytes (of packed logs, unpacked) per second of processor time, of the system and of children
too, so that other work on the machine counts as little as can be; readers take turns, and the median counts.
"""

import argparse
import gzip
import importlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

import zstandard

from steptime.logs.events import search_words
from steptime.logs.reader import read_log, unpacked

Reader = Callable[[Path], int]
"""Gives how many steps, or lines, it found."""
_NOISY_STEPS = 50
_VALUES = random.Random(1)  # noqa: S311 - the same values every time


def nemo(step: int, rank: int, last: int) -> str:
    """A step as NeMo 2 prints it, behind srun's label; each rank has times of its own."""
    return (
        f"{rank}: Training epoch 0, iteration {step}/{last} | lr: {_VALUES.random() * 1e-5:.4g} | "
        f"global_batch_size: 256 | global_step: {step} | peak_memory_usage: 72972500992 | "
        f"memory_allocated: 34466545664 | reduced_train_loss: {_VALUES.uniform(1, 12):.4g} | "
        f"train_step_timing in s: {_VALUES.uniform(2, 3):.4g} | consumed_samples: {(step + 1) * 256}\n"
    )


def megatron(step: int, rank: int, last: int) -> str:
    """The two lines of Megatron-Bridge."""
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
    """A line of torchtitan, in its colours."""
    return (
        f"[rank{rank}]:[titan] 2026-05-18 16:04:46,{step % 1000:03} - root - INFO - "
        f"\x1b[31mstep: {step + 1:2}  "
        f"\x1b[32mloss:  {_VALUES.uniform(1, 9):.5f}  \x1b[38;2;180;60;0mgrad_norm:  {_VALUES.random():.4f}  "
        f"\x1b[36mmemory:  9.46GiB(64.99%)  \x1b[34mtps: {_VALUES.randrange(7000, 8000):,}  "
        "\x1b[36mtflops: 0.52  \x1b[35mmfu: 0.17%\x1b[39m\n"
    )


def nccl_lines(size: int) -> bytes:
    """About `size` bytes of NCCL's INFO lines."""
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


def write_noisy(log: Path, megabytes: int) -> dict[str, Path]:
    """The noisy log, plain and packed."""
    block = nccl_lines(megabytes * 1_000_000 // _NOISY_STEPS)
    with log.open("wb") as stream:
        for step in range(_NOISY_STEPS):
            stream.write(block)
            stream.write(nemo(step, 0, _NOISY_STEPS - 1).encode())
    packed, packed_by_zstd = log.with_suffix(".out.gz"), log.with_suffix(".out.zst")
    with log.open("rb") as stream, gzip.open(packed, "wb", 6) as target:
        shutil.copyfileobj(stream, target)
    with log.open("rb") as stream, packed_by_zstd.open("wb") as target:
        zstandard.ZstdCompressor().copy_stream(stream, target)
    return {"noisy": log, "noisy, .gz": packed, "noisy, .zst": packed_by_zstd}


def write_dense(log: Path, megabytes: int, line: Callable[[int, int, int], str], ranks: int) -> int:
    """A log of steps alone; how many."""
    steps = max(200, megabytes * 1_000_000 // (ranks * len(line(99, 0, 999))))
    with log.open("w") as stream:
        for step in range(steps):
            stream.writelines(line(step, rank, steps - 1) for rank in range(ranks))
    return steps


def steptime_reader(log: Path) -> int:
    """Steps found by steptime."""
    return len(read_log(log).steps)


def limit(log: Path) -> int:
    """Line ends counted, or only unpacked: as fast as bytes can be looked at once."""
    return sum(1 if log.suffix != ".out" else piece.count(b"\n") for piece in unpacked(log))


def ripgrep(words: Path) -> Reader:
    """Lines with one of the words, counted by rg."""

    def read(log: Path) -> int:
        options = ["-z"] if log.suffix != ".out" else []
        command = ["rg", "--count", "--fixed-strings", *options, "--file", str(words), str(log)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    return read


def peer_reader(checkout: Path, framework: str, steps: int, first: int = 0) -> Reader:
    """A parser of a dgxc-benchmarking checkout, imported without the rest of its package."""
    package = types.ModuleType("llmb_run")
    package.__path__ = [str(checkout / "cli" / "llmb-run" / "src" / "llmb_run")]
    sys.modules["llmb_run"] = package
    parser = importlib.import_module("llmb_run.pretrain_log_parser")

    def read(log: Path) -> int:
        result = parser.parse_pretrain_log(log, framework, first, first + steps - 1)
        return result.metrics.time_sample_count if result.metrics else 0

    return read


def processor_s() -> float:
    """Processor time of this process and its children so far, seconds."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(name: str, log: Path, size: float, readers: dict[str, Reader], repeats: int) -> None:
    """Let the readers take turns, and print a row for each."""
    limit(log)  # into the page cache, so that none of the readers waits for the disk
    seconds: dict[str, list[float]] = {title: [] for title in readers}
    found = {}
    for _ in range(repeats):
        for title, reader in readers.items():
            begin = processor_s()
            found[title] = reader(log)
            seconds[title].append(processor_s() - begin)
    rates = {title: size / 1e6 / statistics.median(times) for title, times in seconds.items()}
    for title, rate in rates.items():
        ratio = rates["steptime"] / rate
        print(f"{name:22}{size / 1e6:6.0f}  {title:20}{rate:8.1f}{found[title]:10}{ratio:13.2f}×", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="checkout of dgxc-benchmarking")
    parser.add_argument(
        "--megabytes", type=int, default=1024, help="size of the noisy log; a dense one is a 20th"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write the logs for the time of the run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        beside: dict[str, Reader] = {"limit": limit}
        if shutil.which("rg"):
            (folder / "words").write_bytes(b"\n".join(search_words()) + b"\n")
            beside["rg -c -F"] = ripgrep(folder / "words")
        else:
            print("NO COMPARISON WITH RIPGREP: there is no rg (apt-get install ripgrep)", file=sys.stderr)
        if arguments.peer is None:
            print("NO COMPARISON WITH THE PEER: no --peer", file=sys.stderr)
        print(f"{'log':22}{'MB':>6}  {'reader':20}{'MB/s':>8}{'found':>10}{'steptime is':>14}")
        noisy = write_noisy(folder / "log-noisy.out", arguments.megabytes)
        for title, log in noisy.items():
            readers: dict[str, Reader] = {"steptime": steptime_reader, **beside}
            if arguments.peer and log.suffix == ".out":
                readers["peer, NeMo"] = peer_reader(arguments.peer, "nemo2", _NOISY_STEPS)
            measure(title, log, noisy["noisy"].stat().st_size, readers, arguments.repeats)
        for line, framework in ((nemo, "nemo2"), (megatron, "megatron_bridge"), (torchtitan, None)):
            for ranks in (8, 1):
                log = folder / "log-dense.out"
                steps = write_dense(log, max(1, arguments.megabytes // 20), line, ranks)
                readers = {"steptime": steptime_reader, **beside}
                if arguments.peer and framework:
                    readers["peer, all steps"] = peer_reader(
                        arguments.peer, framework, steps, int(line is megatron)
                    )
                    readers["peer, ten steps"] = peer_reader(arguments.peer, framework, 10, 35)
                title = f"{line.__name__}, {ranks} rank{'s' if ranks > 1 else ''}"
                measure(title, log, log.stat().st_size, readers, arguments.repeats)


if __name__ == "__main__":
    main()
