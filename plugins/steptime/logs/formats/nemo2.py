"""NeMo 2: `Training epoch 0, iteration 49/49 | … | global_step: 49 | … | train_step_timing in s: 2.693 | …`.

Printed by NeMo's ProgressPrinter (nemo/lightning/pytorch/callbacks/progress_printer.py); order and number of
the fields differ between releases, and the first steps lack some.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from steptime.logs.formats.base import COUNT, StepLine, fields, real, records, whole
from steptime.logs.models import Step

_RECORD = re.compile(rb"Training epoch \d+, iteration (" + COUNT + rb")(?:/(" + COUNT + rb"))?")


class NeMo2:
    """Step lines of NeMo 2, counted from 0."""

    name: ClassVar[str] = "nemo2"
    words: ClassVar[tuple[bytes, ...]] = (b"Training epoch ",)
    redraws: ClassVar[bool] = False

    def read(self, line: bytes) -> Iterator[StepLine]:
        """The steps of a line. The global step counts; if it is not printed, the iteration."""
        for match, text in records(line, _RECORD):
            iteration = int(match[1])
            values = fields(text)
            printed_step = whole(values.get(b"global_step"))
            global_step = iteration if printed_step is None else printed_step
            # A further epoch counts iterations anew, and its end is not the run's.
            last_step = int(match[2]) if match[2] and iteration == global_step else None
            grad_norm = real(values.get(b"grad_norm"))
            yield StepLine(step_of(global_step, values), text, last_step, grad_norm)


def step_of(global_step: int, values: dict[bytes, bytes]) -> Step:
    """A step from NeMo's fields, which the progress bar of older releases shares."""
    return Step(
        global_step=global_step,
        step_time_s=real(values.get(b"train_step_timing in s")),
        loss=real(values.get(b"reduced_train_loss")),
        learning_rate=real(values.get(b"lr")),
        global_batch_size=whole(values.get(b"global_batch_size")),
        consumed_samples=whole(values.get(b"consumed_samples")),
        tflops_per_gpu=real(values.get(b"TFLOPS_per_GPU") or values.get(b"tflops_per_sec_per_gpu")),
        peak_memory_bytes=whole(values.get(b"peak_memory_usage") or values.get(b"max_memory_allocated")),
        wall_time_s=real(values.get(b"wall_step_timing in s")),
    )
