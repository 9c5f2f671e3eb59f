"""How fast training logs are read: `python benchmarks/log_reading.py [--peer PATH] [--megabytes N] [--json]`.

Logs are written into a temporary folder: noisy ones, NCCL's tracing with 50 steps in it, of NeMo (plain and
packed) and of Megatron-Bridge, and dense ones, of which every line is a step, by format and ranks. Each is
read by steptime and, in the same run, by what there is beside it:

- `rg -c -F` with steptime's own words (ripgrep; of packed logs `rg -z`, which calls gzip and zstd);
- both parsers of a peer, if `--peer` names a checkout of NVIDIA's dgxc-benchmarking from v26.05 on: that of
  NeMo and that of Megatron, over all steps and over ten. It reads no other format and no packed log;
- a pass that only counts line ends, or of packed logs only unpacks them: the limit of this machine.

Rates are megabytes (of packed logs, unpacked) per second of processor time, of the system and of children
too, so that other work on the machine counts as little as can be; readers take turns, and the median counts.

Twice as many noisy logs as there are cores are also read by `steptime parse`, on one core and on all, by the
clock, since that is what a person waits for; of several turns the shortest counts.
"""

import argparse
import gzip
import importlib
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import zstandard

from figures import Figure, add_form, show
from steptime.logs.events import search_words
from steptime.logs.reader import read_log, unpacked

Line = Callable[[int, int, int], str]
"""Makes the line of a step, by its number, the rank and the last step."""
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


_PEERS: dict[Line, tuple[str, str, int]] = {
    nemo: ("NeMo", "nemo2", 0),
    megatron: ("Megatron", "megatron_bridge", 1),
}
"""Parsers of the peer: a name, the framework that chooses it, and how it counts the first step."""


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


def write_noisy(log: Path, megabytes: int, line: Line) -> None:
    """A log of NCCL's tracing with some steps."""
    block = nccl_lines(megabytes * 1_000_000 // _NOISY_STEPS)
    with log.open("wb") as stream:
        for step in range(_NOISY_STEPS):
            stream.write(block)
            stream.write(line(step, 0, _NOISY_STEPS - 1).encode())


def write_packed(log: Path) -> dict[str, Path]:
    """The log, packed by each program."""
    packed, packed_by_zstd = log.with_suffix(".out.gz"), log.with_suffix(".out.zst")
    with log.open("rb") as stream, gzip.open(packed, "wb", 6) as target:
        shutil.copyfileobj(stream, target)
    with log.open("rb") as stream, packed_by_zstd.open("wb") as target:
        zstandard.ZstdCompressor().copy_stream(stream, target)
    return {"noisy, .gz": packed, "noisy, .zst": packed_by_zstd}


def write_dense(log: Path, megabytes: int, line: Line, ranks: int) -> int:
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


def peer_readers(checkout: Path | None, line: Line, counts: Sequence[int]) -> dict[str, Reader]:
    """The peer's parser of such lines, over its first steps, so many for each of `counts`."""
    if checkout is None or line not in _PEERS:
        return {}
    name, framework, first = _PEERS[line]
    # Imported without the rest of its package.
    package = types.ModuleType("llmb_run")
    package.__path__ = [str(checkout / "cli" / "llmb-run" / "src" / "llmb_run")]
    sys.modules["llmb_run"] = package
    parser = importlib.import_module("llmb_run.pretrain_log_parser")

    def read(log: Path, steps: int) -> int:
        result = parser.parse_pretrain_log(log, framework, first, first + steps - 1)
        return result.metrics.time_sample_count if result.metrics else 0

    return {f"peer's {name} parser, {steps} steps": partial(read, steps=steps) for steps in counts}


def processor_s() -> float:
    """Processor time of this process and its children so far, seconds."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(name: str, log: Path, readers: dict[str, Reader], repeats: int, size: int = 0) -> Figure:
    """Let the readers take turns; the rate of steptime beside those of the others. `size` is unpacked."""
    limit(log)  # into the page cache, so that none of the readers waits for the disk
    megabytes = (size or log.stat().st_size) / 1e6
    seconds: dict[str, list[float]] = {title: [] for title in readers}
    for _ in range(repeats):
        for title, reader in readers.items():
            begin = processor_s()
            assert reader(log), f"{title} has found nothing in {log}"
            seconds[title].append(processor_s() - begin)
    rates = {title: megabytes / statistics.median(times) for title, times in seconds.items()}
    return Figure(f"log: {name}", rates.pop("steptime"), "MB/s", "higher", rates)


def measure_several(log: Path, folder: Path, repeats: int) -> Figure:
    """Let `steptime parse` read many copies of a log on one core and on all: seconds of the clock."""
    cores = sorted(os.sched_getaffinity(0))
    folder.mkdir()
    for number in range(2 * len(cores)):
        (folder / f"log-{number}.out").hardlink_to(log)
    program = "from steptime.cli import main; main()"
    command = [sys.executable, "-c", program, "parse", str(folder), "--format", "csv"]
    seconds: dict[int, list[float]] = {1: [], len(cores): []}
    for _ in range(repeats):
        for count, times in seconds.items():
            os.sched_setaffinity(0, cores[:count])
            begin = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            times.append(time.perf_counter() - begin)
    os.sched_setaffinity(0, cores)
    shortest = {count: min(times) for count, times in seconds.items()}
    name = f"log: {2 * len(cores)} noisy, {len(cores)} cores"
    return Figure(name, shortest[len(cores)], "s", beside={"on one core": shortest[1]})


def measure_all(folder: Path, peer: Path | None, megabytes: int, repeats: int) -> Iterator[Figure]:
    """A figure for each kind of log, which is written into `folder`."""
    beside: dict[str, Reader] = {"limit": limit}
    if shutil.which("rg"):
        (folder / "words").write_bytes(b"\n".join(search_words()) + b"\n")
        beside["rg -c -F"] = ripgrep(folder / "words")
    else:
        print("NO COMPARISON WITH RIPGREP: there is no rg (apt-get install ripgrep)", file=sys.stderr)
    if peer is None:
        print("NO COMPARISON WITH THE PEER: no --peer", file=sys.stderr)
    log = folder / "log-noisy.out"
    for line in (megatron, nemo):
        write_noisy(log, megabytes, line)
        readers = {"steptime": steptime_reader, **beside, **peer_readers(peer, line, [_NOISY_STEPS])}
        yield measure(f"noisy, {line.__name__}", log, readers, repeats)
    yield measure_several(log, folder / "several", repeats)
    for title, packed in write_packed(log).items():
        yield measure(title, packed, {"steptime": steptime_reader, **beside}, repeats, log.stat().st_size)
    log = folder / "log-dense.out"
    for line in (nemo, megatron, torchtitan):
        for ranks in (8, 1):
            steps = write_dense(log, max(1, megabytes // 20), line, ranks)
            title = f"{line.__name__}, {ranks} rank{'s' if ranks > 1 else ''}"
            readers = {"steptime": steptime_reader, **beside, **peer_readers(peer, line, [steps, 10])}
            yield measure(title, log, readers, repeats)


def main() -> int:
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
    add_form(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        figures = measure_all(Path(folder), asked.peer, asked.megabytes, asked.repeats)
        return show(figures, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
