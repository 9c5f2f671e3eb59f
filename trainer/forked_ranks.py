"""`python -m trainer.forked_ranks run.json`: all ranks of a CPU plan on this machine, NeMo imported once.

Under torchrun its agent imports torch, and then each rank NeMo, all of them at once on the same cores. Here
one process imports NeMo and forks the ranks, which share what it has in memory. They get the environment that
torchrun gives; as torchrun's agent that process keeps the store in which they meet, and ends all ranks when
one fails. Only ranks on the CPU can be forked so: CUDA does not outlive a fork.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess

from trainer.__main__ import parser, ready
from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.job import to_its_end, watched_part
from trainer.launch import Launch
from trainer.run import read_run

ADDRESS = "127.0.0.1"
GRACE_S = 30.0
"""From SIGTERM to SIGKILL, for ranks whose job has ended; torchrun's own."""
_RECEIVED = (signal.SIGTERM, signal.SIGCHLD)
_SIGNALS_AT_ONCE = 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Train one planned run; return the exit code of the rank that failed first, 0 if none did."""
    arguments = parser().parse_args(argv)
    ranks = 1
    with suppress(TrainerError):  # a plan that cannot be read is refused below
        ranks = read_run(arguments.run).recipe.parallelism.world_size
    # Until there are ranks, this process stands for rank 0.
    os.environ.update(_variables(0, ranks), TORCHELASTIC_RUN_ID=uuid.uuid4().hex)
    prepared: list[Callable[[Launch, Ending], None]] = []
    refused = watched_part(
        arguments.output, lambda launch, ending: prepared.append(ready(arguments, launch, ending))
    )
    return refused or fork_ranks(ranks, lambda: to_its_end(arguments.output, *prepared))


def fork_ranks(ranks: int, train: Callable[[], int]) -> int:
    """Call `train` as each of so many ranks, in forks of this process, and return when all have ended.

    Returns:
        The exit code of the rank that failed first, upon which the others are ended; 0 if none failed; 143 if
        SIGTERM has ended all of them.
    """
    from torch.distributed import TCPStore

    # SIGTERM comes through them, and SIGCHLD when a rank has ended: its sentinel is a pipe, which a fork of
    # the rank keeps open.
    received, signals = socket.socketpair()
    signals.setblocking(False)
    former_handlers = {number: signal.signal(number, lambda *_: None) for number in _RECEIVED}
    former_descriptor = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    fork = multiprocessing.get_context("fork").Process
    processes: list[BaseProcess] = []
    with received, signals, socket.create_server((ADDRESS, 0)) as meeting:
        try:
            port = meeting.getsockname()[1]
            for rank in range(ranks):
                process = fork(target=_rank, args=(rank, ranks, meeting, train))
                process.start()
                processes.append(process)
            # Its thread begins after the forks; ranks that come before it wait in the socket's queue.
            _store = TCPStore(
                ADDRESS,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=meeting.detach(),
                use_libuv=False,  # which takes no socket in older releases
            )
            return _first_failure(processes, received)
        finally:
            _end(processes, received)
            signal.set_wakeup_fd(former_descriptor)
            for number, handler in former_handlers.items():
                signal.signal(number, handler)


def _variables(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun sets for a rank, but for the port."""
    return {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
        **{"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
        **{"MASTER_ADDR": ADDRESS, "TORCHELASTIC_USE_AGENT_STORE": "True"},
    }


def _rank(rank: int, ranks: int, meeting: socket.socket, train: Callable[[], int]) -> None:
    """In its process."""
    signal.set_wakeup_fd(-1)
    for number in _RECEIVED:
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(_variables(rank, ranks), MASTER_PORT=str(meeting.getsockname()[1]))
    meeting.close()
    sys.exit(train())


def _first_failure(processes: Sequence[BaseProcess], received: socket.socket) -> int:
    """Wait for all to end or one to fail; `received` has each signal of `_RECEIVED`, as a byte."""
    running = dict(enumerate(processes))
    while True:
        for rank, process in list(running.items()):
            code = process.exitcode  # asked for once: a rank may end at any moment
            if code == 0:
                del running[rank]
            elif code is not None:
                # In torchrun's words, which the pipeline reads.
                how = f"(exitcode: {code}) local_rank: {rank} (pid: {process.pid})"
                print(f"a rank failed {how}", file=sys.stderr, flush=True)
                return code if code > 0 else 128 - code
        if not running:
            return 0
        if signal.SIGTERM in received.recv(_SIGNALS_AT_ONCE):
            return 128 + signal.SIGTERM


def _end(processes: Sequence[BaseProcess], received: socket.socket) -> None:
    """End those that still run."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE_S
    while any(process.exitcode is None for process in processes) and (left := until - time.monotonic()) > 0:
        received.settimeout(left)
        with suppress(TimeoutError):
            received.recv(_SIGNALS_AT_ONCE)
    for process in processes:
        process.kill()
        process.join()


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # to take apart what it has imported costs the interpreter 0.4 s
