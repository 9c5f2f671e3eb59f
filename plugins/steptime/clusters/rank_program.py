"""What each rank of a run starts: steptime's trainer, a user's program, or a script of Megatron-Bridge."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from steptime.recipes.bridge_launch import bridge_command, bridge_commit
from steptime.recipes.models import RUN_FILE, NamedRecipe, Run


class RankProgram(NamedTuple):
    """What each rank of a run starts on a cluster."""

    arguments: tuple[str, ...]
    """To append to Python or torchrun: a module or a script, with its arguments."""
    script: str | None = None
    """Path of the script if Megatron-Bridge trains the run, else None."""
    checkout: PurePosixPath | None = None
    """Folder on the cluster of the Megatron-Bridge commit that has the script; None if the image has it."""
    files: Mapping[str, str] = {}
    """Texts of files in the workload file, by path; the job's folder gets each under its last name."""

    def modules_path(self, trainer_path: str) -> str:
        """Return the PYTHONPATH of the ranks: the trainer's folder, then that of the script, if any."""
        return trainer_path if self.script is None else f"{trainer_path}:{self.script.rpartition('/')[0]}"

    def on_one_machine(self, run: Run) -> tuple[str, ...]:
        """Return the arguments of Python that start all ranks of a run on one machine.

        On the CPU steptime's trainer forks its ranks itself; in all other cases torchrun starts them.
        """
        if run.recipe.gpu_type == "cpu" and self == _TRAINER:
            return ("-m", "trainer.cpu_ranks", RUN_FILE)
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")
        return (*torchrun, f"--nproc-per-node={run.recipe.gpus}", *self.arguments)


_TRAINER = RankProgram(("-m", "trainer", RUN_FILE))


def rank_program(run: Run, root: str) -> RankProgram:
    """Return what each rank of a run starts; `root` is the absolute path of the cluster's `work_dir`.

    Raises UserError if the workload's command cannot be built for this run.
    """
    launcher, model = run.recipe.launcher, run.recipe.model
    if launcher is not None:
        command = ("-m", "trainer.command", *run.recipe.command(run.max_steps))
        return RankProgram(command, files=launcher.files)
    if not isinstance(model, NamedRecipe):
        return _TRAINER
    commit = bridge_commit(run.recipe)
    checkout = None if commit is None else PurePosixPath(root, "megatron-bridge", commit)
    name, *arguments = bridge_command(run)
    script = str(PurePosixPath(checkout or "/", name))
    return RankProgram((script, *arguments), script, checkout, model.launch.files)
