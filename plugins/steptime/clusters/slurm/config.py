"""A Slurm cluster's file as everybody else asks it: what a run may ask for, and what its job script has."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from steptime.clusters.base import Staged
from steptime.clusters.slurm.script import sbatch_options, script_values, staging_job_options
from steptime.clusters.slurm.site import Site
from steptime.recipes.models import Run


class SlurmConfig(Site):
    """`config/clusters/*.yaml` of kind `slurm`."""

    profiles_ranks = True

    def check(self, run: Run) -> None:
        """Raise UserError for a run that cannot be spread over these nodes, or asks for what cannot be."""
        super().check(run)
        sbatch_options(run, self)

    def placement_test(self, run: Run) -> tuple[str, ...]:
        """Return an sbatch that submits nothing: Slurm knows its partitions, constraints, drained nodes."""
        return ("sbatch", "--test-only", "--wrap=true", *sbatch_options(run, self))

    def script_values(
        self, run: Run, staged: Staged, *, directory: PurePosixPath, environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the options for sbatch and srun, and the command of a rank."""
        return script_values(run, staged, self, directory=directory, environment=environment)

    def staging_job_options(self, run: Run) -> tuple[str, ...]:
        """Return options for one task without GPUs, counted and placed as the run is."""
        return staging_job_options(run, self)
