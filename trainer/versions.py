"""The versions of what trains, from the installed packages: NeMo need not be imported for them."""

import contextlib
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = {"nemo": "nemo_toolkit", "megatron_core": "megatron-core", "torch": "torch"}
"""Names in the records, and the packages'."""

DRIVER = Path("/proc/driver/nvidia/version")
"""What the kernel's NVIDIA driver says of itself; not there without one."""


def versions() -> dict[str, str | None]:
    """Each version, None where the package is not installed; on GPUs also CUDA, NCCL and the driver."""
    return {
        **{name: _version(package) for name, package in PACKAGES.items()},
        "python": platform.python_version(),
        **_of_gpus(),
    }


def driver_version(driver: Path = DRIVER) -> str | None:
    """The version of the NVIDIA driver; None where there is none.

    Its first line is as "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build".
    """
    try:
        found = re.search(r"\b\d{2,}\.\d+(?:\.\d+)*\b", driver.read_text(errors="replace"))
    except OSError:
        return None
    return found[0] if found else None


def _of_gpus() -> dict[str, str]:
    """What is known of GPUs by now: torch tells its own versions once it has been imported."""
    found = {"nvidia_driver": driver_version()}
    torch = sys.modules.get("torch")
    # Asked for while a run fails, too, perhaps in the middle of torch's own import.
    built_for = getattr(getattr(torch, "version", None), "cuda", None)
    if torch is not None and built_for is not None:
        found["cuda"] = str(built_for)
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # no NCCL in it, or half imported
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: version for name, version in found.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
