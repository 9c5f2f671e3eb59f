"""The file of a Slurm cluster: checks of runs against it, and the values of the job script."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from steptime.clusters.base import StagedFiles
from steptime.clusters.slurm.script import sbatch_options, script_values, staging_job_options
from steptime.clusters.slurm.site import Site
from steptime.recipes.models import Run


class SlurmConfig(Site):
    """The file of a cluster of kind `slurm`."""

    profiles_ranks = True

    def check(self, run: Run) -> None:
        """Raise UserError for a run that does not fit the nodes, or whose options Slurm would refuse."""
        super().check(run)
        sbatch_options(run, self)

    def placement_test(self, run: Run) -> tuple[str, ...]:
        """Return an sbatch call that submits nothing, and fails if Slurm could never place the run."""
        return ("sbatch", "--test-only", "--wrap=true", *sbatch_options(run, self))

    def script_values(
        self, run: Run, staged: StagedFiles, *, directory: PurePosixPath, environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the options of sbatch and srun, and the command of a rank."""
        return script_values(run, staged, self, directory=directory, environment=environment)

    def staging_job_options(self, run: Run) -> tuple[str, ...]:
        """Return options for one task without GPUs, in the run's account."""
        return staging_job_options(run, self)
