"""What Python starts as a rank of a run: the shipped trainer, or Megatron-Bridge's script in the image."""

from steptime.clusters.base import Staged
from steptime.recipes.megatron_bridge import bridge_command, scripts_folder
from steptime.recipes.models import RUN_FILE, NamedRecipe, Run


def program_of(run: Run) -> tuple[str, ...]:
    """Return the arguments of Python, or of torch's launcher, for a rank of the run. Raises UserError."""
    if isinstance(run.recipe.model, NamedRecipe):
        return bridge_command(run)
    return ("-m", "trainer", RUN_FILE)


def on_one_machine(run: Run) -> tuple[str, ...]:
    """Return the arguments of Python that start all ranks of the run on one machine. Raises UserError.

    The trainer forks its own ranks on the CPU; torchrun starts all others.
    """
    if run.recipe.gpu_type == "cpu" and not isinstance(run.recipe.model, NamedRecipe):
        return ("-m", "trainer.cpu_ranks", RUN_FILE)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")
    return (*torchrun, f"--nproc-per-node={run.recipe.gpus}", *program_of(run))


def modules_path(run: Run, staged: Staged) -> str:
    """Return where ranks find modules besides their environment: the trainer, and what the script has."""
    folder = scripts_folder(run)
    return staged.trainer_path if folder is None else f"{staged.trainer_path}:{folder}"
