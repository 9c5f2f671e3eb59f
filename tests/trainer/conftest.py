"""A job in the trainer's own environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.recipes.models import Run

from .jobs import Trained, start_trainer, write_run

Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def train(trainer_python: str) -> Train:
    """A function that trains a run in a folder, under torchrun where it has more than one rank."""

    def _train(
        run: Run, folder: Path, *options: str, program: str | None = None, **environment: str
    ) -> Trained:
        ranks = run.recipe.parallelism.world_size
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        start = ["-m", "trainer"] if program is None else [program]
        log = start_trainer(
            [trainer_python, *(launcher if ranks > 1 else []), *start],
            [
                *write_run(run, folder),
                *options,
                "--output",
                str(folder),
                "--history",
                str(folder / "history.jsonl"),
            ],
            cwd=folder,
            **environment,
        )
        (folder / "log.out").write_text(log.stdout, encoding="utf-8")
        return Trained(exit_code=log.returncode, log=log.stdout, folder=folder)

    return _train
