"""Build the trainer's virtual environment. Runs on the cluster, started by the cluster's own Python.

    python3.11 build_venv.py TARGET LOCK BOOTSTRAP

TARGET is the environment's folder. An environment cannot be moved, so it is built in its final place. A claim
(`claim.py`) keeps other processes from building it at the same time. It is complete when it has the file
`.complete`, which is written last. LOCK is the list of pinned packages, BOOTSTRAP the list that pins the
installer (uv). Standard library only. Exit code 0: the environment is complete; 1: it could not be built, and
the output has the reason.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from steptime.files import write_whole
from steptime.staging.claim import claimed, run_holding

_PIP_INSTALL = ("install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-compile")
_TORCH = re.compile(r"torch==[\w.]+(?:\+(?P<build>\w+))?")
_TORCH_INDEX = "https://download.pytorch.org/whl"
"""PyTorch's own package index; it has a folder for each build (`cpu`, `cu130`)."""

Run = Callable[..., None]
"""Runs a command from its arguments, and prints its output as it comes."""


class _CommandFailedError(Exception):
    """A command failed; its output has been printed."""

    def __init__(self, argv: tuple[str, ...], exit_code: int, output: str) -> None:
        super().__init__(f"{' '.join(argv)} ended with exit code {exit_code}")
        self.output = output


def main() -> int:
    """Build the trainer's virtual environment unless it is complete; return the exit code."""
    target, lock, bootstrap = map(Path, sys.argv[1:])
    with claimed(target, "build of") as guard:
        return _build_unless_complete(target, lock, bootstrap, guard)


def _build_unless_complete(target: Path, lock: Path, bootstrap: Path, guard: int) -> int:
    if _is_complete(target):
        print(f"{target} is there already", flush=True)
        return 0
    try:
        if target.exists():
            print(f"removing what an unfinished build left in {target}", flush=True)
            shutil.rmtree(target)
        _build(target, lock.read_text(encoding="utf-8"), bootstrap, partial(_run, guard))
    except (_CommandFailedError, OSError) as error:
        print(f"failed: {error}", flush=True)
        shutil.rmtree(target, ignore_errors=True)  # it can be gigabytes, and the disk may be full
        return 1
    return 0


def _is_complete(target: Path) -> bool:
    """Return whether the environment is complete and its interpreter starts."""
    if not (target / ".complete").is_file():
        return False
    try:
        return subprocess.run([target / "bin" / "python", "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def _build(target: Path, lock: str, bootstrap: Path, run: Run) -> None:
    began = time.monotonic()
    python, uv = str(target / "bin" / "python"), str(target / "bin" / "uv")
    print(f"[1/5] making {target}", flush=True)
    install = (*_make_empty(target, run), *_PIP_INSTALL)
    print("[2/5] installing the installer", flush=True)
    run(*install, "-r", str(bootstrap))
    torch, others = _split(lock)
    print(f"[3/5] installing {torch.split()[0] if torch else 'no PyTorch: the lock has none'}", flush=True)
    if torch:
        _install_torch(target, torch, partial(run, *install))
    print("[4/5] installing the other packages of the lock", flush=True)
    requirements = target / "requirements-others.txt"
    requirements.write_text(others, encoding="utf-8")
    # Certificates as pip knows them: a login over ssh often lacks the variables that uv reads.
    trust = ("--system-certs",)
    run(uv, "pip", "install", *trust, "--python", python, "--no-deps", "-r", str(requirements))
    print("[5/5] checking that the packages fit together", flush=True)
    run(uv, "pip", "check", "--python", python)
    if torch:
        run(python, "-W", "ignore", "-c", "import torch; print('PyTorch', torch.__version__)")
    record = {
        "python": platform.python_version(),
        "built_at": time.time(),
        "built_in_s": time.monotonic() - began,
    }
    write_whole(target / ".complete", json.dumps(record))
    print(f"{target} is complete after {record['built_in_s']:.0f} s", flush=True)


def _make_empty(target: Path, run: Run) -> tuple[str, ...]:
    """Create the environment without packages; return the pip command that installs into it.

    If this Python has a pip that can install into another environment (22.3 or later), it is used: installing
    a pip in the new environment takes five seconds.
    """
    python = str(target / "bin" / "python")
    run(sys.executable, "-m", "venv", "--without-pip", str(target))
    own = (sys.executable, "-m", "pip", "--python", python)
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    run(sys.executable, "-m", "venv", str(target))
    return (python, "-m", "pip")


def _split(lock: str) -> tuple[str, str]:
    """Split the lock into PyTorch's requirement (with its hashes) and all others."""
    entries = re.split(r"(?m)^(?=\S)", lock)  # lines that are indented belong to the one above
    torch = [entry for entry in entries if _TORCH.match(entry)]
    return "".join(torch), "".join(entry for entry in entries if entry not in torch)


def _install_torch(target: Path, torch: str, install: Run) -> None:
    """Install PyTorch by pip: from pip's configured index, else from PyTorch's own index.

    pip is used because a machine's pip may be configured with a local folder of wheels, which uv ignores.
    PyTorch's dependencies are in the lock like all other packages.
    """
    requirements = target / "requirements-torch.txt"
    requirements.write_text(torch, encoding="utf-8")
    asked = ("--no-deps", "-r", str(requirements))
    try:
        install(*asked)
    except _CommandFailedError as error:
        found = _TORCH.match(torch)
        build = found["build"] if found else None
        if build is None or "No matching distribution" not in error.output:
            raise
        print(f"it is not at hand: looking at {_TORCH_INDEX}/{build}", flush=True)
        install(*asked, "--extra-index-url", f"{_TORCH_INDEX}/{build}")


def _run(lock: int, *argv: str) -> None:
    exit_code, output = run_holding(lock, argv)
    if exit_code:
        raise _CommandFailedError(argv, exit_code, output)


if __name__ == "__main__":
    sys.exit(main())
