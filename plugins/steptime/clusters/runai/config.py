"""The fields of a Run:ai cluster's file, and values derived from them."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from steptime.clusters.base import StagedFiles
from steptime.clusters.config import ClusterConfig
from steptime.clusters.containers import FINDS_TRAINER, ContainerRuntime, ImageForm
from steptime.clusters.rank_program import RankProgram
from steptime.clusters.runai.volume import Volume
from steptime.durations import Seconds
from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.refusals import matching

_PLAIN_PATH = r"/[A-Za-z0-9._/-]*"
PlainPath = Annotated[str, matching(_PLAIN_PATH, "a path from / on, of letters, digits and . _ / -")]
"""An absolute path that needs no quotes: Run:ai splits a workload's command at blanks."""


class Pvc(Frozen):
    """A persistent volume claim that is mounted in every workload."""

    claim: str = Field(min_length=1, max_length=63)
    """The claim's name in Kubernetes, as Run:ai shows it under Data sources."""
    path: PlainPath
    """The path at which workloads see the volume."""
    name: str | None = None
    """The volume's name in Run:ai; needed only if rules of a Run:ai policy refer to it."""
    read_only: bool = False
    """Whether workloads may only read the volume, as for a volume with data sets."""


class RunaiConfig(ClusterConfig):
    """The configuration of a Run:ai cluster: the fields of its file, with `kind: runai`."""

    kind: Literal["runai"]
    container: str = "kubernetes"
    """`kubernetes`: Run:ai itself starts a recipe's image, with the volumes of `pvcs`."""
    connection: str
    """The Airflow connection of type runai that has the address, the application and its secret."""
    project: str | None = None
    """The Run:ai project; a project in the connection comes first."""
    image: str = Field(min_length=1)
    """The image of commands and of jobs whose recipe has none; it needs bash, coreutils and `python`."""
    pvcs: tuple[Pvc, ...] = Field(min_length=1)
    """The volumes of every workload; one of them holds `work_dir`."""
    shared_dir: str | None = None
    """The path at which Airflow's machines see the volume with `work_dir`; the same path if left out."""
    gpus_per_node: PositiveInt = 8
    """GPUs of one pod; a job with more GPUs gets several pods."""
    node_pools: tuple[str, ...] = ()
    """Run:ai's node pools, the preferred first; those of the project if left out."""
    grace_s: Seconds = 30
    """Seconds between SIGTERM and SIGKILL when a job is ended."""
    degraded_after_s: Seconds = 300
    """Seconds for which a workload may be degraded before it is ended as failed."""
    unknown_after_s: Seconds = 900
    """Seconds for which a workload's phase may be unknown to Run:ai before the job's state is `unknown`."""

    @classmethod
    def starts(cls, runtime: ContainerRuntime) -> bool:
        """Return whether `runtime` leaves the start of containers to the cluster, as is needed on Run:ai."""
        return runtime.image is ImageForm.NAME

    @model_validator(mode="after")
    def _work_dir_is_on_a_volume(self) -> Self:
        if not re.fullmatch(_PLAIN_PATH, str(self.state), re.ASCII):
            raise ValueError(
                f"work_dir '{self.root}' and name '{self.name}' are used in a path: "
                "write letters, digits, '.', '_', '-' and '/'"
            )
        if not any(PurePosixPath(self.root).is_relative_to(pvc.path) for pvc in self.pvcs):
            raise ValueError(f"work_dir '{self.root}' is not below any path in pvcs: mount a volume there")
        if self._mount.read_only:
            raise ValueError(
                f"claim '{self._mount.claim}' is read_only, but jobs write to its work_dir: mount it writable"
            )
        return self

    @property
    def volume(self) -> Volume:
        """The volume that holds `work_dir`; the innermost one if mounts are nested."""
        return Volume(mount=self._mount.path, here=self.shared_dir or self._mount.path)

    @property
    def _mount(self) -> Pvc:
        holding = [pvc for pvc in self.pvcs if PurePosixPath(self.root).is_relative_to(pvc.path)]
        return max(holding, key=lambda pvc: len(pvc.path))

    @property
    def state(self) -> PurePosixPath:
        """The folder on the volume for records about jobs."""
        return PurePosixPath(self.root, "clusters", self.name)

    def script_values(
        self,
        run: Run,
        staged: StagedFiles,
        *,
        program: RankProgram,
        directory: PurePosixPath,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return the prefix of the trainer's command. It starts no container: the script runs in one."""
        values = super().script_values(
            run, staged, program=program, directory=directory, environment=environment
        )
        return {**values, "prefix": () if staged.python else FINDS_TRAINER}

    def pod_variables(
        self, notes: str, *, directory: str, log_path: str, time_limit_s: float
    ) -> dict[str, str]:
        """Return the variables that `start.sh` needs in a pod: folders, log and time limit.

        `notes` is the folder where the pods record starts and ends, `directory` the job's folder.
        """
        return {
            "STEPTIME_STATE": notes,
            "STEPTIME_DIRECTORY": directory,
            "STEPTIME_SCRIPT": f"{directory}/job.sh",
            "STEPTIME_LOG": log_path,
            "STEPTIME_TIME_LIMIT_S": f"{time_limit_s:.0f}",
            "STEPTIME_GRACE_S": f"{self.grace_s:g}",
        }

    def pods(self, gpus: int) -> int:
        """Return the number of pods for a job with so many GPUs; each pod has `gpus_per_node` of them.

        Raises UserError if they do not fill whole pods. A job with fewer GPUs gets one pod.
        """
        if gpus > self.gpus_per_node and gpus % self.gpus_per_node:
            raise UserError(
                f"{gpus} GPUs are not a whole number of nodes of {self.gpus_per_node} GPUs each on cluster "
                f"{self.name}: ask for a multiple, or set gpus_per_node in config/clusters/{self.name}.yaml."
            )
        return max(1, gpus // self.gpus_per_node)


Config = RunaiConfig
"""The name under which steptime finds this model in the module `config` of a kind of cluster."""
