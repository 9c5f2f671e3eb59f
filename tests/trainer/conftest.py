"""Fixtures for jobs in the trainer's own environment."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steptime.recipes.models import Run

from .jobs import Trained, WarmTrainer

Train = Callable[..., Trained]


@pytest.fixture(scope="session")
def warm_trainer(trainer_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTrainer]:
    """Yield a process with NeMo imported, for all tests that need it."""
    trainer = WarmTrainer(trainer_python, tmp_path_factory.mktemp("warm_trainer"))
    yield trainer
    trainer.stop()


@pytest.fixture(scope="session")
def warm_bridge(bridge_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmTrainer]:
    """Yield a process with Megatron-Bridge imported, for all tests that need it."""
    trainer = WarmTrainer(bridge_python, tmp_path_factory.mktemp("warm_bridge"), "megatron_bridge")
    yield trainer
    trainer.stop()


@pytest.fixture(scope="session")
def train_on_bridge(warm_bridge: WarmTrainer) -> Train:
    """Return a function like `train` that trains with Megatron-Bridge, whatever backend the run has."""

    def train(run: Run, folder: Path, program: str | None = None) -> Trained:
        recipe = run.recipe.model_copy(update={"backend": "megatron_bridge"})
        return warm_bridge.train(run.model_copy(update={"recipe": recipe}), folder, program)

    return train


@pytest.fixture(scope="session")
def train(warm_trainer: WarmTrainer) -> Train:
    """Return a function that trains a run in a folder: `train(run, folder, program=None)`."""
    return warm_trainer.train
