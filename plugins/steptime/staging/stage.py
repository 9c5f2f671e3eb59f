"""Stage on a cluster what a run needs: the trainer's code, and its packages or an image."""

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from steptime.clusters.base import Cluster, StagedFiles
from steptime.clusters.config import ClusterConfig
from steptime.clusters.containers import ImageForm, Mount, mount_points
from steptime.clusters.hub import fetch_command, hub_cache
from steptime.clusters.rank_program import rank_program
from steptime.errors import SystemFailure, UserError
from steptime.recipes.image import Image, parse_image
from steptime.recipes.models import Run
from steptime.recipes.spec import BRIDGE, NEMO
from steptime.settings import shipped
from steptime.staging.scripts import ScriptEnd, copy_scripts, run_script

_LOCKS = {NEMO: "requirements-cpu.lock.txt", BRIDGE: "requirements-bridge-cpu.lock.txt"}
"""File of the pinned packages of each backend of the trainer."""
_COMMIT = re.compile(rb"[0-9a-f]{40}\s*")
_LOCKED_FOR = "3.11"
"""The minor version of Python that the trainer's packages are locked for."""
_NEVER = 2
"""Exit code of the scripts if another try cannot help."""
_CANNOT_TELL = 3
"""Exit code of `import_image.py --look` if only a fetch would show whether there is an image."""


def _fetched_by_nodes(staged: StagedFiles, name: str) -> StagedFiles:
    """Return the staging result for an image that the nodes fetch themselves. Raises UserError."""
    digest = parse_image(name).digest
    return staged.model_copy(update={"image": name, "image_path": name, "image_digest": digest})


async def stage(
    cluster: Cluster, config: ClusterConfig, run: Run, report: Callable[[str], None]
) -> StagedFiles:
    """Stage what a run needs on the cluster, reusing what exists; `report` gets lines of progress.

    Raises UserError if the cluster cannot provide it, SystemFailure if staging fails.
    """
    config.require_container(run)
    await require_hub_files(cluster, config, run)
    await require_bridge_checkout(cluster, config, run)
    trainer = shipped("trainer")
    trainer_path, trainer_sha256 = await stage_trainer(cluster, config, source=trainer, report=report)
    staged = StagedFiles(
        python=None, venv_lock_sha256=None, trainer_path=trainer_path, trainer_sha256=trainer_sha256
    )
    name = run.recipe.image
    if name is not None and config.image_form is ImageForm.NAME:
        return _fetched_by_nodes(staged, name)
    if name is None:
        python, lock_sha256 = await stage_venv(
            cluster,
            config,
            lock=trainer / _LOCKS[run.recipe.backend],
            bootstrap=trainer.parent / "requirements-bootstrap.txt",
            report=report,
        )
        return staged.model_copy(update={"python": python, "venv_lock_sha256": lock_sha256})
    image = await stage_image(
        cluster,
        config,
        name,
        mounts=config.mounts(run),
        job_options=config.staging_job_options(run),
        report=report,
    )
    return staged.model_copy(
        update={
            "image": name,
            "image_path": image.path,
            "image_digest": image.digest,
            "image_sha256": image.sha256,
            "image_environment": image.environment,
        }
    )


async def stage_trainer(
    cluster: Cluster, config: ClusterConfig, *, source: Path, report: Callable[[str], None]
) -> tuple[str, str]:
    """Copy the package folder `source` to the cluster unless its content is already there.

    Returns the package's folder on the cluster, and the SHA-256 of its content (names and files). Raises
    SystemFailure if it cannot be written, or if the copy was changed.
    """
    files = await asyncio.to_thread(_read_package, source)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    sha256 = hashlib.sha256(listing.encode()).hexdigest()
    folder = PurePosixPath(config.root, "trainer", sha256[:16])
    if await _is_there(cluster, folder, digests):
        report(f"trainer code {folder.name} is there")
        return str(folder), sha256
    report(f"copying {len(files)} files of trainer code to {folder}")
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        for name, content in files.items():
            await cluster.write(str(partial / name), content)
        moved = await cluster.run(["mv", "--no-target-directory", str(partial), str(folder)], timeout_s=60)
    finally:
        await cluster.run(["rm", "-rf", str(partial)], timeout_s=60)
    if moved.exit_code and not await _is_there(cluster, folder, digests):  # else another was quicker
        raise SystemFailure(
            f"the trainer could not be copied to {folder} on {cluster.name}: {moved.stderr.strip()}"
        )
    return str(folder), sha256


def _read_package(source: Path) -> dict[str, bytes]:
    """Return the content of the package's files by path, without hidden files and `__pycache__`."""
    files = {}
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source.parent)
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in inside.parts):
            files[str(inside)] = path.read_bytes()
    return files


