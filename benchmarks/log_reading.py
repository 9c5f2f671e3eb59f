"""How fast training logs are read: `python benchmarks/log_reading.py [--peer PATH] [--only KIND] …`.

Logs are written into a temporary folder: noisy ones, NCCL's tracing with 50 steps in it, of NeMo (plain and
packed) and of Megatron-Bridge; and dense ones, of which every line is a step: of 8 ranks, and of one. Each is
read by steptime and, in the same run, by what there is beside it:

- `rg -c -F` with the words of this working tree's reader (ripgrep; of packed logs `rg -z`, which calls gzip
  and zstd);
- both parsers of a peer, if `--peer` names a checkout of NVIDIA's dgxc-benchmarking from v26.05 on: that of
  NeMo and that of Megatron, over all steps and over ten. It reads no other format and no packed log;
- a pass that only counts line ends, or of packed logs only unpacks them: the limit of this machine.

Rates are megabytes (of packed logs, unpacked) per second of processor time, of the system and of children
too, so that other work on the machine counts as little as can be; readers take turns, and the median counts.
Memory is what a process holds at most that does nothing but read the log: Python with its modules, as the
limit shows, and of rg the log itself, which it maps.

Twice as many logs as there are cores are also read by `steptime parse`, on one core and on all, by the
clock, since that is what a person waits for; of several turns the shortest counts.

The exit code is 2 if a goal is missed: noisy logs at 1.2 times the rate of rg, `.gz` at 1,000 MB/s, dense
logs of 8 ranks at the rate of the peer's parser.
"""

import argparse
import importlib
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from isal import igzip

from figures import Figure, show
from made_logs import NOISY_STEPS, Line, megatron, nemo, torchtitan, write_dense, write_noisy, write_packed
from steptime.logs.reader import read_log

Reader = Callable[[Path], int]
"""Returns how many steps or lines it found in a log."""
Goal = Callable[[Mapping[str, float]], float | None]
"""Returns the goal in MB/s, given the rates of the other readers."""

_ROOT = Path(__file__).parents[1]
_WORDS = (
    "from steptime.logs.events import line_search; print(*map(bytes.decode, line_search().words), sep='\\n')"
)
_PEAK_KIB = (
    "import os, sys; print(os.wait4(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ), 0)[2].ru_maxrss)"
)
"""Starts a program from a small process: its peak memory includes that of the process that starts it."""
_RG = "rg -c -F"
_PEERS: dict[Line, tuple[str, str, int]] = {
    megatron: ("peer's Megatron parser", "megatron_bridge", 1),
    nemo: ("peer's NeMo parser", "nemo2", 0),
}
"""The peer's parser for each form of line: its name, its framework, and the number of the first step."""
_KINDS = ("noisy", "several", "dense")
_DENSE: tuple[tuple[Line, int], ...] = ((nemo, 8), (nemo, 1), (megatron, 1), (torchtitan, 8))
_DENSE_LINES = 160_000
_PIECE_BYTES = 1 << 17


def steptime_reader(log: Path) -> int:
    """Return how many steps steptime finds."""
    return len(read_log(log).steps)


def limit(log: Path) -> int:
    """Return the number of line ends (or only unpack): no reader can be faster."""
    openers: dict[str, Callable[..., Any]] = {".gz": igzip.open, ".zst": zstandard.open}
    unpack = openers.get(log.suffix)
    count = 0
    with unpack(log, "rb") if unpack else log.open("rb", buffering=0) as stream:
        while piece := stream.read(_PIECE_BYTES):
            count += 1 if unpack else piece.count(b"\n")
    return count


class Ripgrep:
    """Counts lines with one of the reader's marker words with ripgrep; the words are this working tree's."""

    def __init__(self, folder: Path) -> None:
        self._words = folder / "words"
        environment = os.environ | {"PYTHONPATH": str(_ROOT / "plugins")}
        with self._words.open("wb") as stream:
            subprocess.run([sys.executable, "-c", _WORDS], env=environment, stdout=stream, check=True)

    def __call__(self, log: Path) -> int:
        """Return the number of lines."""
        return self._number([], log)

    def peak_mb(self, log: Path) -> float:
        """Return the peak memory in MB."""
        return self._number([sys.executable, "-S", "-c", _PEAK_KIB], log) / 1024

    def _number(self, starter: list[str], log: Path) -> int:
        """Return the last number that it prints."""
        options = [] if log.suffix == ".out" else ["-z"]
        command = ["rg", "--count", "--fixed-strings", *options, "--file", str(self._words), str(log)]
        done = subprocess.run([*starter, *command], stdout=subprocess.PIPE, check=True)
        return int(done.stdout.split()[-1])


@dataclass(frozen=True)
class PeerParser:
    """The peer's parser for one framework's lines, over a number of steps of a log."""

    checkout: Path
    framework: str
    first: int
    """The number of the first step."""
    steps: int

    def __call__(self, log: Path) -> int:
        """Return the number of steps that have a time."""
        # Imported without the rest of its package.
        package = types.ModuleType("llmb_run")
        package.__path__ = [str(self.checkout / "cli" / "llmb-run" / "src" / "llmb_run")]
        sys.modules.setdefault("llmb_run", package)
        parser = importlib.import_module("llmb_run.pretrain_log_parser")
        last = self.first + self.steps - 1
        metrics = parser.parse_pretrain_log(log, self.framework, self.first, last).metrics
        return int(metrics.time_sample_count) if metrics else 0


