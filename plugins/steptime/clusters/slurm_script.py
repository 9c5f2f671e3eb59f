"""What `templates/slurm.sh.j2` needs: the job's #SBATCH options, srun's options, and the command of a rank.

Slurm itself reads the #SBATCH lines, so every option there is of one strict form. What makes up a job's
identity (its name, log, folder and time limit) is not here: the backend passes it on the command line.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol

from steptime.clusters.base import Staged
from steptime.clusters.containers import Started, in_container
from steptime.errors import UserError, shown
from steptime.recipes.models import Recipe, Run

_OPTION = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9._,:;@/+*%&|()\[\]{}~^!-]+)?", re.ASCII)
_BLOCK_NODES = 18
"""Nodes of 4 GPUs in one NVLink domain (GB200 and GB300 racks): beyond it, Slurm is asked for segments."""
_NVLINK_GPUS_PER_NODE = 4


class SlurmSite(Protocol):
    """What a Slurm cluster's file says about its jobs."""

    name: str
    container: str
    container_mounts: tuple[str, ...]
    import_partition: str | None
    partition: str | None
    account: str | None
    gpus_per_node: int | None
    """None for the recipe's."""
    gres: bool
    """Whether `--gres=gpu:N` is asked for."""
    exclusive: bool
    extra_options: tuple[str, ...]
    """The site's own options of sbatch."""

    @property
    def root(self) -> str:
        """The folder of everything that is staged, and of all jobs."""
        ...


def script_values(
    run: Run, staged: Staged, site: SlurmSite, *, directory: PurePosixPath, variables: Iterable[str]
) -> dict[str, Any]:
    """The template's values beside folder and environment. Raises UserError for what cannot be asked for."""
    started = _started(staged, site, directory=directory, variables=variables)
    return {
        "sbatch_options": _sbatch_options(run, site),
        "srun_options": ("--kill-on-bad-exit=1", "--wait=60", *started.srun_options),
        "command": started.command,
    }


def ranks_per_node(recipe: Recipe, site: SlurmSite) -> int:
    """How many ranks (GPUs) of the recipe each node gets. Raises UserError where they cannot be spread."""
    available = site.gpus_per_node or recipe.gpus_per_node
    if recipe.gpus <= available:
        return recipe.gpus
    if recipe.gpus % available:
        raise UserError(
            f"{recipe.gpus} GPUs cannot be spread over nodes of {available} on cluster '{site.name}': "
            f"choose a multiple of {available}."
        )
    return available


def _sbatch_options(run: Run, site: SlurmSite) -> tuple[str, ...]:
    per_node = ranks_per_node(run.recipe, site)
    nodes = run.recipe.gpus // per_node
    options = [f"--nodes={nodes}", f"--ntasks={run.recipe.gpus}", f"--ntasks-per-node={per_node}"]
    if site.gres:
        options.append(f"--gres=gpu:{per_node}")
    if site.exclusive:
        options += ["--exclusive", "--mem=0"]  # all of the nodes' memory
    if site.partition is not None:
        options.append(f"--partition={site.partition}")
    if site.account is not None:
        options.append(f"--account={site.account}")
    if run.recipe.gpus_per_node == _NVLINK_GPUS_PER_NODE and run.recipe.image and nodes > _BLOCK_NODES:
        options.append(f"--segment={_largest_segment(nodes)}")
    return tuple(_checked([*options, *site.extra_options]))


def step_options(site: SlurmSite) -> tuple[str, ...]:
    """The #SBATCH options of a job that stages: one task, without GPUs. Raises UserError."""
    options = ["--nodes=1", "--ntasks=1"]
    partition = site.import_partition or site.partition
    if partition is not None:
        options.append(f"--partition={partition}")
    if site.account is not None:
        options.append(f"--account={site.account}")
    return tuple(_checked(options))


def _largest_segment(nodes: int) -> int:
    return max(size for size in range(1, _BLOCK_NODES + 1) if nodes % size == 0)


def _checked(options: Sequence[str]) -> Sequence[str]:
    for option in options:
        if not _OPTION.fullmatch(option):
            raise UserError(
                f"Slurm option '{shown(option)}' cannot be given: write --option or --option=value, "
                "without blanks, quotes or line ends."
            )
    return options


def _started(
    staged: Staged, site: SlurmSite, *, directory: PurePosixPath, variables: Iterable[str]
) -> Started:
    """How srun starts a rank: in the staged environment, or in the image."""
    trainer = ("-m", "trainer", "run.json")
    if staged.python is not None:
        # torch needs no MPI, and Slurm's default plugin for it may look for libraries that are not there.
        return Started(srun_options=("--mpi=none",), command=(staged.python, *trainer))
    if staged.image_path is None:
        raise UserError(
            f"nothing is staged on cluster {site.name} to run the trainer with: neither is an image."
        )
    started = in_container(
        site.container,
        ("python", *trainer),
        image=staged.image_path,
        # All of the jobs' folders: a checkpoint that is loaded lies in that of the job which saved it.
        folders=(site.root, *site.container_mounts),
        directory=str(directory),
        variables=variables,
        image_environment=staged.image_environment,
    )
    # As the documents: NeMo's tensor-parallel overlap starts through MPI. Images for bwrap have none.
    mpi = "none" if site.container == "bwrap" else "pmix"
    return Started(srun_options=(f"--mpi={mpi}", *started.srun_options), command=started.command)
