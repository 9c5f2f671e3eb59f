"""A cluster's Python that builds no environment of the trainer, but one of a stand-in for it."""

import shlex
import sys
from pathlib import Path


def python_of_stand_in(folder: Path, program: Path) -> Path:
    """A Python for a cluster's file: told to build an environment, it makes one that runs `program`.

    Everything else of staging is real: the code that is copied, the lock, the lookup of what is there.
    """
    real = shlex.quote(sys.executable)
    interpreter = folder / "stand-in-interpreter"
    interpreter.write_text(
        f'#!/bin/sh\ncase "$1" in -c) exec {real} "$@";; esac\nexec {real} {shlex.quote(str(program))}\n'
    )
    interpreter.chmod(0o755)
    python = folder / "stand-in-python"
    python.write_text(
        f'#!/bin/sh\ncase "$1" in */build_venv.py) ;; *) exec {real} "$@";; esac\n'
        f'mkdir -p "$2/bin"\nln -sf {shlex.quote(str(interpreter))} "$2/bin/python"\n'
    )
    python.chmod(0o755)
    return python
