"""`python -m trainer run.json`: train one planned run; torchrun or Slurm's srun starts several ranks."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer import nemo1
from trainer.bridge.checkpoint import find_checkpoint
from trainer.checkpoint import find_weights
from trainer.ending import Ending
from trainer.environment import filter_log, heavy_imports, prepare
from trainer.families import builder, check_family
from trainer.launch import Launch, check_world_size
from trainer.run import Folders, read_run
from trainer.spec import BRIDGE
from trainer.versions import check_versions
from trainer.watchdog import run_to_end

EPILOG = """\
examples:
  one rank:     python -m trainer run.json
  on the CPU:   python -m trainer.cpu_ranks run.json    (as many ranks as planned)
  four ranks:   python -m torch.distributed.run --standalone --nproc-per-node 4 -m trainer run.json
  under Slurm:  srun --nodes 2 --ntasks-per-node 4 python -m trainer run.json

exit codes: 0 trained, 1 the plan, launch or checkpoint is wrong, 2 the training failed
(torchrun turns both into 1; the line that begins with "trainer:" has the reason)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train one planned run; return 0, or 1 for an impossible request, 2 for a failed training."""
    arguments = parser().parse_args(argv)

    def train(launch: Launch, ending: Ending) -> None:
        prepare_training(arguments, launch, ending)(launch, ending)

    return run_to_end(arguments.output, train)


def prepare_training(
    arguments: argparse.Namespace, launch: Launch, ending: Ending
) -> Callable[[Launch, Ending], None]:
    """Check the plan, set up this process, import its framework, and return the function that trains it.

    This process or ranks forked from it may call the function. `launch` has a rank's number and the number of
    ranks; `ending` records how the training ends.

    Raises:
        TrainerError: the plan cannot be trained, or not on this machine.
    """
    run = ending.progress.run = read_run(arguments.run)
    on_bridge, checkpoint = run.recipe.backend == BRIDGE, run.checkpoint_path
    check_family(run.recipe.model.architecture, run.recipe.backend)
    check_world_size(run, launch)
    find = find_checkpoint if on_bridge else find_weights
    weights = find(Path(checkpoint)) if checkpoint else None
    prepare(launch, run.recipe)
    if run.recipe.has_nemo_1:
        return lambda launch, ending: nemo1.train(run, launch, arguments.output, ending)
    remark = check_versions(run.recipe.backend)
    if remark and launch.rank == 0:
        print(f"steptime: {remark}.", flush=True)
    began = time.perf_counter()
    with heavy_imports():  # takes seconds, so the plan is checked first
        if on_bridge:
            if run.recipe.gpu_type == "cpu":
                from trainer.bridge.on_cpu import provide_missing_modules

                provide_missing_modules()
            from trainer.bridge.training import train
        else:
            from trainer.training import train

            builder(run.recipe.model.architecture)
    imports_s = time.perf_counter() - began

    def train_rank(launch: Launch, ending: Ending) -> None:
        if not on_bridge:
            filter_log(launch.rank)
        ending.progress.run, ending.progress.imports_s = run, imports_s
        train(run, launch, Folders(arguments.output, weights, arguments.history), ending)

    return train_rank


def parser() -> argparse.ArgumentParser:
    """Return the parser of the trainer's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Train one planned run of steptime with NeMo 2 or Megatron-Bridge.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Not an option: torchrun, which sees these arguments first, takes `--run` for its own `--run-path`.
    parser.add_argument("run", type=Path, metavar="RUN_JSON", help="the planned run")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(),
        help="the job's folder, for the framework's files and checkpoints (default: .)",
    )
    parser.add_argument(
        "--history",
        type=Path,
        help="write each step's loss and time with all digits into this file, as JSON lines",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
