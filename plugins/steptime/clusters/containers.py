"""How a command is started inside a recipe's image: what srun is told, and what stands before the command.

Folders appear inside at the paths that they have outside.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from steptime.errors import UserError, shown

_PATH = re.compile(r"/[A-Za-z0-9._+@=/-]*", re.ASCII)
"""Without ':' and ',', which separate mounts in every one of these programs."""


_HOST_FILES = ("/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/resolv.conf")
"""Who the user is and where other nodes are: known by the machine and not by an image."""

_TEMPORARY = "/tmp"  # noqa: S108 (a file system in memory, of the container alone)


TRAINER_VARIABLE = "STEPTIME_TRAINER"
"""In the environment of a job whose ranks run in an image: the folder above `trainer/`."""

FINDS_TRAINER = (
    "sh",
    "-c",
    f'export PYTHONPATH="${TRAINER_VARIABLE}${{PYTHONPATH:+:$PYTHONPATH}}"; exec "$@"',
    "steptime",
)
"""What stands before a command in an image: the trainer's folder goes before the image's own PYTHONPATH, by
which NeMo's images name their packages. Only inside of the container is that known. The text is always the
same; the command comes as arguments. Every image has `sh`, not every one bash."""


class Started(NamedTuple):
    """A command in its container."""

    srun_options: tuple[str, ...]
    command: tuple[str, ...]


def in_container(
    kind: str,
    command: Sequence[str],
    *,
    image: str,
    folders: Iterable[str],
    directory: str,
    variables: Iterable[str],
    image_environment: Mapping[str, str],
) -> Started:
    """How `command` is started in `image`.

    Args:
        kind: `pyxis`, srun's plugin for enroot, `apptainer`, or `bwrap`, which is for machines without GPUs.
        command: what to run inside.
        image: on the cluster, a squashfs file for pyxis, a SIF file for apptainer, a folder for bwrap.
        folders: what is mounted, writable, at its own path.
        directory: the working folder, one of them or below.
        variables: environment variables of the job that win over those of the image.
        image_environment: those of the image, which pyxis and apptainer set themselves, and bwrap does not.

    Raises:
        UserError: another kind, or a folder that cannot be mounted.
    """
    mounted = _mountable(folders)
    if kind == "pyxis":
        return Started(
            srun_options=(
                f"--container-image={image}",
                f"--container-mounts={','.join(f'{folder}:{folder}' for folder in mounted)}",
                f"--container-workdir={directory}",
                f"--container-env={','.join(variables)}",
                "--container-writable",
                "--no-container-mount-home",
            ),
            command=tuple(command),
        )
    if kind == "apptainer":
        binds = tuple(f"--bind={folder}:{folder}" for folder in mounted)
        options = ("--nv", "--writable-tmpfs", "--no-home", f"--pwd={directory}", *binds)
        return Started(srun_options=(), command=("apptainer", "exec", *options, image, *command))
    if kind == "bwrap":
        own = set(variables)
        environment = {"HOME": _TEMPORARY, "TMPDIR": _TEMPORARY, **image_environment}
        options = (
            "--die-with-parent",
            *("--ro-bind", image, "/"),
            *("--dev-bind", "/dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys"),
            *("--tmpfs", _TEMPORARY),
            *(word for file in _HOST_FILES for word in ("--ro-bind-try", file, file)),
            *(word for folder in mounted for word in ("--bind", folder, folder)),
            *(
                word
                for name, value in environment.items()
                if name not in own
                for word in ("--setenv", name, value)
            ),
            *("--chdir", directory),
        )
        return Started(srun_options=(), command=("bwrap", *options, "--", *command))
    raise UserError(f"no container is started by '{kind}': choose pyxis, apptainer or bwrap.")


def mounted_folders(root: str, mounts: Sequence[str], checkpoint: str | None) -> tuple[str, ...]:
    """What a training's container sees: all jobs' folders with their checkpoints, the site's, and the
    checkpoint to load where it lies elsewhere."""
    folders = (root, *mounts)
    if checkpoint is None or any(PurePosixPath(checkpoint).is_relative_to(folder) for folder in folders):
        return folders
    return (*folders, checkpoint)


def mount_points(folders: Iterable[str]) -> tuple[str, ...]:
    """The paths that must exist in an unpacked image so that bwrap can start `folders`' containers there."""
    return ("/dev", "/proc", "/sys", _TEMPORARY, *_HOST_FILES, *_mountable(folders))


def _mountable(folders: Iterable[str]) -> tuple[str, ...]:
    """Each folder once. Raises UserError for one that the programs would read as something else."""
    mounted = tuple(dict.fromkeys(folders))
    for folder in mounted:
        if not _PATH.fullmatch(folder):
            raise UserError(
                f"folder '{shown(folder)}' cannot be mounted into a container: "
                "begin with '/' and use letters, digits and . _ + @ = - only."
            )
    return mounted
