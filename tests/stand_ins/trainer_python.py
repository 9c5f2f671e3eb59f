"""A Python for a cluster that builds no real trainer environment, but one of a stand-in."""

import shlex
import shutil
import sys
from pathlib import Path

import yaml

from steptime import settings

STAND_IN, STAND_IN_ON_SLURM = "stand-in", "stand-in-slurm"
"""The clusters that `add_stand_in` adds: one like `local`, and one like `mini-slurm`."""
PROGRAM = Path(__file__).parents[1] / "airflow" / "stand_in_trainer.py"


def add_stand_in(config: Path) -> None:
    """Write the shipped config, with clusters on which a stand-in prints what a trainer would."""
    shutil.copytree(settings.shipped("config"), config, dirs_exist_ok=True)
    python = str(python_of_stand_in(config, PROGRAM))
    for name, shipped in ((STAND_IN, "local"), (STAND_IN_ON_SLURM, "mini-slurm")):
        cluster = yaml.safe_load((config / "clusters" / f"{shipped}.yaml").read_text())
        cluster |= {"name": name, "work_dir": f"{{STEPTIME_HOME}}/{name}", "python": python}
        (config / "clusters" / f"{name}.yaml").write_text(yaml.safe_dump(cluster))


def python_of_stand_in(folder: Path, program: Path) -> Path:
    """Write a Python for a cluster's file: asked to build an environment, it makes one that runs `program`.

    Everything else of staging is real: the copied code, the lock, the lookup of what is there.
    """
    # Airflow may run on another Python, but the trainer's packages are locked for 3.11.
    real = shlex.quote(
        sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11") or ""
    )
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
