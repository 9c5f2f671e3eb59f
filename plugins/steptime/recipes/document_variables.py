"""The variables of NVIDIA's scripts, and what does the same here; the table is nvidia-scripts.md."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from steptime.errors import UserError
from steptime.recipes.models import Recipe

_BY_OPTION = {
    "ADDITIONAL_SLURM_PARAMS": "`additional_slurm_params`",
    "CLUSTER_TYPE": "`cluster`: the cluster's file says its kind",
    "DTYPE": "`dtype`",
    "ENABLE_CHECKPOINT": "`save_checkpoint`, or `checkpoint` to load it as well",
    "ENABLE_GPU_METRICS": "`gpu_metrics` with `profile`",
    "ENABLE_NCCLTRACE": "`nccl_trace`",
    "ENABLE_PROFILE": "`profile`",
    "GPUS_PER_NODE": "`gpus_per_node`",
    "GPU_TYPE": "`gpu_type`",
    "JOB_TOTAL_GPUS": "`gpus`",
    "LOAD_CHECKPOINT_PATH": "`load_checkpoint`",
    "MODEL_SIZE": "`size`",
    "NUM_NODES": "`gpus`: the nodes follow from it",
    "N_GPUS": "`gpus`",
    "PROFILE_START_STEP": "`profile_start` with `profile`",
    "PROFILE_STOP_STEP": "`profile_stop` with `profile`",
    "SBATCH_ACCOUNT": "`account`, or account in the cluster's file",
    "SBATCH_GPUS_PER_NODE": "`gpus_per_node`, or gpus_per_node in the cluster's file",
    "SBATCH_PARTITION": "`partition`, or partition in the cluster's file",
    "SLURM_ACCOUNT": "`account`, or account in the cluster's file",
    "SLURM_GPUS_PER_NODE": "`gpus_per_node`, or gpus_per_node in the cluster's file",
    "SLURM_PARTITION": "`partition`, or partition in the cluster's file",
    "STRONG_SCALING": "`scaling` strong",
    "TP_COMM_OVERLAP": "`tp_comm_overlap`",
}
"""What to use instead of each variable that an option replaces."""
_BY_CLUSTER = {
    "APP_ID": "the connection of the cluster",
    "APP_SECRET": "the connection of the cluster",
    "BASE_URL": "the connection of the cluster",
    "LLMB_INSTALL": "work_dir in the cluster's file",
    "LLMB_WORKLOAD": "work_dir in the cluster's file",
    "PROJECT_NAME": "project in the cluster's file, or the cluster's connection",
    "PVC_DIR": "work_dir in the cluster's file",
    "RUN_CONF_MOUNTS": "pvcs in the cluster's file",
    "STAGE_PATH": "work_dir in the cluster's file",
}
"""What to use instead of each variable that a cluster's file or connection replaces."""

INSTEAD: Mapping[str, str] = MappingProxyType(_BY_OPTION | _BY_CLUSTER)
"""What to use instead of each variable that sets up runs of NVIDIA's scripts and has no effect here."""


def check_document_variables(names: Iterable[str], recipes: Sequence[Recipe]) -> None:
    """Raise UserError for the first variable that only NVIDIA's scripts read.

    A program of the user's own may read such a variable: then nothing is refused.
    """
    if any(recipe.launcher is not None for recipe in recipes):
        return
    for name in names:
        if name in INSTEAD:
            raise UserError(
                f"environment: '{name}' is a variable of NVIDIA's scripts and has no effect here: use "
                f"{INSTEAD[name]}."
            )