async def _is_there(cluster: Cluster, folder: PurePosixPath, digests: dict[str, str]) -> bool:
    """Return whether the folder exists with files of these SHA-256s, by relative path.

    Raises SystemFailure if its content was changed.
    """
    names = list(digests)
    sums = await cluster.run(["sha256sum", "--", *(str(folder / name) for name in names)], timeout_s=60)
    if not sums.stdout:
        return False
    if [line.split()[0] for line in sums.stdout.splitlines()] != [digests[name] for name in names]:
        raise SystemFailure(
            f"the copy of the trainer in {folder} on {cluster.name} was changed: remove that folder, and "
            "stage again"
        )
    return True


async def require_hub_files(cluster: Cluster, config: ClusterConfig, run: Run) -> None:
    """Raise UserError if the cluster's cache of the Hugging Face hub lacks a file that the run needs."""
    cache = hub_cache(run, config.environment, config.root)
    if cache is None:
        return
    for repository, names in run.recipe.hub_files.items():
        missing = await _missing(cluster, PurePosixPath(cache), repository, names)
        if missing is not None:
            raise UserError(
                f"{run.label} needs {missing} of {repository} from the Hugging Face hub, and {cache} on "
                f"cluster {config.name} does not have it. On a machine that reaches the hub (after 'hf auth "
                f"login' if the repository is gated) run: {fetch_command(repository, cache)} Then copy the "
                "folder to the cluster if that is another machine."
            )


async def require_bridge_checkout(cluster: Cluster, config: ClusterConfig, run: Run) -> None:
    """Raise UserError if the cluster lacks the commit of Megatron-Bridge whose scripts start the run."""
    program = rank_program(run, config.root)
    folder = program.checkout
    if folder is None or program.script is None or await cluster.read(program.script, limit=1):
        return
    raise UserError(
        f"{run.label} is started by the scripts of a commit of Megatron-Bridge, and {program.script} on "
        f"cluster {config.name} is not there. On a machine that reaches GitHub run: git clone --no-checkout "
        f"https://github.com/NVIDIA-NeMo/Megatron-Bridge.git {folder} && git -C {folder} checkout "
        f"{folder.name} Then copy the folder to the cluster if that is another machine."
    )


async def _missing(
    cluster: Cluster, cache: PurePosixPath, repository: str, names: Sequence[str]
) -> str | None:
    """Return the first file missing from the cached repository's main revision; None if none is."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    commit = await cluster.read(str(folder / "refs" / "main"), limit=64)
    for name in names:
        path = folder / "snapshots" / commit.decode(errors="replace").strip() / name
        if not _COMMIT.fullmatch(commit) or not await cluster.read(str(path), limit=1):
            return name
    return None


async def stage_venv(
    cluster: Cluster, config: ClusterConfig, *, lock: Path, bootstrap: Path, report: Callable[[str], None]
) -> tuple[str, str]:
    """Build the trainer's environment on the cluster if needed; return its Python and the lock's SHA-256.

    Args:
        cluster: the cluster.
        config: its configuration.
        lock: the pinned packages, on this machine.
        bootstrap: the pinned installer, on this machine.
        report: gets each line of progress as it comes.

    Raises:
        UserError: the cluster's Python is missing or has another version than the packages need.
        SystemFailure: the packages could not be installed; the message has the installer's last lines.
    """
    version = await python_version(cluster, config)
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
        raise SystemFailure(_venv_failure(cluster.name, str(target), built))
    return str(target / "bin" / "python"), lock_sha256


async def python_version(cluster: Cluster, config: ClusterConfig) -> str:
    """Return the version of the cluster's Python.

    Raises UserError if it is missing, or if the trainer does not support it.
    """
    completed = await cluster.run(
        [config.python, "-c", "import platform; print(platform.python_version())"], timeout_s=60
    )
    remedy = (
        f"the trainer's packages are locked for {_LOCKED_FOR} and do not fit others (nvidia-resiliency-ext "
        f"has nothing for 3.13): install Python {_LOCKED_FOR} there, or name it in "
        f"config/clusters/{config.name}.yaml as python:"
    )
    if completed.exit_code:
        raise UserError(
            f"cluster {config.name} has no {config.python}: {remedy} ({completed.stderr.strip()})"
        )
    version = completed.stdout.strip()
    if not version.startswith(f"{_LOCKED_FOR}."):
        raise UserError(f"{config.python} of cluster {config.name} is Python {version}: {remedy}")
    return version


def _venv_failure(cluster: str, target: str, built: ScriptEnd) -> str:
    output = "\n".join(built.last_lines)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        why = "the disk is full; an environment needs about 3 GB"
    elif "No matching distribution" in output or "not found in the package registry" in output:
        why = "a package was not found: the package index must be reachable from there"
    else:
        why = f"exit code {built.exit_code}"
    return (
        f"the trainer's environment {target} could not be built on {cluster}: {why}. "
        f"The last lines were:\n{output}"
    )


class StagedImage(NamedTuple):
    """An image on the cluster, ready to start containers from."""

    path: str
    """What a container starts from: a squashfs or SIF file, for bwrap the folder with its files."""
    digest: str | None
    """`sha256:…` of the registry's manifest; None if it is not known."""
    sha256: str
    """Hash of the image's file."""
    environment: dict[str, str]
    """Variables of the image, if the container program (bwrap) does not set them."""


