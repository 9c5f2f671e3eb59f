"""Run a training under the watchdog and record how it ended."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.launch import Launch, read_launch
from trainer.progress import Progress
from trainer.watchdog import HangLimits, watched


def run_to_end(output: Path, train: Callable[[Launch, Ending], None]) -> int:
    """Call `train` under the watchdog, record in `output` how it ended, and return the exit code."""

    def to_completion(launch: Launch, ending: Ending) -> None:
        train(launch, ending)
        ending.completed()

    return run_watched(output, to_completion)


def run_watched(output: Path, work: Callable[[Launch, Ending], None]) -> int:
    """Call `work` under the watchdog; if it ends the job, record that. Returns the exit code."""
    try:
        launch = read_launch()
        limits = HangLimits.read(os.environ)
    except TrainerError as error:  # which rank prints for the job is not known yet
        print(f"trainer: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    ending = Ending(output, launch, Progress())
    with watched(ending, limits):
        try:
            work(launch, ending)
        except TrainerError as error:
            return ending.failed(error)
        except BaseException as error:
            traceback.print_exc()
            code = ending.failed(error)
            if not isinstance(error, Exception):
                raise
            return code
    return 0
