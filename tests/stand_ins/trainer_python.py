"""A cluster's Python that builds no environment of the trainer, but one of a stand-in for it."""

import shlex
import shutil
import sys
from pathlib import Path

import yaml

from steptime import settings

STAND_IN = "stand-in"
"""The name of the cluster that `add_stand_in` adds."""
PROGRAM = Path(__file__).parents[1] / "airflow" / "stand_in_trainer.py"


def add_stand_in(config: Path) -> None:
    """Write the shipped config, and a cluster like `local` where a stand-in prints what a trainer would."""
    shutil.copytree(settings.shipped("config"), config, dirs_exist_ok=True)
    cluster = yaml.safe_load((config / "clusters" / "local.yaml").read_text())
    cluster |= {
        "name": STAND_IN,
        "work_dir": f"{{STEPTIME_HOME}}/{STAND_IN}",
        "python": str(python_of_stand_in(config, PROGRAM)),
    }
    (config / "clusters" / f"{STAND_IN}.yaml").write_text(yaml.safe_dump(cluster))


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
