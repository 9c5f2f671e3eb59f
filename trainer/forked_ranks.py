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
from multiprocessing.connection import wait
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

    asked, signals = socket.socketpair()  # SIGTERM comes through them, as in the watchdog
    signals.setblocking(False)
    former_handler = signal.signal(signal.SIGTERM, lambda *_: None)
    former_descriptor = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    fork = multiprocessing.get_context("fork").Process
    processes: list[BaseProcess] = []
    with asked, signals, socket.create_server((ADDRESS, 0)) as meeting:
        try:
            port = meeting.getsockname()[1]
            for rank in range(ranks):
                processes.append(fork(target=_rank, args=(rank, ranks, meeting, train)))
                processes[-1].start()
            # Its thread begins after the forks; ranks that come before it wait in the socket's queue.
            _store = TCPStore(
                ADDRESS,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=meeting.detach(),
                use_libuv=False,  # which takes no socket in older releases
            )
            return _first_failure(processes, asked)
        finally:
            _end(processes)
            signal.set_wakeup_fd(former_descriptor)
            signal.signal(signal.SIGTERM, former_handler)


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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(_variables(rank, ranks), MASTER_PORT=str(meeting.getsockname()[1]))
    meeting.close()
    sys.exit(train())


def _first_failure(processes: Sequence[BaseProcess], asked: socket.socket) -> int:
    running = dict(enumerate(processes))
    while running:
        if asked in wait([asked, *(process.sentinel for process in running.values())]):
            return 128 + signal.SIGTERM
        for rank, process in list(running.items()):
            code = process.exitcode  # asked for once: a rank may end at any moment
            if code == 0:
                del running[rank]
            elif code is not None:
                # In torchrun's words, which the pipeline reads.
                how = f"(exitcode: {code}) local_rank: {rank} (pid: {process.pid})"
                print(f"a rank failed {how}", file=sys.stderr, flush=True)
                return code if code > 0 else 128 - code
    return 0


def _end(processes: Sequence[BaseProcess]) -> None:
    """End those that still run."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE_S
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
        process.join()


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # to take apart what it has imported costs the interpreter 0.4 s
