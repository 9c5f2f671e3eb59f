"""How this process was started: which rank it is of how many, by torchrun, by Slurm's srun, or alone."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.errors import TrainerError
from trainer.slurm import ranks_of_srun
from trainer.spec import PlannedRun


@dataclass(frozen=True)
class Launch:
    """This process among the ranks of the job."""

    rank: int
    world_size: int
    local_world_size: int
    """Ranks on this node."""
    threads: int
    """CPU threads of this rank: OMP_NUM_THREADS, which the job sets; one if it does not."""
    by_launcher: bool
    """Whether torchrun or srun started it among others."""
    on_one_host: bool
    """Whether all ranks are on this host, whatever it calls its nodes."""
    has_mpi: bool = False
    """Whether MPI can start: srun does that with `--mpi=pmix`, and torchrun never."""

    @property
    def nodes(self) -> int:
        """The number of nodes; every node has equally many ranks."""
        return self.world_size // self.local_world_size


def read_launch() -> Launch:
    """Read what torchrun or srun set in the environment; without them this is the only rank.

    srun's variables get torchrun's names, for Lightning and torch to find.

    Raises:
        TrainerError: the ranks cannot be made out.
    """
    of_srun = ranks_of_srun(os.environ)
    os.environ.update(of_srun)
    environment = os.environ
    world_size = _number(environment, "WORLD_SIZE", 1)
    local_world_size = _number(environment, "LOCAL_WORLD_SIZE", 1)
    return Launch(
        rank=_number(environment, "RANK", 0),
        world_size=world_size,
        local_world_size=local_world_size,
        threads=max(1, _number(environment, "OMP_NUM_THREADS", 1)),
        by_launcher="RANK" in environment,
        on_one_host=world_size == local_world_size or _is_loopback(environment.get("MASTER_ADDR", "")),
        has_mpi=bool(of_srun) and "PMIX_RANK" in environment,
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environment.get(name, default))
    except ValueError:
        raise TrainerError(f"{name}={environment[name]!r} in the environment is no number.") from None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def check_world_size(run: PlannedRun, launch: Launch) -> None:
    """Refuse a launch with another number of ranks than planned.

    Raises:
        TrainerError: with both numbers.
    """
    planned = run.recipe.parallelism
    if planned.world_size != launch.world_size:
        raise TrainerError(
            f"{launch.world_size} rank(s) were started, but the plan needs {planned.world_size} "
            f"(tensor {planned.tensor} × pipeline {planned.pipeline} × context {planned.context} × "
            f"data {planned.data}): start so many with torchrun (--nproc-per-node × --nnodes) or srun "
            "(--ntasks)."
        )
