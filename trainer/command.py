"""`python -m trainer.command PROGRAM ARGUMENT…`: replace this process, which is one rank, by a program.

The program finds its rank in the variables that torch reads; under torchrun they are already set. A module
of steptime's own trainer is found by PYTHONPATH. No other program has the trainer's folder there, nor
PYTHONSAFEPATH: Python finds modules beside its script, as it does without steptime.
"""

import os
import shutil
import sys
from pathlib import Path

_RANK_VARIABLES = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
_TRAINER = str(Path(__file__).parents[1])
"""Folder that has the package `trainer`: it stands in PYTHONPATH so that this module is found."""


def main() -> None:
    """Replace this process by the program in its arguments.

    `python` is this interpreter, also where another program (`env`, `bash`, `numactl`) looks for it on PATH.
    """
    program, *arguments = sys.argv[1:]
    environment = dict(os.environ)
    if "TORCHELASTIC_RUN_ID" not in environment:
        environment |= {
            name: environment[source] for name, source in _RANK_VARIABLES.items() if source in environment
        }
    is_of_trainer = arguments[:1] == ["-m"] and "".join(arguments[1:2]).startswith("trainer.")
    if not is_of_trainer:
        _remove_trainer(environment)
    # Else Python keeps steps back until it has 8 KiB of them, and loses them if the job is killed.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if shutil.which("python") != sys.executable:
        with_interpreter = (str(Path(sys.executable).parent), environment.get("PATH", os.defpath))
        environment["PATH"] = os.pathsep.join(with_interpreter)
    if program == "python":
        program = sys.executable
    os.execvpe(program, [program, *arguments], environment)  # noqa: S606


def _remove_trainer(environment: dict[str, str]) -> None:
    """Remove what makes Python find this package before, and instead of, what lies beside a script."""
    environment.pop("PYTHONSAFEPATH", None)
    folders = [folder for folder in environment.pop("PYTHONPATH", "").split(os.pathsep) if folder]
    if other_folders := [folder for folder in folders if folder != _TRAINER]:
        environment["PYTHONPATH"] = os.pathsep.join(other_folders)


if __name__ == "__main__":
    main()
