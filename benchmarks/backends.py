"""What the trainer's two backends cost for the same training: Megatron-Bridge beside NeMo 2.

    python benchmarks/backends.py [--ranks 2] [--repeats 3]

Trains the tiny Llama 3.1 on the CPU with gloo, from the same seed and data, saves a checkpoint after the last
step and loads it in a second job, each in the backend's own environment, which is staged for the local
cluster if it is not there. The backends take turns, so that other programs on the machine slow both, and each
figure is the median of the repeats. A ratio above 1 means that Megatron-Bridge is better.

The step is the median of the planned window. Peak memory is that of a rank's process, with the framework. A
save is what the trainer records: with NeMo the call that saves, with Megatron-Bridge all from the end of the
last step on. A load is what the log tells.

The exit code is 2 if the losses differ by more than rounding.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import Figure, show
from sampling import staged_python
from steptime.logs.reader import read_log
from steptime.recipes.models import Run
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest

_ROOT = Path(__file__).parents[1]
BACKENDS = BRIDGE, NEMO = "megatron_bridge", "nemo"
_ROUNDING = 1e-5
_CHECKPOINTS = Path("code", "nemo_experiments", "default", "checkpoints")
_FIGURES = {
    "imports": "s",
    "step": "ms",
    "peak memory of rank 0": "MiB",
    "save": "s",
    "load": "s",
    "checkpoint": "MiB",
}


def train(run: Run, folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Train a run in a new folder; return its steps, and by kind the trainer's records."""
    folder.mkdir()
    (folder / "run.json").write_text(run.model_dump_json(), encoding="utf-8")
    with (folder / "log.out").open("w") as log:
        subprocess.run(
            [staged_python(run), "-m", "trainer.cpu_ranks", "run.json", "--history", "history.jsonl"],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )
    steps = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    records = {}
    for line in (folder / "log.out").read_text().splitlines():
        if line.startswith("steptime."):
            kind, _, fields = line.removeprefix("steptime.").partition(" ")
            records[kind] = json.loads(fields)
    return steps, records


def save_and_load(backend: str, ranks: int, folder: Path) -> tuple[list[float], dict[str, float]]:
    """Train, save and load with a backend; return the losses and the figures of one repeat."""
    request = PlanRequest(workload="llama3.1", gpu_type="cpu", size="tiny", gpus=str(ranks), checkpoint=True)
    (pair,) = plan(request).checkpoint_pairs
    recipe = pair.save.recipe.model_copy(update={"backend": backend})
    saving, loading = (run.model_copy(update={"recipe": recipe}) for run in (pair.save, pair.load))
    steps, records = train(saving, folder / "save")
    checkpoint = str(folder / "save" / _CHECKPOINTS)
    train(loading.model_copy(update={"checkpoint_path": checkpoint}), folder / "load")
    result = records["result"]
    (saved,) = result["checkpoints"]
    (loaded,) = read_log(folder / "load" / "log.out", max_steps=loading.max_steps).checkpoints
    assert loaded.duration_s is not None
    window = steps[saving.max_steps // 2 :]
    figures = (
        records["start"]["imports_s"],
        1000 * statistics.median(step["step_time_s"] for step in window),
        result["peak_memory_bytes"] / 2**20,
        saved["duration_s"],
        loaded.duration_s,
        saved["size_bytes"] / 2**20,
    )
    return [step["loss"] for step in steps], dict(zip(_FIGURES, figures, strict=True))


def compare(
    losses: Mapping[str, Sequence[float]], repeats: Mapping[str, Sequence[Mapping[str, float]]]
) -> Iterator[Figure]:
    """Yield the figures of Megatron-Bridge, each beside that of NeMo."""
    pairs = zip(losses[BRIDGE], losses[NEMO], strict=True)
    difference = max(abs(bridge / nemo - 1) for bridge, nemo in pairs)
    yield Figure("largest relative difference of losses", difference, "", goal=_ROUNDING)
    for name, unit in _FIGURES.items():
        bridge, nemo = (statistics.median(row[name] for row in repeats[backend]) for backend in BACKENDS)
        yield Figure(name, bridge, unit, beside={"NeMo": nemo})


def measure(ranks: int, repeats: int) -> Iterator[Figure]:
    """Train with both backends in turn and compare them."""
    losses: dict[str, list[float]] = {}
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        for repeat in range(repeats):
            for backend in BACKENDS:
                (own := Path(folder) / f"{backend}-{repeat}").mkdir()
                losses[backend], measured = save_and_load(backend, ranks, own)
                figures[backend].append(measured)
    yield from compare(losses, figures)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=2, help="processes that train")
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each backend (default: 3)")
    asked = parser.parse_args()
    return show(measure(asked.ranks, asked.repeats))


if __name__ == "__main__":
    sys.exit(main())
