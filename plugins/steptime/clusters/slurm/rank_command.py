"""What stands before a rank's command: Nsight Systems, and its binding to NUMA nodes and cores.

Both are as in the launchers of the recipe documents. Each rank binds itself inside its container.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import PositiveInt

from steptime.recipes.models import Run

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
_REPORT = "profile_%q{SLURM_JOB_ID}_%q{SLURM_NODEID}_%q{SLURM_PROCID}"
"""Name of a rank's report if the document gives none."""

NumaBinding = Literal["auto", "none"] | PositiveInt
"""`auto`: as published; `none`: never; a number: how many neighbouring local ranks share a NUMA node here."""


class Binding(NamedTuple):
    """What the ranks of a run are bound to."""

    ranks_per_numa_node: int
    priority_cores: bool = False
    """Also to two cores of the rank's own, as upstream does on B300: 16 and 17 for local rank 1."""


_NODE = 'node=$((SLURM_LOCALID / $1)); shift; bind=("--cpunodebind=$node" "--membind=$node"); '
_PRIORITY_CORES = 'bind+=("--physcpubind=$((SLURM_LOCALID * 16)),$((SLURM_LOCALID * 16 + 1))"); '
_RUN = (
    # Tried first: a rank that cannot be bound still trains, and logs why it is not bound.
    'if said=$(numactl "${bind[@]}" true 2>&1); then '
    'STEPTIME_NUMA_NODE=$node exec numactl "${bind[@]}" "$@"; fi; '
    'read -r why <<<"$said"; '
    'echo "steptime: rank $SLURM_PROCID is not bound to NUMA node $node: $why" >&2; exec "$@"'
)
"""The command is passed as arguments, never as text: ranks per NUMA node, then what to run. The trainer
counts the bound ranks by the variable."""


def binding_of(run: Run, numa_binding: NumaBinding) -> Binding | None:
    """Return what a run's ranks are bound to on a cluster, or None. A site's own number binds no cores."""
    if isinstance(numa_binding, int):
        return Binding(numa_binding)
    published = run.performance.ranks_per_numa_node
    if numa_binding == "none" or published is None:
        return None
    return Binding(published, run.performance.priority_cores)


def bound(command: Sequence[str], binding: Binding | None) -> tuple[str, ...]:
    """Return the command with its rank bound; unchanged if `binding` is None."""
    if binding is None:
        return tuple(command)
    text = f"{_NODE}{_PRIORITY_CORES if binding.priority_cores else ''}{_RUN}"
    return ("bash", "-c", text, "numactl", str(binding.ranks_per_numa_node), *command)


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
        f"--output={PROFILE_FOLDER}/{nsight.report or _REPORT}",
        "--force-overwrite=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        *nsight.options,
    )
    metrics = _METRICS_ON_FIRST.format(option=nsight.gpu_metrics_option) if run.profile.gpu_metrics else ""
    start = _WHERE_INSTALLED.format(metrics=metrics)
    return ("bash", "-c", start, "nsys", *options, *command)
