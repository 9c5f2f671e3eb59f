"""The Debian packages that the cluster is made of, and the error for those that are missing."""

import os
import shutil

from steptime.errors import SystemFailure

PACKAGES = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
"""Each program and the package that has it."""


def program(name: str) -> str:
    """Return the path of a program of `PACKAGES`: the PATH of ordinary users lacks the daemons' folders."""
    found = _find(name)
    if found is None:
        raise _failure([name])
    return found


def check() -> None:
    """Raise SystemFailure, with the one command that installs them, if packages are missing."""
    missing = [name for name in PACKAGES if _find(name) is None]
    if missing:
        raise _failure(missing)


def search_path() -> str:
    """Return the caller's PATH with the folders of daemons appended."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def _find(name: str) -> str | None:
    return shutil.which(name, path=search_path())


def _failure(programs: list[str]) -> SystemFailure:
    packages = sorted({PACKAGES[name] for name in programs})
    sudo = "" if os.geteuid() == 0 else "sudo "
    return SystemFailure(
        f"the mini Slurm needs Debian packages that are not installed: {', '.join(packages)}. "
        f"Install them: {sudo}apt-get install --no-install-recommends {' '.join(packages)}"
    )
