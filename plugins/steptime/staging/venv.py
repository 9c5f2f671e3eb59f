"""The trainer's virtual environment on the cluster: keyed by lock and Python, built once, reused."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig
from steptime.errors import SystemFailure, UserError
from steptime.staging.scripts import ScriptEnd, copy_scripts, run_script

_LOCKED_FOR = "3.11"
"""The minor version of Python that the trainer's packages are locked for."""


async def stage_venv(
    cluster: Cluster, config: ClusterConfig, *, lock: Path, bootstrap: Path, report: Callable[[str], None]
) -> tuple[str, str]:
    """Build the environment unless it is there; return its interpreter on the cluster and the lock's SHA-256.

    Args:
        cluster: the cluster.
        config: its configuration.
        lock: the pinned packages, on this machine.
        bootstrap: the pinned installer, on this machine.
        report: gets each line of progress as it comes.

    Raises:
        UserError: the cluster has no fitting Python.
        SystemFailure: the packages could not be installed; with the tail of the installer's output.
    """
    version = await _python_version(cluster, config)
    content = await asyncio.to_thread(lock.read_bytes)
    lock_sha256 = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{lock_sha256} {version}".encode()).hexdigest()[:16]
    venvs = PurePosixPath(config.root, "venvs")
    target = venvs / f"trainer-{key}"
    inputs = {
        f"{target}.lock.txt": content,
        f"{target}.bootstrap.txt": await asyncio.to_thread(bootstrap.read_bytes),
    }
    for path, data in inputs.items():
        await cluster.write(path, data)
    script = await copy_scripts(cluster, config) / "build_venv.py"
    arguments = [str(target), *inputs]
    built = await run_script(cluster, config, script, arguments, in_job=False, job_options=(), report=report)
    if built.exit_code:
        raise SystemFailure(_failure(cluster.name, str(target), built))
    return str(target / "bin" / "python"), lock_sha256


async def _python_version(cluster: Cluster, config: ClusterConfig) -> str:
    asked = await cluster.run(
        [config.python, "-c", "import platform; print(platform.python_version())"], timeout_s=60
    )
    remedy = (
        f"the trainer's packages are locked for {_LOCKED_FOR} and do not fit others (nvidia-resiliency-ext "
        f"has nothing for 3.13): install Python {_LOCKED_FOR} there, or name it in "
        f"config/clusters/{config.name}.yaml as python:"
    )
    if asked.exit_code:
        raise UserError(f"cluster {config.name} has no {config.python}: {remedy} ({asked.stderr.strip()})")
    version = asked.stdout.strip()
    if not version.startswith(f"{_LOCKED_FOR}."):
        raise UserError(f"{config.python} of cluster {config.name} is Python {version}: {remedy}")
    return version


def _failure(cluster: str, target: str, built: ScriptEnd) -> str:
    output = "\n".join(built.last_lines)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        why = "the disk is full; an environment needs about 3 GB"
    elif "No matching distribution" in output or "not found in the package registry" in output:
        why = "a package was not found; is the package index reachable from there?"
    else:
        why = f"exit code {built.exit_code}"
    return (
        f"the trainer's environment {target} could not be built on {cluster}: {why}. "
        f"The last lines were:\n{output}"
    )
