"""Train runs on request, one after the other, with NeMo or, if asked, Megatron-Bridge imported once.

Each line of the standard input is a JSON object: `folder`, in which to run, `program`, a Python file that
replaces the launcher of CPU ranks, or null, and `arguments`. A line of the standard output has the exit code
of each. Each runs in a fork of this process, which writes to the folder's `log.out`. All else is as in a job.
"""

import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    from trainer.environment import heavy_imports

    with heavy_imports():
        if sys.argv[1:] == ["megatron_bridge"]:
            os.environ["TORCHDYNAMO_DISABLE"] = "1"  # as trainer.environment does before it imports
            from trainer.bridge.on_cpu import provide_missing_modules

            provide_missing_modules()
            import trainer.bridge.training
        else:
            import trainer.cpu.cpu_layers
            import trainer.families.llama
            import trainer.training  # noqa: F401
    for line in sys.stdin:
        process = multiprocessing.get_context("fork").Process(target=_run, kwargs=json.loads(line))
        process.start()
        process.join()
        print(process.exitcode, flush=True)


def _run(folder: str, program: str | None, arguments: list[str]) -> None:
    os.chdir(folder)
    log = os.open("log.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = [program or "trainer", *arguments]
    if program is None:
        from trainer.cpu_ranks import main as train

        sys.exit(train())
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
