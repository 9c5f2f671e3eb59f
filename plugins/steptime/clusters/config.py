"""The fields common to all cluster files, and functions that load a file as the model of its `kind`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

from steptime.clusters.base import Cluster, StagedFiles
from steptime.clusters.connections import Connections, no_connections
from steptime.clusters.containers import (
    FINDS_TRAINER,
    ContainerRuntime,
    ContainerSetup,
    ImageForm,
    LaunchCommand,
    Mount,
    mounts,
    start_in_container,
)
from steptime.clusters.hub import hub_cache
from steptime.clusters.rank_program import RankProgram
from steptime.durations import Hours, PollInterval
from steptime.errors import BrokenFiles, UserError, one_line, unknown_value
from steptime.frozen import Frozen
from steptime.plug_points import CLUSTER_KINDS, CONTAINERS
from steptime.recipes.cluster_files import ClusterFile, cluster_document, cluster_file, list_clusters
from steptime.recipes.config_files import Document, FieldErrors, Mistake, load_each
from steptime.recipes.environment import SAFE_PLACE, checked_environment, find_secret_in_line, leads_to_code
from steptime.recipes.models import NamedRecipe, Run
from steptime.settings import home

_NO_CONTAINER = "none"


class ClusterConfig(ClusterFile, Frozen):
    """The fields common to the files of all kinds of clusters; each kind adds its own."""

    profiles_ranks: ClassVar[bool] = False
    """Whether this kind of cluster starts the ranks of profile runs under Nsight Systems."""

    name: str
    """Equal to the file's name."""
    container: str = "none"
    """What runs a recipe's image: `pyxis`, `apptainer`, `bwrap`; `none` refuses recipes with an image."""
    container_mounts: tuple[str, ...] = ()
    """Folders that containers see besides `work_dir`, at the same path; `/data:ro` for reading only."""
    import_in_job: bool = False
    """Whether images are imported by a job, because the login node may not or cannot."""
    work_dir: str
    """Folder on the cluster for experiments and what is staged; `{STEPTIME_HOME}` is the state folder."""
    environment: Annotated[dict[str, str], AfterValidator(checked_environment)] = Field(default_factory=dict)
    """Variables of every job here. They override the workload's variables; a run's own override them."""
    fabric: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    """Network between the nodes, such as `InfiniBand`: runs whose NCCL falls back to sockets are rejected."""
    permitted_variables: tuple[str, ...] = ()
    """Patterns of code-loading variables, such as `LD_PRELOAD`, that a run may set here; none if left out."""
    permitted_images: tuple[str, ...] | None = None
    """Patterns of the images that jobs may run in, by their whole names; all if left out."""
    permitted_checkpoints: tuple[str, ...] | None = None
    """Patterns of checkpoints outside `work_dir` that runs may load (they can run code); all if left out."""
    permitted_owners: tuple[str, ...] | None = None
    """Patterns of the DAG owners that may run here; all if left out."""
    setup: tuple[str, ...] = ()
    """Lines of bash that every job script here runs first, such as `module load cuda`.

    Only the file's author writes them: a run cannot add any.
    """
    python: str = "python3.11"
    """The interpreter on the cluster that makes the trainer's venv."""
    poll_interval_s: PollInterval = 5
    """Seconds between two polls; one poll serves all jobs that are waited for."""
    resubmissions: NonNegativeInt = 2
    """How often a run is resubmitted after its cluster failed the job, as by a dead node or a preemption."""
    patience_h: Hours = 12
    """Hours for which the cluster may be out of reach before a task that waits for an answer gives up.

    No job is cancelled because of this, neither before nor after.
    """
    queue_patience_h: Hours = 168
    """Hours that a job may queue, be held or be suspended before it is ended."""
    gpus: PositiveInt | None = None
    """GPUs that jobs may hold here at a time; further jobs wait in `submit`. No limit if left out."""
    price_per_gpu_hour: PositiveFloat | None = None
    """Price of a GPU-hour in the site's currency, for the price of tokens."""
    gpu_hours_per_month: PositiveFloat | None = None
    """GPU-hours that jobs may take here in a calendar month (UTC); no budget if left out."""

    @field_validator("container")
    @classmethod
    def _can_be_started(cls, name: str) -> str:
        if name != _NO_CONTAINER:
            choices = (_NO_CONTAINER, *cls.containers())
            if name not in choices:
                raise ValueError(str(unknown_value("container", name, choices, of="this kind of cluster")))
        return name

    @field_validator("setup")
    @classmethod
    def _lines_without_secrets(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        problems = []
        for number, line in enumerate(lines):
            if not line.strip() or len(line.splitlines()) > 1 or "\0" in line:
                problems.append(Mistake("write one line of bash, not none and not several", (number,)))
            elif secret := find_secret_in_line(line):
                message = f"{secret}, and a job script is recorded and shown: {SAFE_PLACE}"
                problems.append(Mistake(message, (number,)))
        if problems:
            raise FieldErrors(problems)
        return lines

    @classmethod
    def starts(cls, runtime: ContainerRuntime) -> bool:
        """Return whether this kind of cluster can start jobs with that container program."""
        return runtime.launch is not None

    @classmethod
    def containers(cls) -> tuple[str, ...]:
        """Return the container programs that this kind of cluster can use, the preferred one first."""
        return tuple(name for name in CONTAINERS.names() if cls.starts(CONTAINERS.load(name)))

    @property
    def image_form(self) -> ImageForm | None:
        """The form that images must have on this cluster; None if it runs no images."""
        if self.container == _NO_CONTAINER:
            return None
        form: ImageForm = CONTAINERS.load(self.container).image
        return form

    @property
    def root(self) -> str:
        """The cluster's working folder `work_dir` as an absolute path."""
        return self.work_dir.replace("{STEPTIME_HOME}", str(home()))

    @property
    def seconds_before_training(self) -> int:
        """Seconds that a job needs before training, added to the run's time limit."""
        return 0

    def check(self, run: Run) -> None:
        """Raise UserError for a run that this cluster can never execute; called before staging."""
        self.check_permitted(run)
        if run.profile is None or self.profiles_ranks:
            return
        if run.profile.gpu_metrics:
            raise UserError(
                f"`gpu_metrics` needs Nsight Systems, which clusters of kind {self.kind} never use: leave "
                f"`gpu_metrics` out on {self.name} to use torch's profiler."
            )
        if isinstance(run.recipe.model, NamedRecipe):
            raise UserError(
                f"{run.label} is profiled by Nsight Systems, which clusters of kind {self.kind}, such as "
                f"{self.name}, never use: name another cluster, or leave profile out."
            )

    def check_permitted(self, run: Run) -> None:
        """Raise UserError for a run whose GPUs, variables, image or checkpoint this file does not permit."""
        if self.gpus is not None and run.recipe.gpus > self.gpus:
            raise UserError(
                f"{run.label} needs {run.recipe.gpus} GPUs, but jobs on cluster {self.name} may hold at most "
                f"{self.gpus} together: choose fewer, or raise gpus in {cluster_file(self.name)}."
            )
        for name in filter(leads_to_code, run.environment):
            self.require_permitted("code-loading variable", name, "permitted_variables")
        if run.recipe.image is not None:
            self.require_permitted("image", run.recipe.image, "permitted_images")
        if run.checkpoint_path is not None and not run.checkpoint_path.startswith(f"{self.root}/"):
            self.require_permitted("checkpoint", run.checkpoint_path, "permitted_checkpoints")
        if run.environment and self.image_form not in (None, ImageForm.NAME):
            self._require_mounted_cache(run)

    def _require_mounted_cache(self, run: Run) -> None:
        """Raise UserError if the run's variables name a Hugging Face cache that containers do not see."""
        cache = hub_cache(run, self.environment, self.root)
        files_own = hub_cache(run.model_copy(update={"environment": {}}), self.environment, self.root)
        if cache is None or cache == files_own:
            return
        folders = (self.root, *(mount.removesuffix(":ro") for mount in self.container_mounts))
        if not any(PurePosixPath(normpath(cache)).is_relative_to(folder) for folder in folders):
            raise UserError(
                f"the run's variables set the Hugging Face hub's cache to '{one_line(cache)}', which is not "
                f"mounted in containers on cluster {self.name}: leave HF_HOME and HF_HUB_CACHE out, or have "
                f"the folder added to container_mounts in config/clusters/{self.name}.yaml."
            )

    def require_container(self, run: Run) -> None:
        """Raise UserError for a run that needs an image if this cluster cannot run images."""
        if run.recipe.image is not None and self.image_form is None:
            raise UserError(
                f"{run.label} runs in the image {run.recipe.image}, and cluster {self.name} runs no images "
                f"(container: {self.container}): set container in config/clusters/{self.name}.yaml "
                f"to the program that runs images there, or name another cluster."
            )

    def options_of_owner(self, owner: str) -> dict[str, str]:
        """Return the default options of a DAG owner's runs on this cluster."""
        return {}

    def check_owner(self, run: Run, owner: str) -> None:
        """Raise UserError if this DAG owner may not start the run on this cluster."""
        self.require_permitted("DAG owner", owner, "permitted_owners", instead="change the DAG's owner")

    def require_permitted(self, what: str, value: str, field: str, *, instead: str = "leave it out") -> None:
        """Raise UserError if this file has a list `field` of patterns and none matches `value`.

        `what` says in the message what the value is, such as `image`; `instead` is what its user can do.
        """
        patterns: tuple[str, ...] | None = getattr(self, field)
        if patterns is None or any(fnmatchcase(value, pattern) for pattern in patterns):
            return
        listed, file = ", ".join(patterns) or "none", f"config/clusters/{self.name}.yaml"
        raise UserError(
            f"{what} '{one_line(value)}' is not permitted on cluster {self.name}: {instead}, or have it "
            f"added to {field} in {file}, which has {listed}."
        )

    def ending_by_hand(self, job_name: str) -> str:
        """Return how a person cancels a job on this cluster, as part of a sentence."""
        return f"end {job_name} on cluster {self.name}"

    def avoiding(self, run: Run, nodes: Sequence[str]) -> Run:
        """Return the run with `nodes` excluded; unchanged if this kind of cluster cannot exclude nodes."""
        return run

    def excluded_nodes(self, run: Run) -> tuple[str, ...]:
        """Return the nodes that the run or this file excludes."""
        return ()

    def requested_nodes(self, run: Run) -> tuple[str, ...]:
        """Return the nodes that the run or this file asks for by name; empty if the cluster chooses."""
        return ()

    def can_repeat_nodes(self, run: Run) -> bool:
        """Return whether several jobs of the run can be made to run on the same nodes, one after another."""
        return bool(self.requested_nodes(run))

    def on_nodes(self, run: Run, nodes: Sequence[str]) -> Run:
        """Return the run with `nodes` requested by name; unchanged if this kind of cluster takes no names."""
        return run

    def placement_test(self, run: Run) -> tuple[str, ...] | None:
        """Return a command for the login node that fails if the cluster could never find nodes for the run.

        None if this kind of cluster has no such command.
        """
        return None

    def drain_command(self, node: str, reason: str) -> tuple[str, ...]:
        """Return the command by which an administrator keeps new jobs off a node; empty if there is none."""
        return ()

    def script_values(
        self,
        run: Run,
        staged: StagedFiles,
        *,
        program: RankProgram,
        directory: PurePosixPath,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return the values that the template `job.sh.j2` of this kind needs beyond the common ones.

        `program` is what each rank starts, `directory` the job's folder, `environment` the variables that the
        script sets. Raises UserError for a run that the script could not start.
        """
        return {}

    def mounts(self, run: Run) -> tuple[Mount, ...]:
        """Return the mounts of the run's containers besides the job's own folder.

        Raises UserError if the run's checkpoint or Hugging Face cache cannot be mounted.
        """
        return mounts(
            self.root,
            self.container_mounts,
            (run.checkpoint_path, hub_cache(run, self.environment, self.root)),
        )

    def in_image(
        self,
        command: Sequence[str],
        run: Run,
        staged: StagedFiles,
        *,
        directory: PurePosixPath,
        environment: Iterable[str],
    ) -> LaunchCommand:
        """Return how to start `command` in the staged image of a run, with the trainer on its PYTHONPATH.

        `directory` is the job's folder, `environment` the names of the variables to pass in. Raises UserError
        if no image is staged, or if the cluster's container program cannot start it.
        """
        if staged.image_path is None:
            raise UserError(
                f"neither an environment nor an image is staged on cluster {self.name}: run the task "
                f"'stage' again."
            )
        inside = ContainerSetup(
            image=staged.image_path,
            mounts=(*self.mounts(run), Mount(str(directory), writable=True)),
            directory=str(directory),
            variables=tuple(environment),
            image_environment=staged.image_environment,
        )
        return start_in_container(self.container, (*FINDS_TRAINER, *command), inside)

    def staging_job_options(self, run: Run) -> tuple[str, ...]:
        """Return the scheduler's options for a job that does the staging of a run.

        Raises UserError if an option of the run is invalid.
        """
        return ()


def load_cluster(name: str) -> ClusterConfig:
    """Load the configuration of the cluster `name`. Raises UserError if there is none or it is broken."""
    document = cluster_document(name)
    config, problems = _parse_by_kind(document)
    problems += document.misnamed("name", problems)
    work_dir = document.value("work_dir")
    if isinstance(work_dir, str) and not work_dir.startswith(("/", "{STEPTIME_HOME}")):
        message = f"'{work_dir}' is no absolute path: begin with '/' or {{STEPTIME_HOME}}"
        problems.append(Mistake(message, ("work_dir",)))
    if config is None or problems:
        raise document.refusal(problems)
    return config


def _parse_by_kind(document: Document) -> tuple[ClusterConfig | None, list[Mistake]]:
    """Parse a file by its field `kind`; return the configuration (None if invalid) and all mistakes."""
    kind = document.value("kind")
    if not isinstance(kind, str):
        return None, document.fit(ClusterFile)[1]
    try:
        model: type[ClusterConfig] = CLUSTER_KINDS.load(kind, "config").Config
    except UserError as error:
        return None, [Mistake.of(error, "kind")]
    return document.fit(model)


def load_clusters() -> tuple[tuple[ClusterConfig, ...], BrokenFiles | None]:
    """Load all valid cluster files, sorted by name; also return what is wrong with the others."""
    return load_each(list_clusters(), load_cluster)


def check_runs(runs: Iterable[Run], owner: str | None = None) -> None:
    """Raise UserError for the first run that its cluster can never execute or does not permit.

    `owner` is the owner of the DAG that would start the runs; None outside of a DAG.
    """
    for config, run in _with_clusters(runs):
        config.require_container(run)
        config.check(run)
        if owner is not None:
            config.check_owner(run, owner)


def check_permitted(runs: Iterable[Run]) -> None:
    """Raise UserError for the first run that its cluster's file does not permit."""
    for config, run in _with_clusters(runs):
        config.check_permitted(run)


def _with_clusters(runs: Iterable[Run]) -> Iterator[tuple[ClusterConfig, Run]]:
    """Yield each run with its cluster; each cluster's file is read once."""
    configs: dict[str, ClusterConfig] = {}
    for run in runs:
        if run.cluster not in configs:
            configs[run.cluster] = load_cluster(run.cluster)
        yield configs[run.cluster], run


def open_cluster(config: ClusterConfig, connections: Connections = no_connections) -> Cluster:
    """Return the cluster of a configuration, to be used with `async with`; it connects on entry or later.

    `connections` returns its login data by name.
    """
    cluster: Cluster = CLUSTER_KINDS.load(config.kind, "cluster").connect(config, connections)
    return cluster
