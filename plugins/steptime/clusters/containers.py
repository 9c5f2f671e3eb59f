"""How a command is started inside a recipe's image: what srun is told, and what stands before the command.

Folders appear inside at the paths that they have outside.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from steptime.errors import UserError, shown

_PATH = re.compile(r"/[A-Za-z0-9._+@=/-]*", re.ASCII)
"""Without ':' and ',', which separate mounts in every one of these programs."""


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
) -> Started:
    """How `command` is started in `image`.

    Args:
        kind: `pyxis`, srun's plugin for enroot, or `apptainer`.
        command: what to run inside.
        image: a squashfs or SIF file on the cluster, or a reference that pyxis or apptainer resolve.
        folders: what is mounted, writable, at its own path.
        directory: the working folder, one of them or below.
        variables: environment variables of the job that win over those of the image.

    Raises:
        UserError: another kind, or a folder that cannot be mounted.
    """
    mounted = tuple(dict.fromkeys(folders))
    for folder in mounted:
        if not _PATH.fullmatch(folder):
            raise UserError(
                f"folder '{shown(folder)}' cannot be mounted into a container: "
                "begin with '/' and use letters, digits and . _ + @ = - only."
            )
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
    raise UserError(f"containers of kind '{kind}' cannot be started under Slurm: choose pyxis or apptainer.")
