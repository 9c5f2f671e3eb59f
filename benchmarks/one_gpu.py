"""How much of one GPU the true layers reach: proxies of few layers, trained by the trainer's thin loop.

    python benchmarks/one_gpu.py plan FOLDER [--gpu-type h200] [--layers 4]
    FOLDER/measure.sh               # where the GPU is: needs torch, and for fp8 torchao
    python benchmarks/one_gpu.py report FOLDER

`plan` writes a planned run for each model and number format, and a script that trains them one after the
other; FOLDER can be carried to another machine, together with `trainer/`. `report` reads the logs and sets
the MFU of each, by the document's formula for the layers that were trained, beside the published one of the
whole model on many GPUs: the two differ in depth, in communication, and perhaps in the type of the GPU.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from steptime.recipes.flops import model_flops
from steptime.recipes.models import RUN_FILE, Mode, Parallelism, ProfileWindow, Recipe, Run, Window
from steptime.recipes.performance import Performance, TrainerSettings
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.published import published_performance
from steptime.results.log_rows import log_row

MODELS = (("llama3.1", "8b", "bf16"), ("llama3.1", "8b", "fp8"), ("nemotron4", "15b", "bf16"))
"""Workload, size and number format, each of which a document has on H100."""
STEPS = 30
WINDOW = Window(first=15, last=29)
PROFILE = ProfileWindow(first_step=5, last_step=5, ranks=(0,))
SCRIPT = """\
#!/usr/bin/env bash
# Trains each planned run beside this file. `trainer/` is looked for in STEPTIME, else in this folder.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONPATH="${STEPTIME:-$PWD}"
for run in */run.json; do
  folder=$(dirname "$run")
  echo "$folder"
  log="$folder/log.out"
  python3 -m trainer --loop thin --output "$folder" "$@" "$run" >"$log" 2>&1 || tail -n 3 "$log"
done
"""


def published_recipe(workload: str, size: str, dtype: str) -> Recipe:
    """The document's smallest scale of a model on H100."""
    return plan(PlanRequest(workload=workload, size=size, dtype=dtype, gpu_type="h100")).runs[0].recipe


def proxy(published: Recipe, gpu_type: str, layers: int, mode: Mode) -> Run:
    """A run of the same layers, fewer of them, on one GPU, with the batch that a GPU has in the document."""
    recipe = published.model_copy(
        update={
            "size": f"{published.size}-{layers}-layers",
            "proxy": True,
            "gpu_type": gpu_type,
            "gpus_per_node": 1,
            "model": published.model.model_copy(update={"num_layers": layers}),
            "parallelism": Parallelism(data=1),
            "global_batch_size": max(
                published.global_batch_size // published.gpus, published.micro_batch_size
            ),
            "image": None,
        }
    )
    profiles = mode is Mode.PROFILE
    return Run(
        experiment=f"one_gpu_{published.workload}_{recipe.size}_{published.dtype}",
        recipe=recipe,
        mode=mode,
        max_steps=PROFILE.last_step + 1 if profiles else STEPS,
        window=WINDOW,
        time_limit_s=600,
        cluster="one_gpu",
        performance=Performance(
            trainer=TrainerSettings(fp8_recipe="current" if published.dtype == "fp8" else None)
        ),
        profile=PROFILE if profiles else None,
        model_flops=model_flops(recipe.model, recipe.flops_formula),
    )


def place_of(folder: Path, published: Recipe, mode: Mode) -> Path:
    """Where the plan and the log of a run are."""
    return folder / f"{published.workload}-{published.size}-{published.dtype}-{mode.value}"


def write_plan(folder: Path, gpu_type: str, layers: int) -> None:
    """A folder for each run, and the script."""
    for workload, size, dtype in MODELS:
        published = published_recipe(workload, size, dtype)
        for mode in (Mode.PERFORMANCE, Mode.PROFILE):
            run = proxy(published, gpu_type, layers, mode)
            place = place_of(folder, published, mode)
            place.mkdir(parents=True, exist_ok=True)
            (place / RUN_FILE).write_text(run.model_dump_json(indent=1), encoding="utf-8")
    script = folder / "measure.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    script.chmod(0o755)


def report(folder: Path) -> int:
    """Print a row for each log of a performance run; 2 where one is missing or did not end well."""
    table = Table("run", "state", "layers", "step s", "tokens/s", "MFU %", "published MFU %", "its GPUs")
    complete = True
    for workload, size, dtype in MODELS:
        published = published_recipe(workload, size, dtype)
        place = place_of(folder, published, Mode.PERFORMANCE)
        log = place / "log.out"
        if not log.is_file():
            complete = False
            table.add_row(place.name, "no log.out")
            continue
        row = log_row([log])
        complete &= row["state"] == "complete"
        reference = published_performance(published)
        run = Run.model_validate_json((place / RUN_FILE).read_bytes())
        table.add_row(
            place.name,
            row["state"] + (f": {row['reason']}" if row["reason"] else ""),
            str(run.recipe.model.num_layers),
            *(_shown(row[name]) for name in ("step_time_mean_s", "tokens_per_s", "mfu_percent")),
            _shown(reference and reference.mfu_percent),
            f"{published.gpus} × {published.gpu_type}",
        )
    Console().print(table)
    return 0 if complete else 2


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def main() -> int:
    """Plan or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("plan", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu-type", default="h200", help="as in config/gpus.yaml (default: h200)")
    parser.add_argument("--layers", type=int, default=4, help="of each model (default: 4)")
    arguments = parser.parse_args()
    if arguments.action == "report":
        return report(arguments.folder)
    write_plan(arguments.folder, arguments.gpu_type, arguments.layers)
    print(f"{arguments.folder}/measure.sh trains {2 * len(MODELS)} runs of {STEPS} steps at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
