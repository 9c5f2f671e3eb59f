"""How to start a command in a recipe's image: srun's options and the command's prefix.

Folders have the same paths inside the container as outside. A job can write into its own folder; the folders
that it shares with other jobs are mounted read-only.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from steptime.errors import UserError, one_line
from steptime.plug_points import CONTAINERS

_PATH = re.compile(r"/[A-Za-z0-9._+@=/-]*", re.ASCII)
"""Paths that can be mounted: without ':' and ',', which separate mounts in all container programs."""


_HOST_FILES = ("/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/resolv.conf")
"""Files of the machine that bwrap mounts: an image does not know the user and the other nodes."""

_TEMPORARY = "/tmp"  # noqa: S108 (a file system in memory, of the container alone)


TRAINER_VARIABLE = "STEPTIME_TRAINER"
"""Variable of jobs whose ranks run in an image: the folders to put before the image's PYTHONPATH."""

FINDS_TRAINER = (
    "sh",
    "-c",
    f'export PYTHONPATH="${TRAINER_VARIABLE}${{PYTHONPATH:+:$PYTHONPATH}}"; exec "$@"',
    "steptime",
)
"""Prefix of a command in an image. It puts the trainer's folder before the image's own PYTHONPATH, which is
known only inside the container and which NeMo's images need to find their packages. The text is always the
same; the command comes as arguments. Every image has `sh`, but not every image has bash."""


_FOR_READING = ":ro"
"""Suffix of a read-only folder in a cluster's file; pyxis and apptainer use the same notation."""


class Mount(NamedTuple):
    """A host folder mounted in a container."""

    folder: str
    writable: bool

    @property
    def argument(self) -> str:
        """The mount in the notation of pyxis and apptainer."""
        return f"{self.folder}:{self.folder}" + ("" if self.writable else _FOR_READING)


class LaunchCommand(NamedTuple):
    """A command that starts a program in a container, with the options of srun that it needs."""

    srun_options: tuple[str, ...]
    command: tuple[str, ...]


class ImageForm(StrEnum):
    """The form in which a cluster stores a recipe's image."""

    SQUASHFS = "squashfs"
    """A squashfs file, as enroot imports it."""
    SIF = "sif"
    """A SIF file, as apptainer makes it."""
    FOLDER = "folder"
    """A folder with the unpacked files of a squashfs file."""
    NAME = "name"
    """No file: nodes fetch the image by name, and the cluster itself starts jobs in it (`JobSpec.image`)."""


class ContainerSetup(NamedTuple):
    """What a container contains: its image, mounts, working folder and variables."""

    image: str
    """Path of the image on the cluster."""
    mounts: tuple[Mount, ...]
    """The mounts in the order in which they are made: outer folders before the folders in them.
    The last is the job's own folder, which is mounted over a part of another one."""
    directory: str
    """The job's own folder: its working directory, which it may write to."""
    variables: tuple[str, ...]
    """Names of the job's environment variables that override those of the image."""
    image_environment: Mapping[str, str]
    """Variables of the image if it is a folder, else empty: other container programs set them themselves."""


@dataclass(frozen=True)
class ContainerRuntime:
    """A program that starts a job's ranks in a container; a cluster's file names it in `container`."""

    image: ImageForm
    launch: Callable[[Sequence[str], ContainerSetup], LaunchCommand] | None = None
    """Makes the command that starts a program in the image; None only if the cluster itself does that."""
    of_srun: bool = False
    """Whether it is a plugin of Slurm's srun and is given options of srun."""
    mpi: Literal["pmix", "none"] = "pmix"
    """srun's `--mpi`, unless the cluster's file sets it."""
    probe: tuple[str, ...] = ()
    """A command that succeeds if the container program works; empty if there is none."""
    probe_prints: str = ""
    """Text that `probe` also prints if the program works; empty if its exit code is enough."""


def start_in_container(kind: str, command: Sequence[str], inside: ContainerSetup) -> LaunchCommand:
    """Return how to start `command` in a container; `kind` is one of `plug_points.CONTAINERS`.

    Raises UserError for another kind, for one that has no `launch`, or for a folder that cannot be mounted.
    """
    _check_mountable(inside.mounts)
    launch = CONTAINERS.load(kind).launch
    if launch is None:
        raise UserError(
            f"container '{kind}' cannot start jobs on this cluster: choose another container in its file."
        )
    started: LaunchCommand = launch(command, inside)
    return started


