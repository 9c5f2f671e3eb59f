"""A recipe's image on the cluster: fetched or made once, recorded, and unpacked if bwrap runs it."""

import json
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig
from steptime.clusters.containers import ImageForm, Mount, mount_points
from steptime.errors import SystemFailure, UserError
from steptime.recipes.image import Image, parse_image
from steptime.staging.scripts import ScriptEnd, copy_scripts, run_script

_NEVER = 2
"""The scripts' exit code for what another try does not mend."""


class StagedImage(NamedTuple):
    """An image that lies ready."""

    path: str
    """What a container is started from: a squashfs or SIF file, for bwrap the folder with its files."""
    digest: str | None
    sha256: str
    environment: dict[str, str]


async def stage_image(
    cluster: Cluster,
    config: ClusterConfig,
    name: str,
    *,
    venv: str | None,
    mounts: Sequence[Mount],
    job_options: Sequence[str],
    report: Callable[[str], None],
) -> StagedImage:
    """Make the image `name` ready for the cluster's containers, or find it there.

    Args:
        cluster: the cluster.
        config: its configuration; `container` is the program.
        name: the image's name, as a recipe has it.
        venv: the trainer's environment on the cluster, for an image that is made of it.
        mounts: what containers will mount.
        job_options: options of the jobs, if jobs do it.
        report: gets each line of progress as it comes.

    Raises:
        UserError: the name is none, or the cluster cannot get the image: a program or a login is missing.
        SystemFailure: it could not be fetched or unpacked; with the last lines of the program's output.
    """
    image = parse_image(name)
    tool, source = _source(image, config, venv)
    suffix = "sif" if config.image_form is ImageForm.SIF else "sqsh"
    folder = PurePosixPath(config.root, "images")
    target = folder / f"{image.file_stem}.{suffix}"
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


def _source(image: Image, config: ClusterConfig, venv: str | None) -> tuple[str, str]:
    """Which program makes the image's file, and of what."""
    if not image.is_own:
        is_sif = config.image_form is ImageForm.SIF
        return ("apptainer", image.uri("/")) if is_sif else ("enroot", image.uri("#"))
    if venv is None or config.image_form not in (ImageForm.FOLDER, ImageForm.SQUASHFS):
        raise UserError(
            f"an image of the trainer's own environment is run by bwrap or pyxis, and cluster {config.name} "
            f"has container: {config.container}"
        )
    return "squash_venv", venv


def _require_success(ended: ScriptEnd, what: str) -> None:
    if ended.exit_code == 0:
        return
    *before, last = ended.last_lines or ("it printed nothing",)
    why = last.removeprefix("failed: ") if last.startswith("failed: ") else f"exit code {ended.exit_code}"
    error = UserError if ended.exit_code == _NEVER else SystemFailure
    output = "\n".join(before if last.startswith("failed: ") else ended.last_lines)
    raise error(f"{what}: {why}." + (f" The last lines were:\n{output}" if output else ""))


async def _record(cluster: Cluster, target: PurePosixPath) -> dict[str, Any]:
    content = await cluster.read(f"{target}.json")
    try:
        record: dict[str, Any] = json.loads(content)
    except ValueError:
        raise SystemFailure(f"{target}.json on {cluster.name} is no record of an image: remove it") from None
    return record


def _variables(text: str) -> dict[str, str]:
    """The variables of /etc/environment as enroot writes it: one NAME=value a line, without quotes."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, separator, value in pairs if separator and name.isidentifier()}
