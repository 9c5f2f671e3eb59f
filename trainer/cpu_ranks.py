"""`python -m trainer.cpu_ranks run.json`: import NeMo once and fork all ranks of a CPU plan on this machine.

torchrun starts each rank as a new Python process, so every rank imports NeMo on the same few cores. This
program imports it once, and torch's elastic agent forks the ranks. Only CPU ranks can be forked: CUDA does
not work after a fork.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from trainer.__main__ import parser, prepare_training
from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.launch import Launch
from trainer.run import read_run
from trainer.watchdog import run_to_end, run_watched

ADDRESS = "127.0.0.1"

Train = Callable[[Launch, Ending], None]
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_AFTER_A_FORK_S = 0.05
_ENDS_WITHIN_S = 30
"""Time that a rank has after SIGTERM, as torch's agent gives it, before SIGKILL."""


class Stopped(BaseException):
    """A signal stopped this launcher process, which starts the ranks and does not train."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal_name = signal.Signals(number).name
        self.exit_code = 128 + number


def main(argv: Sequence[str] | None = None) -> int:
    """Fork the ranks of a CPU plan and train; return the exit code.

    It is 0, that of the rank that failed first, that of an error before the fork, or 128 plus the number of
    the signal that stopped this process.
    """
    arguments = parser().parse_args(argv)
    ranks = 1
    with suppress(TrainerError):  # reported below, by the part that records how the run ended
        ranks = read_run(arguments.run).recipe.parallelism.world_size
    run_id = uuid.uuid4().hex
    # Until the ranks exist, this process stands in for rank 0.
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        TORCHELASTIC_RUN_ID=run_id,
    )
    prepared: list[tuple[Train, Ending]] = []
    refused = run_watched(
        arguments.output,
        lambda launch, ending: prepared.append((prepare_training(arguments, launch, ending), ending)),
    )
    if refused:
        return refused
    ((train, ending),) = prepared
    try:
        return launch_ranks(ranks, run_id, arguments.output, train)
    except Stopped as stopped:
        if not ending.is_recorded:  # rank 0 was not there yet
            ending.terminated(stopped.signal_name)
        return stopped.exit_code


def launch_ranks(ranks: int, run_id: str, output: Path, train: Train) -> int:
    """Fork the ranks, each of which calls `train`, and wait until all have ended.

    Returns:
        The exit code of the rank that failed first, after which the others are terminated; 128 plus the
        number of the signal if one ended that rank; 0 if all ranks succeeded.

    Raises:
        Stopped: a signal ended this process; no rank is left.
    """
    for number in _ENDING_SIGNALS:  # until torch's agent handles them, just before it forks
        signal.signal(number, _stop)
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{ADDRESS}:0",  # any free port
        local_addr=ADDRESS,
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # the ranks write to this process's output
    )
    _hold_signals_during_forks()
    try:
        elastic_launch(config, _rank)(output, train)
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return code if code > 0 else 128 - code
    except Exception as error:
        # The handlers of torch's agent raise wherever it is at work: within the start of a thread, another
        # exception replaces that of the signal.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, SignalException):
                _end_ranks()
                raise Stopped(cause.sigval) from None
            cause = cause.__context__
        raise
    return 0


def _end_ranks() -> None:
    """End ranks that the agent does not know, because the signal came before it had forked all of them."""
    _ignore_further_signals()
    ranks = multiprocessing.active_children()
    for rank in ranks:
        rank.terminate()
    until = time.monotonic() + _ENDS_WITHIN_S
    for rank in ranks:
        rank.join(max(0.0, until - time.monotonic()))
        rank.kill()


def _hold_signals_during_forks() -> None:
    """Delay signals that arrive while this process forks until after the fork.

    The signal handlers of torch's agent raise exceptions. Python runs hooks before and after a fork, and
    discards an exception raised in them. The interrupted hook of `logging` would never release its lock, and
    the agent would wait for it forever. The hooks registered here enclose those of all other modules, because
    they are registered last.
    """
    launcher = os.getpid()
    handlers: dict[int, Any] = {}
    held: list[int] = []

    def hold() -> None:
        if os.getpid() == launcher and threading.current_thread() is threading.main_thread():
            for number in _ENDING_SIGNALS:
                handlers[number] = signal.signal(number, lambda number, _frame: held.append(number))

    def send_again() -> None:
        while handlers:
            signal.signal(*handlers.popitem())
        while held:
            # From another thread, later: the handler must not run within this hook.
            threading.Timer(_AFTER_A_FORK_S, os.kill, (launcher, held.pop())).start()

    def die() -> None:
        while handlers:
            signal.signal(handlers.popitem()[0], signal.SIG_DFL)
        while held:
            os.kill(os.getpid(), held.pop())

    os.register_at_fork(before=hold, after_in_parent=send_again, after_in_child=die)


def _stop(number: int, _frame: object) -> NoReturn:
    _ignore_further_signals()
    raise Stopped(number)


def _ignore_further_signals() -> None:
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _rank(output: Path, train: Train) -> None:
    """Train as the rank that torch's agent named in the environment."""
    # The agent's handlers, inherited by the fork, raise an exception that only the agent handles.
    signal.signal(signal.SIGINT, _interrupt_once)
    for number in _ENDING_SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)
    try:
        code = run_to_end(output, train)
    except KeyboardInterrupt:  # torch would take it for success
        code = 128 + signal.SIGINT
    if code:
        sys.exit(code)


def _interrupt_once(*_: object) -> NoReturn:
    """Handle Ctrl-C, which a rank receives from the terminal and again from the agent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
