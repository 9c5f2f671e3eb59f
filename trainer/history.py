"""Each step's loss and time with all their digits, while the lines of the log have four."""

import json
from typing import TextIO


def write_step(
    file: TextIO,
    step: int,
    *,
    loss: float,
    learning_rate: float,
    step_time_s: float,
    wall_time_s: float | None,
) -> None:
    """Write one JSON line; the first step has no wall time, as none ended before it."""
    line = {
        "global_step": step,
        "loss": loss,
        "learning_rate": learning_rate,
        "step_time_s": step_time_s,
        "wall_time_s": wall_time_s,
    }
    print(json.dumps(line), file=file, flush=True)
