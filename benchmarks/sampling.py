"""What rank times and GPU samples cost a training.

    python benchmarks/sampling.py [--ranks 2] [--seconds 30]

Trains the tiny Llama 3.1 on the CPU with gloo, in the trainer's environment, which is staged for the local
cluster if it is not there. Measured is the processor time of rank 0's thread on the steps that are timed: of
calling the model for each micro batch, without its forward pass and less the same on the steps that are not
timed; of the hooks around each step; and of the step. Neither waiting nor other programs on the machine
count. On GPUs two CUDA events take the place of two reads of a clock.

The process that samples GPUs is measured beside it, with eight GPUs, for some seconds: the processor time
per sample of all GPUs, of which it takes one per second. Without nvidia-smi it gets the stand-in of the
tests. nvidia-smi itself does not count.

The steps of the tiny model are short, so the time per micro batch is also shown as a share of a published
step of Llama 3.1 8B on H100s. That is an upper bound: GPUs need not wait while the host is ahead of them.

The exit code is 2 if a goal is missed: 0.1 % of a step, 0.1 % of a core.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from figures import Figure, show
from steptime.clusters.config import load_cluster, open_cluster
from steptime.recipes.models import Run
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.staging.stage import stage
from steptime.waiting import poll_until

_ROOT = Path(__file__).parents[1]
_STAND_INS = _ROOT / "tests" / "stand_ins" / "gpu_node"
_GPUS = 8
_GOAL_PERCENT = 0.1
_PUBLISHED_MICRO_BATCH_S = 12.27 / 32
"""llama3.1-25.04, 8b, bf16 on 8 H100s: the published step time over 128 samples on 4 data-parallel ranks."""


def staged_python(run: Run) -> str:
    """Stage the trainer's environment for the local cluster; return its interpreter."""
    config = load_cluster("local")
    staged = asyncio.run(stage(open_cluster(config), config, run, lambda line: print(line, file=sys.stderr)))
    assert staged.python is not None
    return staged.python


def train(run: Run, folder: Path) -> dict[str, Any]:
    """Train a run; return what `sampled_training.py` prints."""
    (folder / "run.json").write_text(run.model_dump_json(), encoding="utf-8")
    program = [staged_python(run), str(_ROOT / "benchmarks" / "sampled_training.py")]
    done = subprocess.run(
        [*program, "run.json", f"--output={folder}"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("costs ")]
    costs: dict[str, Any] = json.loads(line.removeprefix("costs "))
    return costs


def in_steps(ranks: int, folder: Path) -> Iterator[Figure]:
    """Measure what sampling costs within the steps of a training."""
    asked = PlanRequest(
        workload="llama3.1", gpu_type="cpu", size="tiny", gpus=str(ranks), gpu_samples=True, cluster="local"
    )
    costs = train(plan(asked).runs[0], folder)
    rows = list(zip(costs["calls_s"], costs["hooks_s"], costs["steps_s"], strict=True))
    step_s = statistics.median(costs["steps_s"])
    micro_batches = len(costs["calls_s"][0])
    bare_s = costs["call_without_hooks_s"]
    micro_batch_s = statistics.median(sum(calls_s) / micro_batches for calls_s, _, _ in rows) - bare_s
    shares = [(sum(calls_s) - micro_batches * bare_s + hooks_s) / step_s for calls_s, hooks_s, step_s in rows]
    yield Figure(f"step of {micro_batches} micro batches, {ranks} ranks", 1000 * step_s, "ms")
    yield Figure("rank times, per micro batch", 1e6 * micro_batch_s, "µs")
    yield Figure("hooks of a step", 1e6 * statistics.median(costs["hooks_s"]), "µs")
    yield Figure("both, share of a step", 100 * statistics.median(shares), "%", goal=_GOAL_PERCENT)
    of_published = 100 * micro_batch_s / _PUBLISHED_MICRO_BATCH_S
    yield Figure("the same time, share of 8b on 8 H100s", of_published, "%", goal=_GOAL_PERCENT)
    yield Figure("rank times, gathered once at the end", 1000 * costs["end_s"], "ms")


def beside(seconds: float, folder: Path) -> Figure:
    """Measure the process that samples the GPUs, from its first sample on."""
    from trainer.gpu_samples import FOLDER, SamplingProcess

    sampling = SamplingProcess(folder, _GPUS)
    (process,) = psutil.Process().children()
    [file] = poll_until(lambda: list((folder / FOLDER).glob("*.csv")), every_s=0.1, timeout_s=60)
    assert poll_until(lambda: lines(file) > _GPUS, every_s=0.1, timeout_s=60)
    used_s, before = processor_s(process.pid), lines(file)
    time.sleep(seconds)
    used_s, samples = processor_s(process.pid) - used_s, (lines(file) - before) / _GPUS
    sampling.end(None, None)
    return Figure(f"GPU samples of {_GPUS} GPUs, of a core", 100 * used_s / samples, "%", goal=_GOAL_PERCENT)


def lines(file: Path) -> int:
    """Return the number of lines of a file."""
    return file.read_bytes().count(b"\n")


def processor_s(pid: int) -> float:
    """Return the processor time of a process without its children, in seconds.

    As the scheduler counts it, in nanoseconds; psutil's unit is a clock tick of 10 ms.
    """
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


def measure(ranks: int, seconds: float) -> Iterator[Figure]:
    """Measure the sampling process alone, then a training."""
    sys.path.insert(0, str(_ROOT))
    os.environ["PYTHONPATH"] = str(_ROOT)
    if shutil.which("nvidia-smi") is None:
        os.environ["PATH"] = f"{_STAND_INS}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        yield beside(seconds, Path(folder))
        yield from in_steps(ranks, Path(folder))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=2, help="processes that train")
    parser.add_argument("--seconds", type=float, default=30, help="to measure the process for (default: 30)")
    asked = parser.parse_args()
    return show(measure(asked.ranks, asked.seconds))


if __name__ == "__main__":
    sys.exit(main())
