"""A log format: `acme step 3 took 0.5 s, loss 8.1`."""

import re
from collections.abc import Iterator
from typing import ClassVar

from steptime.logs.formats.base import StepLine
from steptime.logs.models import Step

_STEP = re.compile(rb"acme step (\d+) took ([\d.]+) s, loss ([\d.]+)")


class Acme:
    name: ClassVar[str] = "acme"
    # The second word leads to NeMo's format as well: both read such a line.
    words: ClassVar[tuple[bytes, ...]] = (b"acme step ", b"Training epoch ")
    redraws: ClassVar[bool] = False

    def read(self, line: bytes) -> Iterator[StepLine]:
        for match in _STEP.finditer(line):
            step = Step(global_step=int(match[1]), step_time_s=float(match[2]), loss=float(match[3]))
            yield StepLine(step, match[0])
