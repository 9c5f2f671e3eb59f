"""Megatron-Bridge's checkpoints: a folder with `iter_0000050/*.distcp` and a file that names the newest."""

from pathlib import Path

from trainer.checkpoint import EXPERIMENT_FOLDER
from trainer.errors import TrainerError

NEWEST = "latest_train_state.pt"
"""File that Megatron-Bridge writes when a checkpoint is complete."""


def saved_in(output: Path) -> Path:
    """Return the folder of a job's checkpoints: the same as with NeMo."""
    return output.absolute() / EXPERIMENT_FOLDER / "default" / "checkpoints"


def find_checkpoint(path: Path) -> Path:
    """Return the folder to load from. Raise TrainerError if it holds no complete checkpoint."""
    if not (path / NEWEST).is_file():
        raise TrainerError(
            f"there is no checkpoint of Megatron-Bridge at {path}: it has no complete one, named by {NEWEST}."
        )
    return path


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