async def stage_image(
    cluster: Cluster,
    config: ClusterConfig,
    name: str,
    *,
    mounts: Sequence[Mount],
    job_options: Sequence[str],
    report: Callable[[str], None],
) -> StagedImage:
    """Provide the image `name` for the cluster's containers, reusing an existing file.

    Args:
        cluster: the cluster.
        config: its configuration; `container` is the container program.
        name: the image's name, as in a recipe.
        mounts: what containers will mount.
        job_options: options for jobs, if images are imported by jobs.
        report: gets each line of progress immediately.

    Raises:
        UserError: the name is invalid, or the cluster lacks a program or a login to get the image.
        SystemFailure: it could not be fetched or unpacked; the message has the last lines of output.
    """
    tool, source, target = _source(parse_image(name), config)
    folder = target.parent
    scripts = await copy_scripts(cluster, config)
    ended = await run_script(
        cluster,
        config,
        scripts / "import_image.py",
        [str(target), name, tool, source],
        in_job=config.import_in_job,
        job_options=job_options,
        report=report,
    )
    _require_success(ended, f"image {name} could not be brought to {target} on {cluster.name}")
    record = await _record(cluster, target)
    digest, sha256 = record["digest"], record["sha256"]
    if config.image_form is not ImageForm.FOLDER:
        return StagedImage(str(target), digest, sha256, {})
    unpacked = folder / "unpacked" / (digest or sha256).removeprefix("sha256:")[:16]
    ended = await run_script(
        cluster,
        config,
        scripts / "unpack_image.py",
        [str(target), str(unpacked), *mount_points(mounts)],
        in_job=config.import_in_job,
        job_options=job_options,
        report=report,
    )
    _require_success(ended, f"image {name} could not be unpacked into {unpacked} on {cluster.name}")
    environment = await cluster.read(str(unpacked / "etc" / "environment"))
    return StagedImage(str(unpacked), digest, sha256, _variables(environment.decode(errors="replace")))


async def find_image(cluster: Cluster, config: ClusterConfig, name: str) -> str | None:
    """Return a phrase about where the image is; None if only a fetch would show whether there is one.

    Nothing is fetched. Raises UserError or SystemFailure if the image is not available.
    """
    image = parse_image(name)
    tool, source, target = _source(image, config)
    if config.import_in_job:
        return f"{target} is there" if await cluster.read(str(target), limit=1) else None
    scripts = await copy_scripts(cluster, config)
    ended = await run_script(
        cluster,
        config,
        scripts / "import_image.py",
        ["--look", str(target), name, tool, source],
        in_job=False,
        job_options=(),
        report=lambda _: None,
    )
    if ended.exit_code == _CANNOT_TELL:
        return None
    _require_success(ended, f"image {name} cannot be had on {cluster.name}")
    return ended.last_lines[-1]


def _source(image: Image, config: ClusterConfig) -> tuple[str, str, PurePosixPath]:
    """Return the program that makes the image's file, the URI that it is made from, and the file's path."""
    images = PurePosixPath(config.root, "images")
    if config.image_form is ImageForm.SIF:
        return "apptainer", image.uri("/"), images / f"{image.file_stem}.sif"
    return "enroot", image.uri("#"), images / f"{image.file_stem}.sqsh"


def _require_success(ended: ScriptEnd, what: str) -> None:
    if ended.exit_code == 0:
        return
    *before, last = ended.last_lines or ("it printed nothing",)
    why = last.removeprefix("failed: ") if last.startswith("failed: ") else f"exit code {ended.exit_code}"
    error = UserError if ended.exit_code == _NEVER else SystemFailure
    output = "\n".join(before if last.startswith("failed: ") else ended.last_lines)
    raise error(f"{what}: {why}." + (f" The last lines were:\n{output}" if output else ""))


async def _record(cluster: Cluster, target: PurePosixPath) -> dict[str, Any]:
    """Read the record beside an image's file. Raises SystemFailure if it is missing or damaged."""
    content = await cluster.read(f"{target}.json")
    try:
        record: dict[str, Any] = json.loads(content)
    except ValueError:
        raise SystemFailure(
            f"{target}.json on {cluster.name} is not a record of an image: remove it"
        ) from None
    return record


def _variables(text: str) -> dict[str, str]:
    """Parse /etc/environment as enroot writes it: one unquoted NAME=value per line."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, separator, value in pairs if separator and name.isidentifier()}
