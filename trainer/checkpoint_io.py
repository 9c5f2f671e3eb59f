"""Measure the size and duration of checkpoints around NeMo's own saving and loading.

The size is that of the files in `weights/` after every rank has written. The times are rank 0's, which waits
for the other ranks. A file that several data-parallel ranks load counts once.
"""

import time
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from nemo.lightning.io.pl import ckpt_to_weights_subdir
from nemo.utils.callbacks.dist_ckpt_io import AsyncFinalizableCheckpointIO

from trainer.progress import CheckpointTransfer, Progress


def measured(checkpoint_io: Any, progress: Progress | None) -> Any:
    """Return NeMo's checkpoint IO, extended to record each checkpoint in `progress`.

    Pass None on all ranks but rank 0: they record nothing, and so do not look at the files.
    """
    if isinstance(checkpoint_io, AsyncFinalizableCheckpointIO):
        return _AsyncIO(checkpoint_io.checkpoint_io, progress)
    return _SyncIO(checkpoint_io, progress)


class _SyncIO(CheckpointIO):
    """Record saves and loads that are complete when the call returns.

    Everything that NeMo's checkpoint IO has beyond Lightning's interface is passed through.
    """

    def __init__(self, checkpoint_io: Any, progress: Progress | None):
        super().__init__()
        self.checkpoint_io = checkpoint_io
        self.progress = progress

    def __getattr__(self, name: str) -> Any:
        if name == "checkpoint_io":  # not set yet
            raise AttributeError(name)
        return getattr(self.checkpoint_io, name)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        self.checkpoint_io.remove_checkpoint(path)

    def teardown(self) -> None:
        """Tear down the wrapped checkpoint IO."""
        self.checkpoint_io.teardown()

    def save_checkpoint(self, checkpoint: Any, path: Any, *arguments: Any, **options: Any) -> None:
        """Save, and note how that went."""
        began_at = time.perf_counter()
        self.checkpoint_io.save_checkpoint(checkpoint, path, *arguments, **options)
        _note(self.progress, "save", path, began_at)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        """Load, and note how that went."""
        began_at = time.perf_counter()
        loaded = self.checkpoint_io.load_checkpoint(path, *arguments, **options)
        _note(self.progress, "load", path, began_at)
        return loaded


class _AsyncIO(AsyncFinalizableCheckpointIO):
    """A save is whole when NeMo finds, after a step or at the end, that every rank has written."""

    def __init__(self, checkpoint_io: Any, progress: Progress | None):
        super().__init__(checkpoint_io)
        self.progress = progress
        self.under_way: list[tuple[Any, float, float]] = []
        """Of each save its path, when it began, and how long training waited for it."""

    def save_checkpoint(self, checkpoint: Any, path: Any, *arguments: Any, **options: Any) -> None:
        """Begin to save."""
        began_at = time.perf_counter()
        super().save_checkpoint(checkpoint, path, *arguments, **options)
        self.under_way.append((path, began_at, time.perf_counter() - began_at))

    def maybe_finalize_save_checkpoint(self, blocking: bool = False) -> bool:
        """Note the saves that are whole now; saves end in the order in which they began."""
        finalized = bool(super().maybe_finalize_save_checkpoint(blocking))
        while len(self.under_way) > self.async_calls_queue.get_num_unfinalized_calls():
            path, began_at, blocked_s = self.under_way.pop(0)
            _note(self.progress, "save", path, began_at, blocked_s)
        return finalized


def _note(
    progress: Progress | None, kind: str, path: Any, began_at: float, blocked_s: float | None = None
) -> None:
    if progress is None:
        return
    duration_s = time.perf_counter() - began_at
    weights = Path(ckpt_to_weights_subdir(path, is_saving=kind == "save"))
    size = sum(file.stat().st_size for file in weights.rglob("*") if file.is_file())
    blocked_s = duration_s if blocked_s is None else blocked_s
    progress.checkpoints.append(CheckpointTransfer(kind, size, round(duration_s, 3), round(blocked_s, 3)))