def _with_pyxis(command: Sequence[str], inside: ContainerSetup) -> LaunchCommand:
    return LaunchCommand(
        srun_options=(
            f"--container-image={inside.image}",
            f"--container-mounts={','.join(mount.argument for mount in inside.mounts)}",
            f"--container-workdir={inside.directory}",
            f"--container-env={','.join(inside.variables)}",
            "--container-writable",
            "--no-container-mount-home",
        ),
        command=tuple(command),
    )


def _with_apptainer(command: Sequence[str], inside: ContainerSetup) -> LaunchCommand:
    binds = tuple(f"--bind={mount.argument}" for mount in inside.mounts)
    options = ("--nv", "--writable-tmpfs", "--no-home", f"--pwd={inside.directory}", *binds)
    return LaunchCommand(srun_options=(), command=("apptainer", "exec", *options, inside.image, *command))


def _with_bwrap(command: Sequence[str], inside: ContainerSetup) -> LaunchCommand:
    environment = {"HOME": _TEMPORARY, "TMPDIR": _TEMPORARY, **inside.image_environment}
    options = (
        "--die-with-parent",
        *("--cap-drop", "ALL"),  # or a job of root's could mount anew
        *("--ro-bind", inside.image, "/"),
        *("--dev-bind", "/dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys"),
        *("--tmpfs", _TEMPORARY),
        *(word for file in _HOST_FILES for word in ("--ro-bind-try", file, file)),
        *(
            word
            for folder, writable in inside.mounts
            for word in ("--bind" if writable else "--ro-bind", folder, folder)
        ),
        *(
            word
            for name, value in environment.items()
            if name not in inside.variables
            for word in ("--setenv", name, value)
        ),
        *("--chdir", inside.directory),
    )
    return LaunchCommand(srun_options=(), command=("bwrap", *options, "--", *command))


PYXIS = ContainerRuntime(
    ImageForm.SQUASHFS, _with_pyxis, of_srun=True, probe=("srun", "--help"), probe_prints="--container-image"
)
APPTAINER = ContainerRuntime(ImageForm.SIF, _with_apptainer, probe=("apptainer", "version"))
BWRAP = ContainerRuntime(
    ImageForm.FOLDER, _with_bwrap, mpi="none", probe=("bwrap", "--ro-bind", "/", "/", "true")
)
KUBERNETES = ContainerRuntime(ImageForm.NAME)


def mounts(work_dir: str, of_site: Sequence[str], to_read: Sequence[str | None] = ()) -> tuple[Mount, ...]:
    """Return the mounts of a cluster's training containers besides the job's folder, outer folders first.

    Args:
        work_dir: the cluster's folder with the staged files and the folders of all jobs, mounted read-only.
        of_site: folders from the cluster's file: `/data` is writable, `/data:ro` read-only.
        to_read: what the training loads, read-only: a checkpoint, the cache of the Hugging Face hub. One that
            lies in another of these folders gets no mount of its own.

    Raises:
        UserError: a folder of `to_read` contains `work_dir`.
    """
    folders = {work_dir: False} | {
        folder.removesuffix(_FOR_READING): not folder.endswith(_FOR_READING) for folder in of_site
    }
    for folder in filter(None, to_read):
        if any(PurePosixPath(folder).is_relative_to(path) for path in folders):
            continue
        if PurePosixPath(work_dir).is_relative_to(folder):
            raise UserError(
                f"'{one_line(folder)}' cannot be mounted: it contains the cluster's work_dir '{work_dir}'; "
                "use a folder that does not contain it, for a checkpoint the parent folder of weights/."
            )
        folders[folder] = False
    mounted = (Mount(folder, writable) for folder, writable in folders.items())
    return tuple(sorted(mounted, key=lambda mount: mount.folder.count("/")))


def mount_points(mounted: Iterable[Mount]) -> tuple[str, ...]:
    """Return the paths that an unpacked image must contain so that bwrap can mount there.

    Raises UserError for a folder that cannot be mounted.
    """
    mounted = tuple(mounted)
    _check_mountable(mounted)
    return ("/dev", "/proc", "/sys", _TEMPORARY, *_HOST_FILES, *(mount.folder for mount in mounted))


def _check_mountable(mounted: Iterable[Mount]) -> None:
    """Raise UserError for a folder name that a container program would misread."""
    for folder, _ in mounted:
        if not _PATH.fullmatch(folder):
            raise UserError(
                f"folder '{one_line(folder)}' cannot be mounted into a container: "
                "begin with '/' and use letters, digits and . _ + @ = - only."
            )
