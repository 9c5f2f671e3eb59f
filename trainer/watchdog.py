"""Run a training beside a watchdog thread, which ends it on a hang, SIGTERM or another rank's failure.

The training waits in collective calls, in C, where Python sees no signals. This thread checks every second
whether a step has ended in time, whether SIGTERM arrived, and on rank 0 whether another rank has failed.
"""

import contextlib
import faulthandler
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.ending import Ending
from trainer.errors import TrainerError, TrainingFailure
from trainer.launch import Launch, read_launch
from trainer.progress import Progress

FLOOR_VARIABLE = "STEPTIME_HANG_FLOOR_S"
TICK_S = 1.0
_STOP = b"\0"


@dataclass(frozen=True)
class HangLimits:
    """How long the training may go without finishing a step."""

    usual_steps: float = 30.0
    """A rank counts as hanging if a step takes more than this multiple of the median, and than `floor_s`."""
    floor_s: float = 300.0
    """The least number of seconds without a step after which a rank counts as hanging."""
    outside_steps: float = 6.0
    """Multiple of `floor_s` allowed before the second step ends (start) and after the last one (shutdown)."""
    stacks_within_s: float = 10.0
    """How long rank 0 waits for the other ranks' stack traces."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "HangLimits":
        """Return the limits, with `floor_s` from the variable STEPTIME_HANG_FLOOR_S if it is set.

        Raises:
            TrainerError: the variable is not a positive number of seconds.
        """
        text = environment.get(FLOOR_VARIABLE)
        if text is None:
            return cls()
        try:
            floor_s = float(text)
        except ValueError:
            floor_s = 0.0
        if not floor_s > 0:
            raise TrainerError(
                f"{FLOOR_VARIABLE}={text!r} in the environment is not a positive number of seconds."
            )
        return cls(floor_s=floor_s)

    def of(self, progress: Progress) -> float:
        """Return the number of seconds that may pass without a step at this point of the training.

        It is infinite with NeMo 1, which reports no steps here, and while a checkpoint is loaded or saved,
        which may take any time. Then only the job's time limit applies.
        """
        if not progress.notes_steps or progress.transfers_checkpoint:
            return math.inf
        usual_s = progress.usual_step_s
        if usual_s is None or progress.last_step_ended:
            return self.floor_s * self.outside_steps
        return max(self.floor_s, usual_s * self.usual_steps)


@contextlib.contextmanager
def watched(ending: Ending, limits: HangLimits) -> Iterator[None]:
    """Watch the training within this context: a hang, another rank's failure or SIGTERM ends the process."""
    wake, signals = socket.socketpair()
    signals.setblocking(False)
    former_handler = signal.signal(signal.SIGTERM, lambda *_: None)  # the thread acts, by the descriptor
    former_descriptor = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    ended = threading.Event()
    _leave_signals_to_forks(ended)
    thread = threading.Thread(target=_watch, args=(ending, limits, wake), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signals.send(_STOP)
        thread.join()
        signal.set_wakeup_fd(former_descriptor)
        signal.signal(signal.SIGTERM, former_handler)
        wake.close()
        signals.close()


def _leave_signals_to_forks(ended: threading.Event) -> None:
    """Block SIGTERM while Megatron forks processes that write a checkpoint, so that no signal is lost.

    The forked processes get the default action of SIGTERM back. Fork hooks cannot be removed, so these do
    nothing once the watch has `ended`: a signal handler that is installed later may raise an exception, and
    Python would discard it in a fork hook.
    """
    process = os.getpid()
    fork = threading.local()

    def before() -> None:
        fork.is_watched = not ended.is_set()
        if fork.is_watched:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def after() -> None:
        if fork.is_watched:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def in_child() -> None:
        if fork.is_watched and os.getppid() == process:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


def _watch(ending: Ending, limits: HangLimits, wake: socket.socket) -> None:
    while True:
        readable, _, _ = select.select([wake], [], [], TICK_S)
        received = wake.recv(4096) if readable else b""
        if signal.SIGTERM in received:
            ending.terminated("SIGTERM")
            os._exit(128 + signal.SIGTERM)
        if _STOP in received:
            return
        # Only rank 0 looks, as it reports the failure. The launcher then ends the other ranks.
        if ending.launch.rank == 0 and (failure := ending.left_by_another()) is not None:
            os._exit(ending.failed_by(failure))
        waited_s = time.perf_counter() - ending.progress.moved_at
        if waited_s > limits.of(ending.progress):
            _end_hang(ending, waited_s, limits.stacks_within_s)


def _end_hang(ending: Ending, waited_s: float, stacks_within_s: float) -> None:
    """Log the stacks of all ranks, and end the process."""
    rank, ranks = ending.launch.rank, ending.launch.world_size
    text = stacks(rank)
    os.write(2, text.encode())  # in one piece: the ranks share the log
    silent = _exchange(ending.folder, text, rank, ranks, stacks_within_s)
    error = TrainingFailure(
        f"the training hangs: {_where(ending.progress, waited_s)}; {_shown(silent, ranks)}."
    )
    os._exit(ending.failed(error))


def stacks(rank: int) -> str:
    """Return the stack of each thread of this rank, innermost call first."""
    with os.fdopen(os.memfd_create("stacks"), "w+b") as file:  # in memory, in case the disk is what hangs
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return f"rank {rank}: stacks, innermost call first:\n{file.read().decode()}"


def _exchange(folder: Path, text: str, rank: int, ranks: int, within_s: float) -> list[int]:
    """Share this rank's stacks and wait for those of the others; return on rank 0 which ranks shared none.

    Only rank 0 needs to wait for all, as it ends the job; the others wait for rank 0, and return no ranks.
    """
    until = time.perf_counter() + within_s * (1 if rank == 0 else 2)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"stacks-{rank}.txt").write_text(text, encoding="utf-8")
    while True:
        if rank == 0:
            silent = [other for other in range(ranks) if not (folder / f"stacks-{other}.txt").exists()]
            if not silent or time.perf_counter() > until:
                return silent
        elif (folder / "result.json").exists() or time.perf_counter() > until:
            return []
        time.sleep(TICK_S / 10)


def _where(progress: Progress, waited_s: float) -> str:
    usual_s = progress.usual_step_s
    if progress.step is None:
        return f"no step has ended within {waited_s:.0f} s of the start"
    if progress.last_step_ended:
        return f"it has not ended within {waited_s:.0f} s of its last step, {progress.step}"
    usual = "" if usual_s is None else f", and the median step takes {usual_s:.3g} s"
    return f"no step has ended within {waited_s:.0f} s of step {progress.step}{usual}"


def _shown(silent: list[int], ranks: int) -> str:
    if not silent:
        return f"the stacks of {ranks} rank{'s' * (ranks > 1)} are in the log"
    ranks_without = ", ".join(map(str, silent[:8])) + (", …" if len(silent) > 8 else "")
    return f"the stacks of {ranks - len(silent)} ranks are in the log, but none of rank {ranks_without}"


def run_to_end(output: Path, train: Callable[[Launch, Ending], None]) -> int:
    """Call `train` under the watchdog, record in `output` how it ended, and return the exit code."""

    def to_completion(launch: Launch, ending: Ending) -> None:
        train(launch, ending)
        ending.completed()

    return run_watched(output, to_completion)


def run_watched(output: Path, work: Callable[[Launch, Ending], None]) -> int:
    """Call `work` under the watchdog; record in `output` an error that ends it. Return the exit code.

    `work` itself records a success. KeyboardInterrupt and SystemExit are recorded and raised again.
    """
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
