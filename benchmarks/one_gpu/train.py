"""`python -m one_gpu.train run.json`: train one planned run on one device, with torch alone."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from one_gpu import limits
from trainer.ending import Ending
from trainer.environment import heavy_imports, prepare
from trainer.errors import TrainerError
from trainer.families import check_family
from trainer.launch import Launch, check_world_size
from trainer.run import read_run
from trainer.watchdog import run_to_end


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return the trainer's exit code."""
    arguments = _parser().parse_args(argv)
    return run_to_end(arguments.output, lambda launch, ending: _train(arguments, launch, ending))


def _train(arguments: argparse.Namespace, launch: Launch, ending: Ending) -> None:
    run = ending.progress.run = read_run(arguments.run)
    check_family(run.recipe.model.architecture)
    check_world_size(run, launch)
    prepare(launch, run.recipe)
    limits.check(run)
    try:
        with heavy_imports():
            from one_gpu.loop import Options, train
    except ModuleNotFoundError as error:
        raise TrainerError(f"the thin loop needs {error.name}, which is not installed here.") from None
    train(run, Options(arguments.output, arguments.history, launch.threads, arguments.compile), ending)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m one_gpu.train", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN_JSON", help="the planned run")
    parser.add_argument(
        "--output", type=Path, default=Path(), help="the run's folder, for its profile (default: .)"
    )
    parser.add_argument(
        "--history",
        type=Path,
        help="write each step's loss and time with all digits into this file, as JSON lines",
    )
    parser.add_argument(
        "--compile",
        choices=("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        help="mode of torch.compile (default: off on the CPU; on GPUs default, or if the plan has CUDA "
        "graphs reduce-overhead, which records them)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
