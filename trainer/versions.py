"""The versions of what trains, from the installed packages: NeMo need not be imported for them."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version

from trainer.errors import TrainerError

PACKAGES = {"nemo": "nemo_toolkit", "megatron_core": "megatron-core", "torch": "torch"}
"""Names in the records, and the packages'."""
TRIED = {"nemo": "2.7.3", "megatron_core": "0.15.3"}
"""What this project has trained with."""
OLDEST, NEWEST = (2, 2), (2, 7)
"""Releases of NeMo that have the names and arguments that this trainer uses; compared, not tried."""


def versions() -> dict[str, str | None]:
    """Each version, None where the package is not installed."""
    installed = {name: _version(package) for name, package in PACKAGES.items()}
    return {**installed, "python": platform.python_version()}


def check_versions() -> str | None:
    """Refuse releases of NeMo that this trainer is not written for; gives a remark on those not tried.

    Raises:
        TrainerError: with the version that is installed, and those that can be.
    """
    nemo = versions()["nemo"]
    if nemo is None:
        raise TrainerError(
            "NeMo is not installed here: run in an image of NeMo, or in the environment that steptime stages."
        )
    release = re.match(r"(\d+)\.(\d+)", nemo)
    if release is None or not OLDEST <= (int(release[1]), int(release[2])) <= NEWEST:
        raise TrainerError(
            f"NeMo {nemo} is installed here, and this trainer is written for NeMo "
            f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}: choose another image."
        )
    return untried()


def untried() -> str | None:
    """What is installed beside what was tried; None where it is the same."""
    installed = versions()
    if all(installed[name] == tried for name, tried in TRIED.items()):
        return None
    return (
        f"NeMo {installed['nemo']} with Megatron-Core {installed['megatron_core']} is installed, and this "
        f"trainer was tried with {TRIED['nemo']} and {TRIED['megatron_core']} only"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
