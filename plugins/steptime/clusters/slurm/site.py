"""The fields of a Slurm cluster's file that describe the cluster and its rules, not single jobs."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from steptime.clusters.config import ClusterConfig
from steptime.clusters.connections import split_address
from steptime.clusters.slurm.node_check import NodeCheck
from steptime.clusters.slurm.options import SlurmOptions, check_of_every_job
from steptime.errors import UserError, one_line
from steptime.plug_points import CONTAINERS
from steptime.recipes.config_files import check_each
from steptime.recipes.models import Run
from steptime.recipes.node_lists import expand_nodes, fold_nodes

_PERMITTED = {
    "account": "permitted_accounts",
    "partition": "permitted_partitions",
    "qos": "permitted_qos",
}
"""Options of sbatch that a cluster's file may restrict, and the field with the permitted values."""


NumaBinding = Literal["auto", "none"] | PositiveInt
"""`auto`: as published; `none`: never; a number: that many neighbouring local ranks share a NUMA node."""


class Site(ClusterConfig):
    """The fields of a Slurm cluster's file, and values derived from them alone."""

    kind: Literal["slurm"]
    connection: str
    """The Airflow connection, of type ssh, that leads to a login node."""
    login_nodes: tuple[str, ...] = ()
    """Hosts to log in to, `host` or `host:port`, in the order to try; the connection's own if left out."""
    partition: str | None = None
    """The partition of jobs, unless a run names another; Slurm's default if left out."""
    account: str | None = None
    """The account of jobs, unless a run names another; Slurm's default if left out."""
    import_partition: str | None = None
    """The partition of jobs that import images; that of the training jobs if left out."""
    permitted_accounts: tuple[str, ...] | None = None
    """Patterns of accounts that a run may name; all if left out. The account in this file is not checked."""
    permitted_partitions: tuple[str, ...] | None = None
    """Patterns of the partitions that a run may name; all if left out."""
    permitted_qos: tuple[str, ...] | None = None
    """Patterns of the QOS that a run may name; all if left out."""
    owner_accounts: dict[str, str] = Field(default_factory=dict)
    """The account of each DAG owner's jobs; if there are any, other owners are refused."""
    gpus_per_node: PositiveInt | None = None
    """GPUs that a job takes of each node; as many as in the recipe if left out."""
    gpu_option: Literal["gres", "gpus-per-node", "gpus", "none"] = "gres"
    """The sbatch option that asks for GPUs; `none` if the site gives whole nodes and has no GRES."""
    exclusive: bool = True
    """Whether a job has its nodes to itself."""
    mpi: Literal["pmix", "none"] | None = None
    """How srun connects the ranks in an image (`--mpi`). If left out: `none` with bwrap, else `pmix`, as in
    NVIDIA's recipes."""
    extra_options: tuple[str, ...] = ()
    """Further sbatch options of every job here, such as `--qos=benchmark`."""
    numa_binding: NumaBinding = "auto"
    """Binding of ranks to NUMA nodes: `auto` as published, `none`, or how many adjacent ranks share one."""
    vboost: bool = False
    """Whether jobs may set the GPUs' vboost with `sudo nvidia-smi` if the publication did."""
    node_check: NodeCheck | None = None
    """Thresholds for checking every node of a job before its training; no check if left out."""

    @property
    def default_account(self) -> str | None:
        """The default account: `--account` in `extra_options`, else the field `account` or None."""
        return self._extra("account") or self.account

    @property
    def mpi_of_images(self) -> str:
        """The value of srun's `--mpi` for ranks in an image."""
        return self.mpi or str(CONTAINERS.load(self.container).mpi)

    @property
    def seconds_before_training(self) -> int:
        """The time limit of the node check in seconds; 0 if the cluster has none."""
        return 0 if self.node_check is None else self.node_check.time_limit_s

    def ending_by_hand(self, job_name: str) -> str:
        """Return the scancel command that a person runs on a login node, as part of a sentence."""
        return f"'scancel --name={job_name}' on a login node of {self.name}"

    def check_permitted(self, run: Run) -> None:
        """Raise UserError for a run that is not permitted; here also by its account, partition or QOS."""
        super().check_permitted(run)
        for option in SlurmOptions.of(run.cluster_options).as_given:
            name, _, values = option.removeprefix("--").partition("=")
            for value in values.split(",") if name in _PERMITTED else ():
                self.require_permitted(name, value, _PERMITTED[name])

    def options_of_owner(self, owner: str) -> dict[str, str]:
        """Return the account of a DAG owner as an option, if the file maps owners to accounts."""
        return {"account": self.owner_accounts[owner]} if owner in self.owner_accounts else {}

    def check_owner(self, run: Run, owner: str) -> None:
        """Raise UserError for an owner who may not run here, or a run in another account than the owner's."""
        super().check_owner(run, owner)
        if not self.owner_accounts:
            return
        file = f"config/clusters/{self.name}.yaml"
        account_of_owner = self.owner_accounts.get(owner)
        if account_of_owner is None:
            raise UserError(
                f"DAG owner '{one_line(owner)}' has no account on cluster {self.name}: change the DAG's "
                "owner "
                f"to one of owner_accounts in {file} ({', '.join(self.owner_accounts)}), or add this one "
                "there."
            )
        account = SlurmOptions.of(run.cluster_options).account or self.default_account
        if account != account_of_owner:
            raise UserError(
                f"account '{one_line(account)}' is not the account of DAG owner '{one_line(owner)}' on "
                f"cluster {self.name}: choose account '{account_of_owner}' (owner_accounts in {file})."
            )

    def avoiding(self, run: Run, nodes: Sequence[str]) -> Run:
        """Return the run with these nodes excluded too, unless the run requests them by name."""
        options, excluded = SlurmOptions.of(run.cluster_options), self.excluded_nodes(run)
        named = (*excluded, *self.requested_nodes(run))
        avoided = [node for node in nodes if node not in named]
        if not avoided:
            return run
        exclude = fold_nodes((*excluded, *avoided))
        return run.model_copy(update={"cluster_options": {**options.given, "exclude": exclude}})

    def excluded_nodes(self, run: Run) -> tuple[str, ...]:
        """Return the nodes of the option `exclude`: the run's, else the one in `extra_options`."""
        return expand_nodes(SlurmOptions.of(run.cluster_options).exclude or self._extra("exclude"))

    def requested_nodes(self, run: Run) -> tuple[str, ...]:
        """Return the nodes of the option `nodelist`: the run's, else the one in `extra_options`."""
        return expand_nodes(SlurmOptions.of(run.cluster_options).nodelist or self._extra("nodelist"))

    def can_repeat_nodes(self, run: Run) -> bool:  # noqa: ARG002
        """Return whether jobs can run on the same nodes one after another: Slurm takes nodes by name."""
        return True

    def on_nodes(self, run: Run, nodes: Sequence[str]) -> Run:
        """Return the run with these nodes requested, unless it or this file requests others by name."""
        options = SlurmOptions.of(run.cluster_options)
        if self.requested_nodes(run):
            return run
        return run.model_copy(update={"cluster_options": {**options.given, "nodelist": fold_nodes(nodes)}})

    def _extra(self, name: str) -> str:
        """Return the value of an option in `extra_options`; empty if it is missing."""
        values = dict(option.split("=", 1) for option in self.extra_options if "=" in option)
        return values.get(f"--{name}", "")

    @field_validator("extra_options")
    @classmethod
    def _check_submit_options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        check_each(options, check_of_every_job)
        return options

    @field_validator("login_nodes")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_each(value, split_address)
        return value

    @field_validator("work_dir")
    @classmethod
    def _is_path_for_slurm(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("has a non-printable character, which breaks the output of squeue and sacct")
        if "\\" in value:
            raise ValueError("has a backslash, which Slurm leaves out of the paths of logs")
        return value
