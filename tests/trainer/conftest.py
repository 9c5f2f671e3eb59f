"""Fixtures for jobs in the trainer's own environment."""

import pytest

from .jobs import WarmTrainer


@pytest.fixture(scope="session")
def warm_trainer(trainer_python, tmp_path_factory):
    """Yield a process with NeMo imported, for all tests that need it."""
    trainer = WarmTrainer(trainer_python, tmp_path_factory.mktemp("warm_trainer"))
    yield trainer
    trainer.stop()


@pytest.fixture(scope="session")
def warm_bridge(bridge_python, tmp_path_factory):
    """Yield a process with Megatron-Bridge imported, for all tests that need it."""
    trainer = WarmTrainer(bridge_python, tmp_path_factory.mktemp("warm_bridge"), "megatron_bridge")
    yield trainer
    trainer.stop()


@pytest.fixture(scope="session")
def train_on_bridge(warm_bridge):
    """Return a function like `train` that trains with Megatron-Bridge, whatever backend the run has."""

    def train(run, folder, program=None):
        recipe = run.recipe.model_copy(update={"backend": "megatron_bridge"})
        return warm_bridge.train(run.model_copy(update={"recipe": recipe}), folder, program)

    return train


@pytest.fixture(scope="session")
def train(warm_trainer):
    """Return a function that trains a run in a folder: `train(run, folder, program=None)`."""
    return warm_trainer.train
