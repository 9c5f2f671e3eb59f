"""Make a job from a planned run: unique name, folder named as in NVIDIA's recipes, script and files.

Every value is quoted for the shell when it is inserted into a script's template, so that a user's values are
data and never shell text; the template's author need not think of it. The only exception are the lines of
`setup` in a cluster's file, which have the type `Bash`.
"""

import hashlib
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import jinja2

from steptime.clusters.base import Cluster, Installation, Job, JobSpec, StagedFiles
from steptime.clusters.config import ClusterConfig
from steptime.clusters.containers import TRAINER_VARIABLE, ImageForm
from steptime.clusters.hub import hub_cache, hub_environment
from steptime.clusters.rank_program import rank_program
from steptime.errors import SystemFailure, UserError
from steptime.plug_points import CLUSTER_KINDS
from steptime.recipes.bridge_launch import CHECKPOINTS
from steptime.recipes.environment import check_environment
from steptime.recipes.models import RUN_FILE, Mode, Run
from steptime.recipes.workload_file import EXPERIMENT_NAME

_TRACKER = "latest_train_state.pt"
"""File that Megatron-Bridge writes beside the folders of saved iterations when a save has ended."""
_TRACES = {
    # Every collective and point-to-point call, with its sizes.
    False: {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,NET"},
    # Every collective call of torch's over gloo, with its shapes.
    True: {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
}
_NETWORK_LINES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
"""Variables with which NCCL prints at its start which network it uses, and nothing during the steps."""


class Bash(str):
    """Text that a script contains unquoted: lines of a cluster's file, never values of a run."""

    __slots__ = ()


def _template_of_kind(name: str) -> str | None:
    """Return the text of `<kind>/job.sh.j2` from the package of a cluster kind; None for an unknown kind."""
    kind, _, file = name.rpartition("/")
    module = CLUSTER_KINDS.load(kind) if kind in CLUSTER_KINDS.names() else None
    return None if module is None else Path(module.__file__).with_name(file).read_text(encoding="utf-8")


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("steptime.clusters", package_path="."),
                jinja2.FunctionLoader(_template_of_kind),
            ]
        ),
        autoescape=False,  # noqa: S701 (this is bash, where `finalize` is what escapes)
        finalize=lambda value: value if isinstance(value, Bash) else shlex.quote(str(value)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def job_spec(
    run: Run,
    staged: StagedFiles,
    config: ClusterConfig,
    *,
    identity: str,
    started: int,
    attempt: int = 1,
    installation: Installation | None = None,
) -> JobSpec:
    """Make the job of a planned run.

    Args:
        run: what to train.
        staged: the files staged for it on the cluster.
        config: the cluster.
        identity: `dag_id/run_id/cell`, where the cell is the run's name within the DAG run. Together with
            `installation` and `attempt` it determines the job's name, so a repeated submission finds the
            same job.
        started: Unix time in whole seconds, part of the name of the job's folder.
        attempt: number of the job among all jobs of the run, from 1.
        installation: the Airflow that owns the job; None outside of Airflow.

    Raises:
        UserError: the name of the experiment or of an environment variable is invalid, or the cluster cannot
            run or does not permit the run.
    """
    config.check_permitted(run)
    if not EXPERIMENT_NAME.fullmatch(run.experiment):
        raise UserError(
            f"experiment name {run.experiment!r} cannot be used: write letters, digits, '.', '_' and '-', "
            "begin with a letter or digit, at most 150 in all"
        )
    whole = identity if installation is None else f"{installation.id}/{identity}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:10]
    folder = f"{run.experiment}_{started}-{digest}" + (f"-{attempt}" if attempt > 1 else "")
    directory = PurePosixPath(config.root, "experiments", run.experiment, folder, run.experiment)
    program = rank_program(run, config.root)
    inline = {path: str(directory / PurePosixPath(path).name) for path in program.files}
    environment = {
        name: inline.get(value, value) for name, value in job_environment(run, staged, config).items()
    }
    script = (
        _templates()
        .get_template(f"{config.kind}/job.sh.j2")
        .render(
            setup=tuple(Bash(line) for line in config.setup),
            directory=directory,
            environment=environment,
            python=staged.python or "python",
            program=program.arguments,
            ranks=run.recipe.gpus,
            **config.script_values(
                run, staged, program=program, directory=directory, environment=environment
            ),
        )
    )
    return JobSpec(
        name=f"{run.experiment}-{digest}-{attempt}",
        script=script,
        directory=str(directory),
        log_path=str(directory / f"log-{run.experiment}.out"),
        files={
            RUN_FILE: run.model_dump_json(indent=2),
            **{PurePosixPath(path).name: text for path, text in program.files.items()},
        },
        slots=run.recipe.gpus,
        nodes=config.requested_nodes(run),
        time_limit_s=run.time_limit_s + config.seconds_before_training,
        image=staged.image if config.image_form is ImageForm.NAME else None,
        installation=installation,
    )


def staging_job_spec(
    name: str, argv: Sequence[str], config: ClusterConfig, *, options: Sequence[str], time_limit_s: int
) -> JobSpec:
    """Make the job that runs one staging command, `argv`, on one node of the cluster."""
    directory = PurePosixPath(config.root, "staging", "jobs", name)
    return JobSpec(
        name=name,
        script=_templates().get_template("staging.sh.j2").render(sbatch_options=options, argv=argv),
        directory=str(directory),
        log_path=str(directory / f"log-{name}.out"),
        slots=1,
        time_limit_s=time_limit_s,
    )


def saved_checkpoint_dir(job: Job) -> str:
    """Return the folder where a checkpoint-save job saves its checkpoint, named as in NVIDIA's recipes."""
    return str(PurePosixPath(job.directory) / CHECKPOINTS)


async def find_saved_checkpoint(cluster: Cluster, job: Job) -> str:
    """Return the folder of the checkpoint that a job saved, for `Run.checkpoint_path`.

    It is the folder that contains `weights/`, or for Megatron-Bridge the one that contains
    `latest_train_state.pt` and a folder for each saved iteration. Raises SystemFailure if there is none, more
    than one, or an incomplete one.
    """
    folder = saved_checkpoint_dir(job)
    # NeMo keeps a file `<checkpoint>-unfinished` beside a checkpoint for as long as it is being written.
    signs = ["(", "-name", "weights", "-o", "-name", _TRACKER, "-o", "-name", "*-unfinished", ")"]
    listed = await cluster.run(
        ["find", folder, "-mindepth", "1", "-maxdepth", "2", *signs, "-print0"], timeout_s=60
    )
    if listed.exit_code:
        raise SystemFailure(f"job {job.name} left no checkpoint: {listed.stderr.strip()}; see {job.log_path}")
    paths = [PurePosixPath(path) for path in listed.stdout.split("\0") if path]
    checkpoints = [path.parent for path in paths if path.name in ("weights", _TRACKER)]
    if any(path.name.endswith("-unfinished") for path in paths):
        raise SystemFailure(
            f"the checkpoint of job {job.name} in {folder} was not finished; see {job.log_path}"
        )
    if len(checkpoints) != 1:
        raise SystemFailure(
            f"job {job.name} left {len(checkpoints)} checkpoints in {folder}, and one is expected"
            + ("" if checkpoints else ": if a valid load has removed it, save it again")
        )
    return str(checkpoints[0])


def job_environment(run: Run, staged: StagedFiles, config: ClusterConfig) -> dict[str, str]:
    """Return the environment variables that a job script sets.

    A later source overrides an earlier one, in this order: defaults, the workload, the Hugging Face cache,
    the cluster's file, the run's mode, the run, and what every job needs. If the cluster's file sets
    `fabric`, NCCL prints which network it uses on GPUs, unless one of these sets NCCL_DEBUG*.

    Raises UserError for a variable that a run may not set, for an invalid Hugging Face cache, and if the
    workload's command cannot be built for this run.
    """
    check_environment(run.environment)
    # A rank on the CPU is the same resource at every scale, so that scaling efficiency means something.
    threads = {"OMP_NUM_THREADS": "1"} if run.recipe.gpu_type == "cpu" else {}
    chosen = {
        **threads,
        **run.performance.environment,
        **hub_environment(hub_cache(run, config.environment, config.root)),
        **config.environment,
        **trace_environment(run),
        **run.environment,
    }
    asks_nccl = config.fabric is not None and run.recipe.gpu_type != "cpu"
    if asks_nccl and not any(name.startswith("NCCL_DEBUG") for name in chosen):
        chosen |= _NETWORK_LINES
    modules_path = rank_program(run, config.root).modules_path(staged.trainer_path)
    return {
        **chosen,
        # The trainer is the staged one: nothing of the user's home or the job's folder comes before it.
        "PYTHONNOUSERSITE": "1",
        # An image may have a PYTHONPATH of its own, before which this folder is put when it is known.
        "PYTHONPATH" if staged.python else TRAINER_VARIABLE: modules_path,
        "PYTHONSAFEPATH": "1",
    }


def trace_environment(run: Run) -> dict[str, str]:
    """Return the variables that make NCCL, or torch on the CPU, log collectives in mode `nccl_trace`."""
    return dict(_TRACES[run.recipe.gpu_type == "cpu"]) if run.mode is Mode.NCCL_TRACE else {}
