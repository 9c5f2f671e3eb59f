"""Profile selected steps and ranks: with Nsight Systems if it started the process, else with torch.

Nsight Systems (`nsys profile --capture-range=cudaProfilerApi`) writes its report itself; a variable of the
job script shows that it started the process. torch's profiler writes `torch_profile/rank<N>.json.gz`, for
Perfetto or chrome://tracing.
"""

import os
from pathlib import Path
from typing import Any

import torch

from trainer.loop import Loop, LoopCallback
from trainer.run import TRACE_FOLDER
from trainer.spec import ProfileWindow

NSIGHT_VARIABLE = "STEPTIME_NSIGHT"


class ProfileSteps(LoopCallback):
    """Starts and stops the profiler at the planned steps, on the planned ranks."""

    def __init__(self, window: ProfileWindow, output: Path):
        self.window = window
        self.folder = output / TRACE_FOLDER
        self.profiler: Any = None

    def on_step_start(self, loop: Loop) -> None:
        """Start the profiler before the first step of the window."""
        if loop.step == self.window.first_step and loop.rank in self.window.ranks:
            self.profiler = _Capture() if NSIGHT_VARIABLE in os.environ else torch.profiler.profile()
            self.profiler.start()

    def on_step_end(self, loop: Loop) -> None:
        """Stop the profiler after the last step of the window."""
        if loop.step == self.window.last_step:
            self._stop(loop)

    def on_train_end(self, loop: Loop) -> None:
        """Stop the profiler if the run ends within the window."""
        self._stop(loop)

    def _stop(self, loop: Loop) -> None:
        if self.profiler is None:
            return
        self.profiler.stop()
        if not isinstance(self.profiler, _Capture):
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"rank{loop.rank}.json.gz"
            self.profiler.export_chrome_trace(str(path))
            print(f"profile of rank {loop.rank}: {path}", flush=True)
        self.profiler = None


class _Capture:
    """The Nsight Systems capture range, with the names of torch's operations."""

    def __init__(self) -> None:
        self.names = torch.autograd.profiler.emit_nvtx()

    def start(self) -> None:
        """Begin the capture range."""
        torch.cuda.profiler.start()
        self.names.__enter__()

    def stop(self) -> None:
        """End the capture range."""
        self.names.__exit__(None, None, None)
        torch.cuda.profiler.stop()
