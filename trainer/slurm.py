"""Ranks as Slurm's srun numbers them, in the variables that torchrun would set."""

import re
from collections.abc import Mapping

from trainer.errors import TrainerError

FIRST_PORT = 20_000
"""Below the ports that Linux hands out by itself (32768 and up)."""
PORTS = 12_000


def ranks_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would set, from what srun sets for its tasks; empty outside of srun.

    Slurm sets SLURM_PROCID in a batch script, too: only a step has SLURM_STEP_ID. Only torchrun sets
    LOCAL_WORLD_SIZE: in an image of PyTorch, pyxis sets RANK and LOCAL_RANK (`pytorch_setup` of 0.24.0), and
    a hook of enroot WORLD_SIZE (`50-slurm-pytorch.sh` of 4.1.2). `MASTER_ADDR` and `MASTER_PORT` of the job
    script stand; without them the ranks meet on the node that srun was called on.

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
    """`8(x2)` is 8 on each of two nodes; `8(x2),4` is not the same everywhere."""
    same = re.fullmatch(r"(\d+)(?:\(x\d+\))?", text)
    if same is None:
        raise TrainerError(
            f"srun started {text} tasks on its nodes, and every node needs equally many: "
            "ask for --ntasks-per-node."
        )
    return same[1]
