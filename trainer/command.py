"""`python -m trainer.command PROGRAM ARGUMENT…`: become a program that is not steptime's, on one rank.

The rank's place is given under the names that torch reads; torchrun has given it already.
"""

import os
import sys

_PLACE = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


def main() -> None:
    """Replace this process by the program; `python` is the interpreter that runs this."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        os.environ.update({name: os.environ[of] for name, of in _PLACE.items() if of in os.environ})
    program, *arguments = sys.argv[1:]
    program = sys.executable if program == "python" else program
    os.execvp(program, [program, *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
