"""Fixtures for jobs in the trainer's own environment."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from steptime.settings import home

from .jobs import Trained, WarmTrainer

Train = Callable[..., Trained]

TORCHAO = "torchao==0.18.0"


@pytest.fixture(scope="session")
def torchao_wheel(trainer_python: str) -> Path:
    """Return the wheel by which the thin loop computes fp8; it is downloaded once for all later test runs."""
    kept = home() / "wheels" / TORCHAO
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as fresh:
            pip = [sys.executable, "-m", "pip", "--python", trainer_python]  # it need not have pip itself
            download = ["download", "--quiet", "--retries", "10", "--timeout", "60", "--no-deps"]
            subprocess.run([*pip, *download, "--dest", f"{fresh}/wheel", TORCHAO], check=True)
            with suppress(OSError):  # another worker was quicker
                Path(fresh, "wheel").rename(kept)
    (wheel,) = kept.glob("torchao-*.whl")
    return wheel


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
