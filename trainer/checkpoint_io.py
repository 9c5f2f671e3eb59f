"""Measure the size and duration of checkpoints around NeMo's own saving and loading.

The size is that of the files in `weights/` after every rank has written. The times are rank 0's, which waits
for the other ranks. A file that several data-parallel ranks load counts once.
"""

import time
from pathlib import Path
from typing import Any

from nemo.lightning.io.pl import ckpt_to_weights_subdir
from nemo.utils.callbacks.dist_ckpt_io import AsyncFinalizableCheckpointIO

from trainer.progress import CheckpointTransfer, Progress


class MeasuredCheckpointIO(AsyncFinalizableCheckpointIO):
    """NeMo's checkpoint IO, which records each save and load in `progress`.

    An asynchronous save is complete when NeMo finds, after a step or at the end, that every rank has written.
    Only rank 0 gets a `progress`; the other ranks record nothing and do not look at the files.
    """

    def __init__(self, checkpoint_io: Any, progress: Progress | None):
        self.asynchronous = isinstance(checkpoint_io, AsyncFinalizableCheckpointIO)
        super().__init__(checkpoint_io.checkpoint_io if self.asynchronous else checkpoint_io)
        self.progress = progress
        self.under_way: list[tuple[Any, float, float]] = []
        """Path, start (`time.perf_counter`) and blocked seconds of each asynchronous save under way."""

    def save_checkpoint(self, checkpoint: Any, path: Any, *arguments: Any, **options: Any) -> None:
        """Save a checkpoint and record its duration and size; an asynchronous save is only started here."""
        began_at = time.perf_counter()
        if self.asynchronous:
            super().save_checkpoint(checkpoint, path, *arguments, **options)
            self.under_way.append((path, began_at, time.perf_counter() - began_at))
        else:
            self.checkpoint_io.save_checkpoint(checkpoint, path, *arguments, **options)
            self._record("save", path, began_at)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        """Load a checkpoint and record its duration and size."""
        began_at = time.perf_counter()
        loaded = super().load_checkpoint(path, *arguments, **options)
        self._record("load", path, began_at)
        return loaded

    def maybe_finalize_save_checkpoint(self, blocking: bool = False) -> bool:
        """Finalize and record the asynchronous saves that are complete; return whether there was one.

        If `blocking`, wait until all are complete.
        """
        finalized = bool(super().maybe_finalize_save_checkpoint(blocking))
        while len(self.under_way) > self.async_calls_queue.get_num_unfinalized_calls():
            self._record("save", *self.under_way.pop(0))
        return finalized

    def _record(self, kind: str, path: Any, began_at: float, blocked_s: float | None = None) -> None:
        """Record a save or load that ends now; training was blocked for all of it if `blocked_s` is None."""
        if self.progress is None:
            return
        duration_s = time.perf_counter() - began_at
        weights = Path(ckpt_to_weights_subdir(path, is_saving=kind == "save"))
        size = sum(file.stat().st_size for file in weights.rglob("*") if file.is_file())
        blocked_s = duration_s if blocked_s is None else blocked_s
        transfer = CheckpointTransfer(kind, size, round(duration_s, 3), round(blocked_s, 3))
        self.progress.checkpoints.append(transfer)
