"""How large checkpoints are and how fast they go: measured around NeMo's own saving and loading."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from nemo.lightning.io.pl import ckpt_to_weights_subdir

from trainer.progress import CheckpointTransfer, Progress


class MeasuredCheckpointIO(_WrappingCheckpointIO):
    """Notes the size and the time of each checkpoint; all else is the wrapped one's.

    The size is that of the files in `weights/` once every rank has written, the time this rank's, which
    waits for the others. Where ranks of data parallelism load the same files, these count once.
    """

    def __init__(self, checkpoint_io: Any, progress: Progress):
        super().__init__(checkpoint_io)
        self.progress = progress

    def save_checkpoint(self, checkpoint: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        """Save, and note how that went."""
        return self._noted(
            "save", path, lambda: self.checkpoint_io.save_checkpoint(checkpoint, path, *arguments, **options)
        )

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> Any:
        """Load, and note how that went."""
        return self._noted(
            "load", path, lambda: self.checkpoint_io.load_checkpoint(path, *arguments, **options)
        )

    def _noted(self, kind: str, path: Any, transfer: Callable[[], Any]) -> Any:
        began_at = time.perf_counter()
        result = transfer()
        duration_s = time.perf_counter() - began_at
        weights = Path(ckpt_to_weights_subdir(path, is_saving=kind == "save"))
        size = sum(file.stat().st_size for file in weights.rglob("*") if file.is_file())
        self.progress.checkpoints.append(CheckpointTransfer(kind, size, round(duration_s, 3)))
        return result
