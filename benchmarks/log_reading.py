"""How fast training logs are read: `python benchmarks/log_reading.py [--peer PATH] [--megabytes N]`.

Two logs are written into a temporary folder: `noisy`, NCCL's tracing with 50 steps in it, and `dense`, of
which every line is a step, printed by eight ranks. Each is read by steptime, by a plain reader that tries
one regular expression on every line (the simplest thing that could work), by a pass that only counts line
ends (the limit of this machine), and by a peer's parsers if `--peer` names a checkout of NVIDIA's
dgxc-benchmarking: its Python (from v26.05 on) and its shell script (until v26.05; it needs gawk).

Rates are megabytes per second of processor time, of the system and of children too, so that other work on
the machine counts as little as can be.
"""

import argparse
import importlib
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path

from steptime.logs.reader import read_log

Reader = Callable[[Path], int]
_NOISY_STEPS = 50
_STEP = re.compile(r"iteration\s+(\d+)/\d+.*train_step_timing in s: ([0-9.]+)")


def step_line(step: int, rank: int, last: int) -> bytes:
    """A step as NeMo 2 prints it, behind srun's label."""
    return (
        f"{rank}: Training epoch 0, iteration {step}/{last} | lr: 4.491e-06 | global_batch_size: 256 | "
        f"global_step: {step} | peak_memory_usage: 72972500992 | memory_allocated: 34466545664 | "
        f"reduced_train_loss: 12.81 | train_step_timing in s: 2.6{step % 100:02} | "
        f"consumed_samples: {(step + 1) * 256}\n"
    ).encode()


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


def write_logs(folder: Path, megabytes: int) -> dict[str, Path]:
    """The noisy and the dense log."""
    noisy, dense = folder / "noisy" / "log-noisy.out", folder / "dense" / "log-dense.out"
    noisy.parent.mkdir()
    dense.parent.mkdir()
    block = nccl_lines(megabytes * 1_000_000 // _NOISY_STEPS)
    with noisy.open("wb") as stream:
        for step in range(_NOISY_STEPS):
            stream.write(block)
            stream.write(step_line(step, 0, _NOISY_STEPS - 1))
    steps = max(1, megabytes * 1_000_000 // 20 // (8 * len(step_line(99, 0, 999))))
    with dense.open("wb") as stream:
        for step in range(steps):
            for rank in range(8):
                stream.write(step_line(step, rank, steps - 1))
    return {"noisy": noisy, "dense": dense}


def steptime_reader(log: Path) -> int:
    """Steps found by steptime."""
    return len(read_log(log).steps)


def line_by_line(log: Path) -> int:
    """Steps found by one regular expression tried on every line."""
    with log.open(errors="replace") as stream:
        return len({match[1] for line in stream if (match := _STEP.search(line))})


def line_ends(log: Path) -> int:
    """Line ends counted: as fast as bytes can be looked at once."""
    with log.open("rb", buffering=0) as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 18), b""))


def peer_script(checkout: Path) -> Reader:
    """The shell parser of a dgxc-benchmarking checkout: it averages ten steps of a run of 50, or none."""
    script = checkout / "common" / "parse_train_timing.sh"

    def read(log: Path) -> int:
        command = ["bash", str(script), "--format=csv", str(log.parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "syntax error" in done.stderr:
            raise SystemExit(f"the peer's script cannot run here: {done.stderr.splitlines()[0]}")
        return 10 if ",Success," in done.stdout else 0

    return read


def peer_reader(checkout: Path) -> Reader:
    """The parser of a dgxc-benchmarking checkout, imported without the rest of its package."""
    package = types.ModuleType("llmb_run")
    package.__path__ = [str(checkout / "cli" / "llmb-run" / "src" / "llmb_run")]
    sys.modules["llmb_run"] = package
    parser = importlib.import_module("llmb_run.pretrain_log_parser")

    def read(log: Path) -> int:
        result = parser.parse_pretrain_log(log, "nemo2", 0, _NOISY_STEPS - 1)
        return result.metrics.time_sample_count if result.metrics else 0

    return read


def processor_s() -> float:
    """Processor time of this process and its children so far, seconds."""
    return sum(os.times()[:4])


def megabytes_per_s(reader: Reader, log: Path, repeats: int) -> tuple[float, int]:
    """Median rate, and what the reader found."""
    seconds = []
    found = 0
    for _ in range(repeats):
        begin = processor_s()
        found = reader(log)
        seconds.append(processor_s() - begin)
    return log.stat().st_size / 1e6 / statistics.median(seconds), found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="checkout of dgxc-benchmarking")
    parser.add_argument(
        "--megabytes", type=int, default=1024, help="size of the noisy log; the dense is a 20th"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write the logs for the time of the run")
    arguments = parser.parse_args()
    readers: dict[str, Reader] = {
        "steptime": steptime_reader,
        "line by line": line_by_line,
        "line ends": line_ends,
    }
    if arguments.peer and (arguments.peer / "cli").is_dir():
        readers["peer, Python"] = peer_reader(arguments.peer)
    if arguments.peer and (arguments.peer / "common").is_dir():
        readers["peer, shell"] = peer_script(arguments.peer)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(f"{'log':8}{'MB':>7}  {'reader':14}{'MB/s':>9}{'found':>10}{'steptime is':>14}")
        for name, log in write_logs(Path(folder), arguments.megabytes).items():
            line_ends(log)  # into the page cache, so that none of the readers waits for the disk
            rates = {
                title: megabytes_per_s(reader, log, arguments.repeats) for title, reader in readers.items()
            }
            for title, (rate, found) in rates.items():
                ratio = rates["steptime"][0] / rate
                size = log.stat().st_size / 1e6
                print(f"{name:8}{size:7.0f}  {title:14}{rate:9.1f}{found:10}{ratio:13.2f}×")


if __name__ == "__main__":
    main()
