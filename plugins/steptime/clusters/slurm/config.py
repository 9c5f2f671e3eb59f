"""The configuration of a Slurm cluster: the fields of its file, and what follows from them for a run."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from steptime.clusters.base import StagedFiles
from steptime.clusters.rank_program import RankProgram
from steptime.clusters.slurm import script
from steptime.clusters.slurm.site import Site
from steptime.recipes.models import Run


class SlurmConfig(Site):
    """The configuration of a Slurm cluster: the fields of its file, with `kind: slurm`."""

    profiles_ranks = True

    def check(self, run: Run) -> None:
        """Raise UserError for a run that is not permitted, does not fit the nodes, or has bad options."""
        super().check(run)
        script.sbatch_options(run, self)

    def placement_test(self, run: Run) -> tuple[str, ...]:
        """Return an sbatch call that submits nothing, and fails if Slurm could never place the run."""
        return ("sbatch", "--test-only", "--wrap=true", *script.sbatch_options(run, self))

    def drain_command(self, node: str, reason: str) -> tuple[str, ...]:
        """Return the call of scontrol that drains a node: its jobs go on, and new ones stay away."""
        return ("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def script_values(
        self,
        run: Run,
        staged: StagedFiles,
        *,
        program: RankProgram,
        directory: PurePosixPath,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return the Slurm values for `job.sh.j2`: options of sbatch and srun, and the command of a rank."""
        return script.script_values(
            run, staged, self, program=program, directory=directory, environment=environment
        )

    def staging_job_options(self, run: Run) -> tuple[str, ...]:
        """Return the #SBATCH options of a job that does the staging: one task, no GPUs, the run's account."""
        return script.staging_job_options(run, self)


Config = SlurmConfig
"""The name under which steptime finds this model in the module `config` of a kind of cluster."""
