"""Fixtures for jobs in the trainer's own environment."""

from collections.abc import Callable, Iterator

import pytest

from .jobs import Trained, WarmTrainer

Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def warm_trainer(trainer_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTrainer]:
    """Yield a process with NeMo imported, for all tests that need it."""
    trainer = WarmTrainer(trainer_python, tmp_path_factory.mktemp("warm_trainer"))
    yield trainer
    trainer.stop()


@pytest.fixture(scope="session")
def train(warm_trainer: WarmTrainer) -> Train:
    """Return a function that trains a run in a folder: `train(run, folder, program=None)`."""
    return warm_trainer.train
