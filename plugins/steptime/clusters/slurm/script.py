"""The values that `job.sh.j2` needs: #SBATCH options, srun's options, and the command of a rank.

Slurm itself parses the #SBATCH lines, so every option must have a strict form. Name, log, folder and time
limit of a job are passed on sbatch's command line instead. Each rank binds itself to its cores inside its
container, as the launchers of NVIDIA's recipes do.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from steptime.clusters.base import StagedFiles
from steptime.clusters.containers import LaunchCommand
from steptime.clusters.rank_program import RankProgram
from steptime.clusters.slurm.job_records import end_record_path
from steptime.clusters.slurm.node_check import REFUSED, NodeCheck, check_command
from steptime.clusters.slurm.options import SlurmOptions, check_form
from steptime.clusters.slurm.site import NumaBinding, Site
from steptime.errors import UserError
from steptime.recipes.gpus import load_gpu_type
from steptime.recipes.models import Recipe, Run

PROFILE_FOLDER = "nsys_profile"
"""Folder of profiles below the job's folder, as in the recipe documents."""

_METRICS_ON_FIRST = 'if [ "$SLURM_LOCALID" = 0 ]; then set -- {option}=all "$@"; fi; '
"""Shell text that adds an option on a node's first rank: only one process can sample its GPUs' counters."""
_WHERE_INSTALLED = (
    'if command -v nsys >/dev/null; then export STEPTIME_NSIGHT=1; {metrics}exec nsys profile "$@"; fi; '
    'while [[ $1 == --* ]]; do shift; done; exec "$@"'
)
"""Shell text that runs a command under Nsight Systems; its options and the command are passed as arguments,
never as text. If the image has no nsys, only the command runs, and without STEPTIME_NSIGHT the trainer uses
torch's profiler."""
_REPORT = "profile_%q{SLURM_JOB_ID}_%q{SLURM_NODEID}_%q{SLURM_PROCID}"
"""Name of a rank's report if the publication names none."""


class Binding(NamedTuple):
    """How the ranks of a run are bound to NUMA nodes and cores."""

    ranks_per_numa_node: int
    priority_cores: bool = False
    """Whether a rank is also bound to two cores of its own, as upstream does on B300."""


_NODE = 'node=$((SLURM_LOCALID / $1)); shift; bind=("--cpunodebind=$node" "--membind=$node"); '
_PRIORITY_CORES = 'bind+=("--physcpubind=$((SLURM_LOCALID * 16)),$((SLURM_LOCALID * 16 + 1))"); '
_RUN = (
    # Tried first: a rank that cannot be bound still trains, and logs why it is not bound.
    'if said=$(numactl "${bind[@]}" true 2>&1); then '
    'STEPTIME_NUMA_NODE=$node exec numactl "${bind[@]}" "$@"; fi; '
    'read -r why <<<"$said"; '
    'echo "steptime: rank $SLURM_PROCID is not bound to NUMA node $node: $why" >&2; exec "$@"'
)
"""Shell text that binds a rank and runs its command. The arguments are the ranks per NUMA node, then the
command, which is never part of the text. By STEPTIME_NUMA_NODE the trainer counts the bound ranks."""

_OF_PYTHON = ("PYTHONHOME", "PYTHONPATH")
_OF_LOADER = ("LD_LIBRARY_PATH", "LD_PRELOAD")
"""Variables that are unset before ranks start in an image: they name files of the login node, which the
container lacks. They stay set for a Python outside of an image, which may need the libraries."""
_PAID_BY = ("account", "qos", "wckey")
"""Options that a staging job also has, so that its usage is charged to the account of the run."""
_PLACED_BY = ("partition", "reservation", "constraint")
"""Options that a staging job also has, unless the cluster's file has a partition for such jobs."""
_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")
"""Variables that the script sets and that containers must keep: under pyxis, those of enroot's hook win."""


def script_values(
    run: Run,
    staged: StagedFiles,
    site: Site,
    *,
    program: RankProgram,
    directory: PurePosixPath,
    environment: Iterable[str],
) -> dict[str, Any]:
    """Return the Slurm values for `job.sh.j2`. Raises UserError for a run that Slurm cannot start."""
    python = "python" if staged.python is None else staged.python
    start = partial(_started, run, staged, site, directory=directory, environment=environment)
    command = profiled(run, (python, *program.arguments))
    started = start(bound(command, rank_binding(run, site.numa_binding)))
    return {
        "sbatch_options": sbatch_options(run, site),
        "end_record": end_record_path(str(directory)),
        "folders": (PROFILE_FOLDER,) if wants_nsight(run) else (),
        "not_handed_on": _OF_PYTHON if staged.python else (*_OF_PYTHON, *_OF_LOADER),
        "vboost": run.performance.vboost and site.vboost,
        "check": None if site.node_check is None else _node_check_values(site.node_check, run, python, start),
        "srun_options": ("--export=ALL", "--kill-on-bad-exit=1", "--wait=60", *started.srun_options),
        "command": started.command,
    }


def _node_check_values(
    demands: NodeCheck, run: Run, python: str, start: Callable[[Sequence[str]], LaunchCommand]
) -> dict[str, Any]:
    """Return the values for the template's node check. The ranks get 60 s to end after the first one has."""
    started = start(check_command(demands, run.recipe.gpu_type, python))
    return {
        "time_limit_s": demands.time_limit_s,
        "refused": REFUSED,
        "arguments": ("--export=ALL", "--wait=60", *started.srun_options, *started.command),
    }


