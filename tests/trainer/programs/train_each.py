"""Train what is asked for, one run after the other, with NeMo imported once.

Each line of the standard input is a JSON object: `folder`, in which it runs, `ranks`, `program`, a Python
file that is run in place of the trainer, or null, and `arguments`. For each, a line of the standard output
has the ranks' highest exit code.

Each rank is a fork of this process with the environment that torchrun gives it, which runs the trainer's own
`main` and writes to the folder's `log.out`. All else (processes, gloo, checkpoints) is as in a job, but for
two things that would take most of the time of a short training: the peak is measured by smaller matrices, and
no process imports torch anew to collect what the writers of a checkpoint have done.
"""

import json
import multiprocessing
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path


def main() -> None:
    from trainer.environment import heavy_imports

    with heavy_imports():
        import trainer.cpu.cpu_layers
        import trainer.cpu.peak
        import trainer.training
    trainer.cpu.peak.SIZE = 1024
    for line in sys.stdin:
        print(_trained(**json.loads(line)), flush=True)


def _trained(folder: str, ranks: int, program: str | None, arguments: list[str]) -> int:
    """The highest exit code of a run's ranks."""
    environment = {
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": _free_port(),
        "OMP_NUM_THREADS": 1,
    }
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ.update({name: str(value) for name, value in environment.items()})
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0")
            _train(folder, program, arguments)
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


def _train(folder: str, program: str | None, arguments: list[str]) -> None:
    """In a process of its own, which it ends."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    os.chdir(folder)
    log = os.open("log.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = [program or "trainer", *arguments]
    # Megatron would spawn it, and forking is safe only now, before there are threads.
    filesystem_async._results_queue = multiprocessing.get_context("fork").Manager().Queue()
    code = 1  # of what raises something
    try:
        if program is None:
            from trainer.__main__ import main as train

            code = train()
        else:
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
            code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        for writer in multiprocessing.active_children():  # Megatron's, of checkpoints
            writer.terminate()
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":  # Megatron starts processes of its own, which read this file again
    main()
