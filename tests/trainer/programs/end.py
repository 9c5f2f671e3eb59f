"""A rank that does not train and ends as it is told, `end.py HOW`; the trainer's watchdog does the rest."""

import os
import signal
import sys
import threading
from pathlib import Path

from trainer.ending import Ending
from trainer.launch import read_launch
from trainer.progress import Progress
from trainer.watchdog import HangLimits, watched

LIMITS = HangLimits(
    floor_s=1.0, outside_steps=1.0, stacks_within_s=float(os.environ.get("STACKS_WITHIN_S", "2"))
)


def wait_for_another_rank() -> None:
    """Wait for ever in C, where no Python runs, as in a collective call."""
    print("waiting", flush=True)
    never = threading.Lock()
    never.acquire()
    never.acquire()  # never returns


def fork_twice(ending: Ending) -> None:
    """Fork once during the watch and once after it; print whether SIGTERM is held back meanwhile."""

    def show() -> None:  # called after the watchdog's hook, as it is registered before it
        print("held back:", signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)

    os.register_at_fork(before=show)
    with watched(ending, LIMITS):
        _fork()
    _fork()


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def main(how: str) -> int:
    ending = Ending(Path(), read_launch(), Progress())
    limits = HangLimits() if how == "wait" else LIMITS
    if how == "fork_twice":
        fork_twice(ending)
        return 0
    with watched(ending, limits):
        if how == "fail":
            return ending.failed(RuntimeError("the disk\nis gone"))
        if how == "fork":
            child = os.fork()
            if child == 0:  # ended like Megatron's writers of checkpoints
                wait_for_another_rank()
            os.kill(child, 15)
            print("child ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            ending.completed()
            return 0
        wait_for_another_rank()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
