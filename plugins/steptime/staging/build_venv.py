"""Build the trainer's virtual environment. Runs on the cluster, started by the cluster's own Python.

    python3.11 build_venv.py TARGET LOCK BOOTSTRAP

TARGET is the environment's folder. It is built once, under a temporary name that is changed when it is
complete (`make_once.py`). LOCK is the list of pinned packages, BOOTSTRAP the list that pins the installer
(uv). Standard library only. Exit code 0: the environment is complete; 1: it could not be built, and the
output has the reason.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from steptime.staging.make_once import Run as RunCommand
from steptime.staging.make_once import exit_on_sigterm, make_once

_PIP_INSTALL = ("install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-compile")
_ABSENT = re.compile(r"(?m)^# absent: (.*)$")
"""Line of a lock that names packages which others require and which are not installed on purpose."""
_NOT_INSTALLED = re.compile(r"requires `([\w.-]+).*`, but it's not installed")
_TORCH = re.compile(r"torch==[\w.]+(?:\+(?P<build>\w+))?")
_TORCH_INDEX = "https://download.pytorch.org/whl"
"""PyTorch's own package index; it has a folder for each build (`cpu`, `cu130`)."""

Run = Callable[..., None]
"""Runs a command from its arguments and prints its output; raises `_CommandFailedError` if it fails."""


class _CommandFailedError(Exception):
    """A command failed; its output has been printed."""

    def __init__(self, argv: tuple[str, ...], exit_code: int, output: str) -> None:
        super().__init__(f"{' '.join(argv)} ended with exit code {exit_code}")
        self.output = output


def main() -> int:
    """Build the trainer's virtual environment unless it is complete; return the exit code."""
    target, lock, bootstrap = map(Path, sys.argv[1:])
    exit_on_sigterm()
    try:
        make_once(target, "build of", partial(_is_complete, target), partial(_build, target, lock, bootstrap))
    except (_CommandFailedError, OSError) as error:
        print(f"failed: {error}", flush=True)
        return 1
    return 0


def _is_complete(target: Path) -> bool:
    """Return whether the environment exists and its interpreter starts."""
    try:
        starts = subprocess.run([target / "bin" / "python", "-c", ""], check=False).returncode == 0
    except OSError:
        return False
    if starts:
        print(f"{target} is there already", flush=True)
    return starts


def _build(target: Path, lock: Path, bootstrap: Path, part: Path, run_command: RunCommand) -> None:
    """Build in the folder `part` the environment that will be renamed to `target`."""
    began = time.monotonic()
    run = partial(_run, run_command)
    python, uv = str(part / "bin" / "python"), str(part / "bin" / "uv")
    print(f"[1/5] making {target}", flush=True)
    install = (*_make_empty(part, run), *_PIP_INSTALL)
    print("[2/5] installing the installer", flush=True)
    run(*install, "-r", str(bootstrap))
    pinned = lock.read_text(encoding="utf-8")
    torch, others = _split(pinned)
    print(f"[3/5] installing {torch.split()[0] if torch else 'no PyTorch: the lock has none'}", flush=True)
    if torch:
        _install_torch(part, torch, partial(run, *install))
    print("[4/5] installing the other packages of the lock", flush=True)
    requirements = part / "requirements-others.txt"
    requirements.write_text(others, encoding="utf-8")
    # Certificates as pip knows them: a login over ssh often lacks the variables that uv reads.
    trust = ("--system-certs",)
    run(uv, "pip", "install", *trust, "--python", python, "--no-deps", "-r", str(requirements))
    print("[5/5] checking that the packages fit together", flush=True)
    _check_fit(run, uv, python, lock=pinned)
    if torch:
        run(python, "-W", "ignore", "-c", "import torch; print('PyTorch', torch.__version__)")
    _replace_name(part, target)
    print(f"{target} is complete after {time.monotonic() - began:.0f} s", flush=True)


def _check_fit(run: Run, uv: str, python: str, *, lock: str) -> None:
    """Check that no package lacks another one, but for those that the lock leaves out on purpose."""
    expected = {name for names in _ABSENT.findall(lock) for name in names.split(", ")}
    try:
        run(uv, "pip", "check", "--python", python)
    except _CommandFailedError as error:
        problems = [line for line in error.output.splitlines() if line.startswith("The package ")]
        missing = [match[1] for line in problems if (match := _NOT_INSTALLED.search(line))]
        if not problems or len(missing) < len(problems) or not expected.issuperset(missing):
            raise
        print("these are left out on purpose", flush=True)


def _replace_name(part: Path, target: Path) -> None:
    """Replace the folder's temporary name by its final one in the files that have the environment's path.

    Only pyvenv.cfg and scripts (`bin/torchrun`, `bin/activate`) have it. Python itself finds its packages
    relative to its own path.
    """
    for path in (part / "pyvenv.cfg", *(part / "bin").iterdir()):
        content = b"" if path.is_symlink() else path.read_bytes()
        if part.name.encode() in content:
            path.write_bytes(content.replace(part.name.encode(), target.name.encode()))


def _make_empty(part: Path, run: Run) -> tuple[str, ...]:
    """Create the environment without packages; return the pip command that installs into it.

    If this Python has a pip that can install into another environment (22.3 or later), it is used: installing
    a pip in the new environment takes five seconds.
    """
    python = str(part / "bin" / "python")
    run(sys.executable, "-m", "venv", "--without-pip", str(part))
    pip = (sys.executable, "-m", "pip", "--python", python)
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0:
        return pip
    run(sys.executable, "-m", "venv", str(part))
    return (python, "-m", "pip")


def _split(lock: str) -> tuple[str, str]:
    """Split the lock into PyTorch's requirement (with its hashes) and all others."""
    entries = re.split(r"(?m)^(?=\S)", lock)  # lines that are indented belong to the one above
    torch = [entry for entry in entries if _TORCH.match(entry)]
    return "".join(torch), "".join(entry for entry in entries if entry not in torch)


def _install_torch(part: Path, torch: str, install: Run) -> None:
    """Install PyTorch by pip: from pip's configured index, else from PyTorch's own index.

    pip is used because a machine's pip may be configured with a local folder of wheels, which uv ignores.
    PyTorch's dependencies are in the lock like all other packages.
    """
    requirements = part / "requirements-torch.txt"
    requirements.write_text(torch, encoding="utf-8")
    arguments = ("--no-deps", "-r", str(requirements))
    try:
        install(*arguments)
    except _CommandFailedError as error:
        match = _TORCH.match(torch)
        build = match["build"] if match else None
        if build is None or "No matching distribution" not in error.output:
            raise
        print(f"pip's index does not have it: looking at {_TORCH_INDEX}/{build}", flush=True)
        install(*arguments, "--extra-index-url", f"{_TORCH_INDEX}/{build}")


def _run(run_command: RunCommand, *argv: str) -> None:
    exit_code, output = run_command(argv)
    if exit_code:
        raise _CommandFailedError(argv, exit_code, output)


if __name__ == "__main__":
    sys.exit(main())
