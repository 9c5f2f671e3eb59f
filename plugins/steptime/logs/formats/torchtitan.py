"""torchtitan: `step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282 …`.

One line a rank, counted from 1, in colour on a terminal. It prints tokens per second and device but no step
time, and none is made up from it.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from steptime.logs.formats.base import COUNT, NUMBER, StepLine, gibibytes, real, records
from steptime.logs.models import Step

_RECORD = re.compile(rb"(?<![A-Za-z_])(?<!validate )step:\s*(" + COUNT + rb")\s")
_FIELD = re.compile(rb"(?<![A-Za-z_])([a-z_]+):\s*(" + NUMBER + rb")")
_MEMORY = re.compile(rb"memory:\s*(" + NUMBER + rb")GiB")


class TorchTitan:
    """Step lines of torchtitan; its step 1 is global step 0."""

    name: ClassVar[str] = "torchtitan"
    words: ClassVar[tuple[bytes, ...]] = (b"tps: ",)
    redraws: ClassVar[bool] = False

    def read(self, line: bytes) -> Iterator[StepLine]:
        """The steps of a line."""
        for match, text in records(line, _RECORD):
            number = int(match[1])
            if number == 0:
                continue
            values = dict(_FIELD.findall(text))
            memory = _MEMORY.search(text)
            step = Step(
                global_step=number - 1,
                loss=real(values.get(b"loss")),
                tflops_per_gpu=real(values.get(b"tflops")),
                peak_memory_bytes=gibibytes(memory[1]) if memory else None,
            )
            yield StepLine(step, text, grad_norm=real(values.get(b"grad_norm")))
