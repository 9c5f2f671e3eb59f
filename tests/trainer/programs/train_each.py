"""Train several planned runs one after the other, NeMo imported once: `train_each.py FOLDER…`.

Every folder holds a `run.json`. Each rank is a fork of this process with the environment that torchrun gives
it, runs the trainer's own `main`, and writes to the folder's `log.out`; the ranks' highest exit code goes to
`exit_code`. All else (processes, gloo, checkpoints) is as in a job.
"""

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path


def main(folders: list[str]) -> None:
    from trainer.__main__ import main as train
    from trainer.environment import heavy_imports

    with heavy_imports():
        import trainer.cpu.cpu_layers
        import trainer.training  # noqa: F401
    for folder in map(Path, folders):
        parallelism = json.loads((folder / "run.json").read_text())["recipe"]["parallelism"]
        ranks = parallelism["tensor"] * parallelism["pipeline"] * parallelism["data"]
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
                os.chdir(folder)
                log = os.open("log.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = train(["run.json", "--history", "history.jsonl"])
                sys.stdout.flush()
                for writer in multiprocessing.active_children():  # Megatron's, of checkpoints
                    writer.terminate()
                os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        (folder / "exit_code").write_text(str(max(map(abs, codes))))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":  # Megatron starts processes of its own, which read this file again
    main(sys.argv[1:])