def sbatch_options(run: Run, site: Site) -> tuple[str, ...]:
    """Return the `#SBATCH` options that a run's size, the cluster's file and the run's own options give.

    Later ones override earlier ones. Raises UserError if the GPUs do not fill whole nodes, the nodes do not
    fill whole segments (`--segment`), or an option is malformed.
    """
    run_options = SlurmOptions.of(run.cluster_options)
    per_node = _ranks_per_node(run.recipe, run_options.gpus_per_node or site.gpus_per_node, site)
    nodes = run.recipe.gpus // per_node
    options = [f"--nodes={nodes}", f"--ntasks={run.recipe.gpus}", f"--ntasks-per-node={per_node}"]
    gpu_option = _gpu_option(site, run_options)
    if gpu_option == "gres":
        options.append(f"--gres=gpu:{per_node}")
    elif gpu_option != "none":
        options.append(f"--{gpu_option}={per_node if gpu_option == 'gpus-per-node' else run.recipe.gpus}")
    if site.exclusive:
        options += ["--exclusive", "--mem=0"]  # all of the nodes' memory
    if site.partition is not None:
        options.append(f"--partition={site.partition}")
    if site.account is not None:
        options.append(f"--account={site.account}")
    if run_options.segment is not None and nodes % run_options.segment:
        raise UserError(
            f"segment {run_options.segment} does not divide the {nodes} nodes of {run.label}: choose one "
            "that does."
        )
    domain = load_gpu_type(run.recipe.gpu_type).nvlink_domain_gpus
    if domain is not None:
        options.append(f"--segment={_largest_segment(nodes, domain // per_node)}")
    return tuple(_checked(list(_by_name((*options, *site.extra_options, *run_options.as_given)).values())))


def _gpu_option(site: Site, run_options: SlurmOptions) -> str:
    """Return the name of the option that requests GPUs, such as `gres`; `none` if GPUs are not requested.

    It is the site's, unless the run turns the request on or off.
    """
    if run_options.gres is None:
        return site.gpu_option
    if not run_options.gres:
        return "none"
    return "gres" if site.gpu_option == "none" else site.gpu_option


def _ranks_per_node(recipe: Recipe, wanted: int | None, site: Site) -> int:
    """Return how many ranks (GPUs) of the recipe each node gets. Raises UserError for an uneven number."""
    available = wanted or recipe.gpus_per_node
    if recipe.gpus <= available:
        return recipe.gpus
    if recipe.gpus % available:
        raise UserError(
            f"{recipe.gpus} GPUs cannot be spread over nodes of {available} on cluster '{site.name}': "
            f"choose a multiple of {available}."
        )
    return available


def staging_job_options(run: Run, site: Site) -> tuple[str, ...]:
    """Return the #SBATCH options of the job that stages a run's image: one node, one task, no GPUs.

    Raises UserError if an option of the run or of the cluster's file is malformed or refused.
    """
    run_options = SlurmOptions.of(run.cluster_options)
    ours = {"--partition": site.partition, "--account": site.account}
    given = [f"{name}={value}" for name, value in ours.items() if value is not None]
    by_name = _by_name((*given, *site.extra_options, *run_options.as_given))
    wanted = _PAID_BY if site.import_partition else (*_PLACED_BY, *_PAID_BY)
    options = ["--nodes=1", "--ntasks=1"]
    if site.import_partition is not None:
        options.append(f"--partition={site.import_partition}")
    options += [by_name[f"--{name}"] for name in wanted if f"--{name}" in by_name]
    return tuple(_checked(options))


def _by_name(options: Iterable[str]) -> dict[str, str]:
    """Index options by name; the last of a repeated option counts."""
    return {option.partition("=")[0]: option for option in options}


def _largest_segment(nodes: int, domain_nodes: int) -> int:
    """Return the largest number of nodes that divides a job's nodes and fits in one NVLink domain."""
    return max(size for size in range(1, domain_nodes + 1) if nodes % size == 0)


def _checked(options: Sequence[str]) -> Sequence[str]:
    for option in options:
        check_form(option)
    return options


def _started(
    run: Run,
    staged: StagedFiles,
    site: Site,
    command: Sequence[str],
    *,
    directory: PurePosixPath,
    environment: Iterable[str],
) -> LaunchCommand:
    """Return how srun starts a rank's command: in the staged environment, or in the image."""
    if staged.python is not None:
        # torch needs no MPI, and Slurm's default plugin for it may look for libraries that are not there.
        return LaunchCommand(srun_options=("--mpi=none",), command=tuple(command))
    variables = (*environment, *_MEETING_PLACE)
    started = site.in_image(command, run, staged, directory=directory, environment=variables)
    return LaunchCommand(
        srun_options=(f"--mpi={site.mpi_of_images}", *started.srun_options), command=started.command
    )


def rank_binding(run: Run, numa_binding: NumaBinding) -> Binding | None:
    """Return how the ranks of a run are bound to NUMA nodes; None if they are not."""
    if isinstance(numa_binding, int):
        return Binding(numa_binding)
    published = run.performance.ranks_per_numa_node
    if numa_binding == "none" or published is None:
        return None
    return Binding(published, run.performance.priority_cores)


def bound(command: Sequence[str], binding: Binding | None) -> tuple[str, ...]:
    """Return the command that binds its rank and then runs `command`; unchanged if `binding` is None."""
    if binding is None:
        return tuple(command)
    text = f"{_NODE}{_PRIORITY_CORES if binding.priority_cores else ''}{_RUN}"
    return ("bash", "-c", text, "numactl", str(binding.ranks_per_numa_node), *command)


def wants_nsight(run: Run) -> bool:
    """Return whether to start the ranks under Nsight Systems, where installed: for profile runs on GPUs."""
    return run.profile is not None and run.recipe.gpu_type != "cpu"


def profiled(run: Run, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command wrapped in Nsight Systems if this is a profile run on GPUs, else unchanged.

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
