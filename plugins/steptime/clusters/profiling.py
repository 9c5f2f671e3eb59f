"""What a job script adds for the two modes that look into a run: Nsight Systems, and the traces of NCCL."""

from collections.abc import Sequence

from steptime.recipes.models import Mode, Run

PROFILE_FOLDER = "nsys_profile"
"""Below the job's folder, as in the recipe documents."""

_METRICS_ON_FIRST = 'if [ "$SLURM_LOCALID" = 0 ]; then set -- {option}=all "$@"; fi; '
"""Only one process of a node can sample its GPUs' counters."""
_WHERE_INSTALLED = (
    'if command -v nsys >/dev/null; then export STEPTIME_NSIGHT=1; {metrics}exec nsys profile "$@"; fi; '
    'while [[ $1 == --* ]]; do shift; done; exec "$@"'
)
"""The options of Nsight Systems and the command are passed as arguments, never as text. If the image has no
nsys, only the command runs, and without the variable the trainer uses torch's profiler."""

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
    """Wrap the command in Nsight Systems if this is a profile run on GPUs.

    Every rank is started under it. The ranks to be profiled start the capture at the first step
    (cudaProfilerStart), and only they write a report.
    """
    if run.profile is None or not wants_nsight(run):
        return tuple(command)
    nsight = run.profile.nsight
    options = (
        "--sample=none",
        f"--trace={','.join(nsight.trace)}",
        f"--output={PROFILE_FOLDER}/{nsight.report}",
        "--force-overwrite=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        *nsight.options,
    )
    metrics = _METRICS_ON_FIRST.format(option=nsight.gpu_metrics_option) if run.profile.gpu_metrics else ""
    start = _WHERE_INSTALLED.format(metrics=metrics)
    return ("bash", "-c", start, "nsys", *options, *command)


def trace_environment(run: Run) -> dict[str, str]:
    """Return the variables of a run that logs its collective calls; none for any other run."""
    return dict(_TRACES[run.recipe.gpu_type == "cpu"]) if run.mode is Mode.NCCL_TRACE else {}
