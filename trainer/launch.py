"""How this process was started: which rank it is of how many, and how many cores are its own."""

import os
from dataclasses import dataclass

from trainer.errors import TrainerError
from trainer.run import PlannedRun


@dataclass(frozen=True)
class Launch:
    """This process among the ranks of the job."""

    rank: int
    world_size: int
    local_world_size: int
    """Ranks on this node."""
    threads: int
    """CPU threads of this rank: the cores it may use, shared among the node's ranks, at least one."""
    elastic: bool
    """Whether torchrun started it."""

    @property
    def nodes(self) -> int:
        """The number of nodes; every node has equally many ranks."""
        return self.world_size // self.local_world_size


def read_launch() -> Launch:
    """Read what torchrun set in the environment; without torchrun this is the only rank."""
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Launch(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        local_world_size=local_world_size,
        threads=max(1, len(os.sched_getaffinity(0)) // local_world_size),
        elastic="TORCHELASTIC_RUN_ID" in os.environ,
    )


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
            f"data {planned.data}): start torchrun with --nproc-per-node × --nnodes = {planned.world_size}."
        )
