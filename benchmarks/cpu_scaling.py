"""How the tiny sizes scale over the ranks of this machine: each family at 1, 2 and 4 ranks, weak and strong.

    python benchmarks/cpu_scaling.py [--repeats N] [--workload NAME ...]

Each run is trained alone, outside of Airflow, with one thread a rank, in the environment that a local cluster
stages. A scale counts with the median of its repeats; the deviation is over the steps of its window, and the
efficiency is tokens per second and rank against one rank. On fewer cores than ranks the ranks share them, and
no efficiency can be expected.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from steptime.clusters.config import load_cluster, open_cluster
from steptime.errors import SystemFailure
from steptime.recipes.models import RUN_FILE, Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.results.log_rows import log_row
from steptime.staging.stage import stage

WORKLOADS = ("llama3.1", "nemotron4", "nemotron-h")
SCALINGS: tuple[Literal["weak", "strong"], ...] = ("weak", "strong")
TRAINER = Path(__file__).parents[1]
COLUMNS = ("workload", "scaling", "ranks", "global batch", "step s ± std", "tokens/s", "efficiency")


def runs_of(workload: str, scaling: Literal["weak", "strong"]) -> tuple[Run, ...]:
    """The planned runs at every scale of the tiny size."""
    request = PlanRequest(workload=workload, size="tiny", gpu_type="cpu", gpus="1,2,4", scaling=scaling)
    return plan(request).runs


def trained(run: Run, python: str, folder: Path) -> dict[str, Any]:
    """Train a run to its end; what is in its log, with the columns of `steptime parse`.

    Raises SystemFailure if it does not end well.
    """
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text(run.model_dump_json(), encoding="utf-8")
    log = folder / "log.out"
    with log.open("wb") as output:
        subprocess.run(
            [python, "-m", "trainer.cpu_ranks", RUN_FILE],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TRAINER), "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    row = log_row([log])
    if row["state"] != "complete":
        raise SystemFailure(f"{run.experiment} is {row['state']}: {row['reason']}")
    return row


def rows(workloads: list[str], repeats: int, python: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each scale, when it has been trained `repeats` times: of the repeat with the median time."""
    for workload in workloads:
        for scaling in SCALINGS:
            alone = 0.0
            for run in runs_of(workload, scaling):
                rows = [
                    trained(run, python, folder / f"{run.experiment}-{scaling}-{number}")
                    for number in range(repeats)
                ]
                row = sorted(rows, key=itemgetter("step_time_mean_s"))[repeats // 2]
                alone = alone or row["tokens_per_s_per_gpu"]
                yield (
                    workload,
                    scaling,
                    str(run.recipe.gpus),
                    str(run.recipe.global_batch_size),
                    f"{row['step_time_mean_s']:.3f} ± {row['step_time_std_s']:.3f}",
                    f"{row['tokens_per_s']:,.0f}",
                    f"{row['tokens_per_s_per_gpu'] / alone:.0%}",
                )


def main() -> int:
    """Print the table in Markdown, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of each run (default: 3)")
    parser.add_argument("--workload", action="append", help=f"only these (default: {', '.join(WORKLOADS)})")
    arguments = parser.parse_args()
    workloads = arguments.workload or list(WORKLOADS)
    config = load_cluster("local")
    first = runs_of(workloads[0], "weak")[0]
    staged = asyncio.run(stage(open_cluster(config), config, first, partial(print, file=sys.stderr)))
    if staged.python is None:
        raise SystemFailure("nothing was staged to train with")
    for line in (COLUMNS, ("---",) * len(COLUMNS)):
        print(f"| {' | '.join(line)} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(workloads, arguments.repeats, staged.python, Path(folder)):
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
