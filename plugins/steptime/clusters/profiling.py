"""What a job script adds for the two modes that look into a run: Nsight Systems, and the traces of NCCL."""

from collections.abc import Sequence

from steptime.recipes.models import Mode, Run

PROFILE_FOLDER = "nsys_profile"
"""Below the job's folder, as in the recipe documents."""

_REPORT = f"{PROFILE_FOLDER}/profile_%q{{SLURM_JOB_ID}}_%q{{SLURM_NODEID}}_%q{{SLURM_PROCID}}"
"""Nsight Systems replaces `%q{NAME}` by a variable of the environment."""

_METRICS_ON_FIRST = 'if [ "$SLURM_LOCALID" = 0 ]; then set -- --gpu-metrics-devices=all "$@"; fi; '
"""Only one process of a node can sample its GPUs' counters."""
_WHERE_INSTALLED = (
    'if command -v nsys >/dev/null; then export STEPTIME_NSIGHT=1; {metrics}exec nsys profile "$@"; fi; '
    'while [[ $1 == --* ]]; do shift; done; exec "$@"'
)
"""What is run comes as arguments, never as text: Nsight Systems' options, then the command, which is left
alone if an image does not have it. Without the variable the trainer takes torch's profiler."""

_TRACES = {
    # Every collective and point-to-point call, with its sizes.
    False: {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,NET"},
    # Every collective call of torch's over gloo, with its shapes.
    True: {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
}


def wants_nsight(run: Run) -> bool:
    """Return whether Nsight Systems starts the ranks, if installed: for profile runs on GPUs."""
    return run.profile is not None and run.recipe.gpu_type != "cpu"


def profiled(run: Run, command: Sequence[str]) -> tuple[str, ...]:
    """Wrap the command in Nsight Systems if it is a profile run on GPUs and that is installed.

    Every rank is started so. Those to be profiled start it at the first step (cudaProfilerStart), and only
    they leave a report.
    """
    if run.profile is None or not wants_nsight(run):
        return tuple(command)
    options = (
        "--sample=none",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        f"--output={_REPORT}",
    )
    start = _WHERE_INSTALLED.format(metrics=_METRICS_ON_FIRST if run.profile.gpu_metrics else "")
    return ("bash", "-c", start, "nsys", *options, *command)


def trace_environment(run: Run) -> dict[str, str]:
    """Return the variables of a run that logs its collective calls; none for any other run."""
    return dict(_TRACES[run.recipe.gpu_type == "cpu"]) if run.mode is Mode.NCCL_TRACE else {}
