"""The training's progress, which the end record, the watchdog and the log lines use."""

import resource
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer.spec import PlannedRun

REMEMBERED_STEPS = 50
"""Number of recent steps from whose wall times the median is computed."""


def peak_resident_bytes(*_: Any) -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


@dataclass(frozen=True)
class CheckpointTransfer:
    """The size and duration of one checkpoint save or load."""

    kind: str
    """`save` or `load`."""
    size_bytes: int
    duration_s: float
    """Seconds until the checkpoint was complete."""
    blocked_s: float
    """Seconds of these for which training waited; less than all in an asynchronous save."""

    def as_record(self) -> dict[str, Any]:
        """Return the transfer as a JSON record, with its rate in 10⁹ bytes per second."""
        rate = self.size_bytes / self.duration_s / 1e9 if self.duration_s else None
        return {**asdict(self), "gb_per_s": rate}


@dataclass
class Progress:
    """The training's progress so far; callbacks update it, and any thread may read it."""

    run: PlannedRun | None = None
    """The plan; None until it has been read."""
    imports_s: float | None = None
    """Seconds for the import of NeMo; None if not measured."""
    step: int | None = None
    """The last global step that has ended; None before one has."""
    steps_trained: int = 0
    training_began_at: float | None = None
    """When training began, on the clock of `time.perf_counter`."""
    notes_steps: bool = True
    """Whether the end of each step is recorded here; with NeMo 1 it is not."""
    moved_at: float = field(default_factory=time.perf_counter)
    """When the last step ended; before the first one, when the program started."""
    wall_time_s: float | None = None
    """Seconds between the ends of the last two steps; None before there are two."""
    wall_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_STEPS))
    own_peak_memory: Callable[[], int] = peak_resident_bytes
    """Returns the peak memory of this rank in bytes: of the GPU, or of the process on the CPU."""
    highest_memory_bytes: int | None = None
    """Highest peak memory of all ranks in bytes; None until the ranks have compared theirs at the end."""
    node_names: list[str] = field(default_factory=list)
    checkpoints: list[CheckpointTransfer] = field(default_factory=list)

    def step_ended(self, step: int) -> None:
        """Record that this global step has ended now, and its wall time."""
        now = time.perf_counter()
        if self.steps_trained:
            self.wall_time_s = now - self.moved_at
            self.wall_times_s.append(self.wall_time_s)
        self.moved_at = now
        self.step = step
        self.steps_trained += 1

    @property
    def last_step_ended(self) -> bool:
        """Whether all steps have ended, so that only saving and shutdown are left."""
        return self.run is not None and self.step == self.run.max_steps - 1

    @property
    def transfers_checkpoint(self) -> bool:
        """Whether a checkpoint may be loading (before the first step) or saving (after the last)."""
        if self.run is None:
            return False
        loads = self.run.mode == "checkpoint_load" and not self.steps_trained
        return loads or (self.run.mode == "checkpoint_save" and self.last_step_ended)

    @property
    def usual_step_s(self) -> float | None:
        """The median step time in seconds over recent steps; None before two steps have ended."""
        times = list(self.wall_times_s)  # at once: another thread may append
        return statistics.median(times) if times else None
