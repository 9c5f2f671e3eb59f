"""`python -m trainer.command PROGRAM ARGUMENT…`: replace this process, which is one rank, by a program.

The program gets its rank in the environment variables that torch reads; under torchrun they are already set.
"""

import os
import sys

_PLACE = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


def main() -> None:
    """Replace this process by the program in its arguments; `python` means this interpreter."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        os.environ.update({name: os.environ[of] for name, of in _PLACE.items() if of in os.environ})
    program, *arguments = sys.argv[1:]
    program = sys.executable if program == "python" else program
    os.execvp(program, [program, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