def peer_readers(checkout: Path | None, line: Line, all_steps: int) -> dict[str, Reader]:
    """Return the peer's parser for such lines, over all steps of a log and over its first ten."""
    if checkout is None or line not in _PEERS:
        return {}
    title, framework, first = _PEERS[line]
    return {
        title: PeerParser(checkout, framework, first, all_steps),
        f"{title}, 10 steps": PeerParser(checkout, framework, first, 10),
    }


def processor_s() -> float:
    """Return the processor time so far of this process and its children, in seconds."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_mb(reader: Reader, log: Path) -> float:
    """Return the peak memory in MB of a process that only reads a log."""
    if isinstance(reader, Ripgrep):
        return reader.peak_mb(log)
    with multiprocessing.get_context("forkserver").Pool(1) as clean_process:
        return clean_process.apply(_peak_mb, (reader, log))


def _peak_mb(reader: Reader, log: Path) -> float:
    reader(log)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(
    name: str,
    log: Path,
    readers: dict[str, Reader],
    repeats: int,
    *,
    goal: Goal,
    unpacked: Path | None = None,
) -> Iterator[Figure]:
    """Let the readers take turns: rates and memory of steptime beside those of the others.

    `unpacked` is the log unpacked, whose bytes count.
    """
    # The first pass is into the page cache, so that none of the readers waits for the disk.
    readers = {title: reader for title, reader in readers.items() if reader(log)}
    if "steptime" not in readers:
        print(f"steptime finds nothing in {log.name}", file=sys.stderr)
        return
    megabytes = (unpacked or log).stat().st_size / 1e6
    seconds: dict[str, list[float]] = {title: [] for title in readers}
    for _ in range(repeats):
        for title, reader in readers.items():
            begin = processor_s()
            reader(log)
            seconds[title].append(processor_s() - begin)
    rates = {title: megabytes / statistics.median(times) for title, times in seconds.items()}
    peaks = {title: peak_mb(reader, log) for title, reader in readers.items()}
    yield Figure(f"log: {name}", rates.pop("steptime"), "MB/s", "higher", rates, goal(rates))
    yield Figure(f"log: {name}, memory", peaks.pop("steptime"), "MB", beside=peaks)


def measure_several(name: str, log: Path, repeats: int) -> Figure:
    """Let `steptime parse` read copies of a log on one core and on all cores; return wall times in s."""
    cores = sorted(os.sched_getaffinity(0))
    folder = log.with_suffix("")
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
    shutil.rmtree(folder)
    shortest = {count: min(times) for count, times in seconds.items()}
    title = f"log: {2 * len(cores)} {name}, {len(cores)} cores"
    return Figure(title, shortest[len(cores)], "s", beside={"on one core": shortest[1]})


def as_fast_as(title: str, times: float) -> Goal:
    """Return a goal: `times` the rate of another reader, if it was measured."""
    return lambda rates: times * rates[title] if title in rates else None


def at_least(rate: float | None) -> Goal:
    """Return a goal that is a fixed rate in MB/s."""
    return lambda _: rate


def measure_all(
    folder: Path, peer: Path | None, megabytes: int, repeats: int, kinds: Sequence[str] = _KINDS
) -> Iterator[Figure]:
    """Yield the figures of each kind of log, which is written into `folder`."""
    beside: dict[str, Reader] = {"steptime": steptime_reader, "limit": limit}
    if shutil.which("rg"):
        beside[_RG] = Ripgrep(folder)
    else:
        print("NO COMPARISON WITH RIPGREP: there is no rg (apt-get install ripgrep)", file=sys.stderr)
    if peer is None:
        print("NO COMPARISON WITH THE PEER: no --peer", file=sys.stderr)
    noisy = folder / "noisy.out"
    for line in _PEERS if "noisy" in kinds else ():
        write_noisy(noisy, megabytes, line)
        readers = beside | peer_readers(peer, line, NOISY_STEPS)
        yield from measure(f"noisy, {line.__name__}", noisy, readers, repeats, goal=as_fast_as(_RG, 1.2))
    for suffix, packed in write_packed(noisy).items() if "noisy" in kinds else ():
        goal = at_least(1000.0 if suffix == ".gz" else None)
        yield from measure(f"noisy, {suffix}", packed, beside, repeats, goal=goal, unpacked=noisy)
    if "several" in kinds:
        write_noisy(noisy, megabytes, nemo)
        yield measure_several("noisy", noisy, repeats)
    dense = folder / "dense.out"
    for line, ranks in _DENSE if "dense" in kinds else ():
        steps = _DENSE_LINES // ranks
        write_dense(dense, line, ranks, steps)
        readers = beside | peer_readers(peer, line, steps)
        goal = as_fast_as(_PEERS[line][0], 1.0) if line in _PEERS and ranks > 1 else at_least(None)
        yield from measure(f"{line.__name__}, {ranks} ranks", dense, readers, repeats, goal=goal)


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="checkout of dgxc-benchmarking")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of a log")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=_KINDS, action="append", help="kinds of logs (default: all)")
    parser.add_argument("--folder", type=Path, help="where to write the logs for the time of the run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        figures = measure_all(Path(place), asked.peer, asked.megabytes, asked.repeats, asked.only or _KINDS)
        return show(figures)


if __name__ == "__main__":
    sys.exit(main())
