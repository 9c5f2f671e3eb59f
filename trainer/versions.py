"""Versions of the training software, read from package metadata without importing NeMo."""

import contextlib
import platform
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import TrainerError
from trainer.spec import BRIDGE

PACKAGES = {
    "nemo": "nemo_toolkit",
    BRIDGE: "megatron-bridge",
    "megatron_core": "megatron-core",
    "torch": "torch",
}
"""Package of each name in the records."""
DRIVER = Path("/proc/driver/nvidia/version")
"""File with the version of the kernel's NVIDIA driver; missing without one."""
TRIED = {"nemo": "2.7.3", "megatron_core": "0.15.3"}
TRIED_BRIDGE = (
    {"megatron_bridge": "0.3.1", "megatron_core": "0.16.1"},
    {"megatron_bridge": "0.6.2", "megatron_core": "0.19.2"},
)
"""Versions with which this project has trained: with NeMo, and each with Megatron-Bridge."""
NAMES = {"nemo": "NeMo", "megatron_bridge": "Megatron-Bridge", "megatron_core": "Megatron-Core"}
OLDEST, NEWEST = (2, 2), (2, 7)
"""The oldest and the newest release of NeMo that this trainer supports. Every name and argument that it uses,
FP8's too, is looked up in the source of 2.2.1, 2.3.1, 2.4.0, 2.5.0 and 2.7.3
(tests/trainer/test_releases.py); a GPU has run 2.7.3 only."""


def versions() -> dict[str, str | None]:
    """Return package versions, None for those not installed; on GPUs also CUDA, NCCL and the driver.

    Megatron-Bridge's is left out if it is not installed.
    """
    packages = {name: _version(package) for name, package in PACKAGES.items()}
    if packages[BRIDGE] is None:
        del packages[BRIDGE]
    return {
        **packages,
        "python": platform.python_version(),
        **_gpu_versions(),
    }


def check_versions(backend: str) -> str | None:
    """Refuse releases that the trainer does not support.

    Return a remark if steptime has not trained with the installed versions, else None.

    Raises:
        TrainerError: the backend's framework is not installed, or its release of NeMo is not supported.
    """
    if backend == BRIDGE:
        if _version(PACKAGES[BRIDGE]) is None:
            raise TrainerError(
                "Megatron-Bridge is not installed here: run in an image of NeMo from 26.02 on, or in the "
                "environment that steptime stages."
            )
        return untried(backend)
    nemo = versions()["nemo"]
    if nemo is None:
        raise TrainerError(
            "NeMo is not installed here: run in an image of NeMo, or in the environment that steptime stages."
        )
    release = re.match(r"(\d+)\.(\d+)", nemo)
    if release is None or not OLDEST <= (int(release[1]), int(release[2])) <= NEWEST:
        raise TrainerError(
            f"NeMo {nemo} is installed here, but this trainer supports NeMo "
            f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}: choose another image."
        )
    return untried(backend)


def has_option(of: Callable[..., Any], name: str) -> bool:
    """Return whether a class or function of the installed NeMo or Megatron takes an argument `name`."""
    return name in signature(of).parameters


def accepted(of: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the options unchanged if `of`, a class of the installed NeMo or Megatron, takes all of them.

    Raises:
        TrainerError: it lacks one. An option that a plan sets is never dropped silently.
    """
    for name in options:
        if not has_option(of, name):
            installed = versions()
            raise TrainerError(
                f"{of.__name__} has no '{name}' in NeMo {installed['nemo']} with Megatron-Core "
                f"{installed['megatron_core']}, but the plan sets it: use the image that the workload "
                "file names, or remove the setting from performance in that file."
            )
    return options


def tuned_buffers(module: ModuleType, backend: str, name: str | None) -> Any | None:
    """Return the overlap settings of a name (`tp_comm_overlap_cfg`) from the backend's module of them.

    None, for Transformer Engine's defaults, without a name.

    Raises:
        TrainerError: the installed release has no such settings.
    """
    if name is None:
        return None
    if not hasattr(module, name):
        raise TrainerError(
            f"this release of {NAMES[backend]} has no {name}, which the plan names as tp_comm_overlap_cfg: "
            "choose the workload's own image."
        )
    return getattr(module, name)


def untried(backend: str) -> str | None:
    """Return a sentence that names the installed and the tested versions; None if they are equal."""
    tested = TRIED_BRIDGE if backend == BRIDGE else (TRIED,)
    installed = versions()
    if any(versions_tried.items() <= installed.items() for versions_tried in tested):
        return None
    there = " with ".join(f"{NAMES[name]} {installed.get(name)}" for name in tested[0])
    tried = " or ".join(" and ".join(versions_tried.values()) for versions_tried in tested)
    return f"{there} is installed, and this trainer was tried with {tried} only"


def driver_version(driver: Path = DRIVER) -> str | None:
    """Return the version of the NVIDIA driver, or None if there is none.

    A line of the file: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build".
    """
    try:
        match = re.search(r"\b\d{2,}\.\d+(?:\.\d+)*\b", driver.read_text(errors="replace"))
    except OSError:
        return None
    return match[0] if match else None


def _gpu_versions() -> dict[str, str]:
    """Return the versions of the GPU software; torch's only if it has been imported."""
    gpu_versions = {"nvidia_driver": driver_version()}
    torch = sys.modules.get("torch")
    # Asked for while a run fails, too, perhaps in the middle of torch's own import.
    built_for = getattr(getattr(torch, "version", None), "cuda", None)
    if torch is not None and built_for is not None:
        gpu_versions["cuda"] = str(built_for)
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # no NCCL in it, or half imported
            gpu_versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: version for name, version in gpu_versions.items() if version is not None}


@cache  # NeMo's metadata are long: reading them takes a tenth of a second
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
