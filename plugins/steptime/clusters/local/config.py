"""The fields of the local cluster's file, and values derived from them."""

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import PositiveInt

from steptime.clusters.base import StagedFiles
from steptime.clusters.config import ClusterConfig
from steptime.clusters.containers import ContainerRuntime
from steptime.clusters.rank_program import RankProgram
from steptime.durations import Seconds
from steptime.errors import UserError
from steptime.recipes.models import Run


class LocalConfig(ClusterConfig):
    """The configuration of the local cluster: the fields of its file, with `kind: local`."""

    kind: Literal["local"]
    slots: PositiveInt | Literal["auto"] = "auto"
    """Ranks that may run at once; `auto` is the number of cores that this process may use."""
    exclusive: bool = True
    """Whether each job holds every slot, as with `sbatch --exclusive`."""
    grace_s: Seconds = 10
    """Seconds between SIGTERM and SIGKILL when a job is ended."""

    @classmethod
    def starts(cls, runtime: ContainerRuntime) -> bool:
        """Return whether the container program works without srun, which the local cluster does not use."""
        return runtime.launch is not None and not runtime.of_srun

    def can_repeat_nodes(self, run: Run) -> bool:  # noqa: ARG002
        """Return whether jobs can run on the same nodes one after another: there is one machine."""
        return True

    def check(self, run: Run) -> None:
        """Raise UserError for a run that is not permitted, needs Nsight Systems, or needs too many slots."""
        super().check(run)
        self.check_slots(run.label, run.recipe.gpus)

    def script_values(
        self,
        run: Run,
        staged: StagedFiles,
        *,
        program: RankProgram,
        directory: PurePosixPath,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return the job script's command that starts the ranks, and the prefix for its container, if any."""
        launch = program.on_one_machine(run)
        if staged.python is not None or staged.image_path is None:
            return {"launch": launch, "prefix": ()}
        started = self.in_image((), run, staged, directory=directory, environment=environment)
        return {"launch": launch, "prefix": started.command}

    def check_slots(self, what: str, slots: int) -> None:
        """Raise UserError if a job, called `what` in the message, needs more slots than there are."""
        if slots > self.slot_count:
            raise UserError(
                f"{what} needs {slots} slots and {self.name} has {self.slot_count}: plan fewer, "
                f"or set slots: {slots} in config/clusters/{self.name}.yaml (ranks then share cores)."
            )

    @property
    def slot_count(self) -> int:
        """The number of ranks that may run at once on this machine."""
        return len(os.sched_getaffinity(0)) if self.slots == "auto" else self.slots


Config = LocalConfig
"""The name under which steptime finds this model in the module `config` of a kind of cluster."""
