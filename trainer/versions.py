"""The versions of what trains, from the installed packages: NeMo need not be imported for them."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = {"nemo": "nemo_toolkit", "megatron_core": "megatron-core", "torch": "torch"}
"""Names in the records, and the packages'."""


def versions() -> dict[str, str | None]:
    """Each version, None where the package is not installed."""
    return {
        **{name: _version(package) for name, package in PACKAGES.items()},
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
