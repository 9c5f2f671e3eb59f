"""The trainer's own environment, and a job in it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.recipes.models import Run

from .jobs import Trained, planned, start_trainer, write_run

Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def trainer_python() -> str:
    """The interpreter of the trainer's environment: as told, else staged as for a job."""
    told = os.environ.get("STEPTIME_TRAINER_PYTHON")
    if told:
        return told
    from steptime.clusters.config import load_cluster, open_cluster
    from steptime.staging import stage

    config = load_cluster("local")
    staged = asyncio.run(stage(open_cluster(config), config, planned(), print))
    assert staged.python is not None
    return staged.python


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
