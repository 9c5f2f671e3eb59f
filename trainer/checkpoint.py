"""Saving and finding checkpoints: NeMo's own folder layout, `checkpoints/<name>/weights/*.distcp`."""

from pathlib import Path
from typing import Any

from trainer.errors import TrainerError

EXPERIMENT_FOLDER = Path("code", "nemo_experiments")
"""Folder of NeMo's files below the job's folder, as in NVIDIA's documents of these workloads."""


def find_weights(path: Path) -> Path:
    """Return the `weights` folder of a checkpoint.

    Args:
        path: the folder above `weights/`, or a `checkpoints/` folder with exactly one such folder.

    Raises:
        TrainerError: there is no checkpoint, more than one, or an unfinished one.
    """
    if not path.is_dir():
        raise TrainerError(f"there is no checkpoint at {path}: no such folder.")
    candidates = [path] if (path / "weights").is_dir() else sorted(w.parent for w in path.glob("*/weights"))
    if not candidates:
        raise TrainerError(f"there is no checkpoint at {path}: it has no folder weights/.")
    if len(candidates) > 1:
        names = ", ".join(candidate.name for candidate in candidates)
        raise TrainerError(f"{path} holds {len(candidates)} checkpoints; name one of them: {names}.")
    checkpoint = candidates[0]
    if checkpoint.with_name(f"{checkpoint.name}-unfinished").exists():  # NeMo's mark while it saves
        raise TrainerError(
            f"the checkpoint {checkpoint} is unfinished: a run is still saving it, or died while saving; "
            f"load another one."
        )
    if not any((checkpoint / "weights").glob("*.distcp")):
        raise TrainerError(f"there is no checkpoint at {checkpoint}: weights/ has no *.distcp file.")
    return checkpoint / "weights"


def save_at_end(max_steps: int) -> Any:
    """Return NeMo's callback that saves weights and optimizer state once, after step `max_steps - 1`."""
    from nemo.lightning.pytorch.callbacks import ModelCheckpoint

    return ModelCheckpoint(
        every_n_train_steps=max_steps,
        save_top_k=1,
        save_last=False,
        monitor=None,
        save_on_train_epoch_end=True,
        save_optim_on_train_end=True,
        enable_version_counter=False,
        # The context is for rebuilding a model by class name; a load here builds it from run.json.
        always_save_context=False,
        save_context_on_train_end=False,
    )
