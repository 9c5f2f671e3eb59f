"""How this process was launched: its rank and the number of ranks, under torchrun, Slurm's srun, or alone."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.errors import TrainerError
from trainer.spec import PlannedRun

FIRST_PORT = 20_000
"""Lowest MASTER_PORT that is chosen here; all are below the ports that Linux assigns (32768 and up)."""
PORTS = 12_000


@dataclass(frozen=True)
class Launch:
    """This process's rank, and the number of ranks and nodes."""

    rank: int
    world_size: int
    local_world_size: int
    """Number of ranks on this node."""
    threads: int
    """CPU threads of this rank: OMP_NUM_THREADS of the job, else one."""
    by_launcher: bool
    """Whether torchrun or srun started this rank among others."""
    on_one_host: bool
    """Whether all ranks are on this host, whatever it calls its nodes."""
    has_mpi: bool = False
    """Whether MPI can start: it can under `srun --mpi=pmix`, and never under torchrun."""

    @property
    def nodes(self) -> int:
        """The number of nodes; each has the same number of ranks."""
        return self.world_size // self.local_world_size


def read_launch() -> Launch:
    """Read this process's rank from the variables of torchrun or srun; without them it is the only rank.

    Under srun it also sets torchrun's variables in this process, for Lightning and torch.

    Raises:
        TrainerError: a variable is not a number, or srun gave its nodes different numbers of tasks.
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
        raise TrainerError(f"{name}={environment[name]!r} in the environment is not a number.") from None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def check_world_size(run: PlannedRun, launch: Launch) -> None:
    """Raise TrainerError if the number of launched ranks differs from the plan."""
    planned = run.recipe.parallelism
    if planned.world_size != launch.world_size:
        raise TrainerError(
            f"{launch.world_size} rank(s) were started, but the plan needs {planned.world_size} "
            f"(tensor {planned.tensor} × pipeline {planned.pipeline} × context {planned.context} × "
            f"data {planned.data}): start that many with torchrun (--nproc-per-node × --nnodes) or srun "
            "(--ntasks)."
        )


def ranks_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """Translate srun's environment variables into torchrun's; return an empty dict outside of srun.

    srun is recognized by SLURM_STEP_ID, because batch scripts have SLURM_PROCID, too. torchrun is recognized
    by LOCAL_WORLD_SIZE, because in images of PyTorch pyxis sets RANK and LOCAL_RANK (`pytorch_setup` of
    0.24.0), and a hook of enroot sets WORLD_SIZE (`50-slurm-pytorch.sh` of 4.1.2). `MASTER_ADDR` and
    `MASTER_PORT` are kept if the job script set them; otherwise the ranks meet on the node that called srun.

    Raises:
        TrainerError: srun gave its nodes different numbers of tasks.
    """
    if "SLURM_STEP_ID" not in environment or "LOCAL_WORLD_SIZE" in environment:
        return {}
    job_id = int(environment.get("SLURM_JOB_ID", "0"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "GROUP_RANK": environment["SLURM_NODEID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_WORLD_SIZE": _tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"]),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or environment["SLURM_LAUNCH_NODE_IPADDR"],
        "MASTER_PORT": environment.get("MASTER_PORT") or str(FIRST_PORT + job_id % PORTS),
    }


def _tasks_per_node(text: str) -> str:
    """Parse Slurm's task counts: `8(x2)` is 8 on each of two nodes; raise TrainerError for unequal ones."""
    same = re.fullmatch(r"(\d+)(?:\(x\d+\))?", text)
    if same is None:
        raise TrainerError(
            f"srun started different numbers of tasks on its nodes ({text}): give every node the same with "
            "--ntasks-per-node."
        )
    return same[1]
