"""Megatron-Bridge and Megatron-LM: two lines a step, counted from 1.

`Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU`, then
`[2025-12-19 10:49:15] iteration        1/       1 | … | elapsed time per iteration (ms): 20289.1 | …`.
"""

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import ClassVar

from steptime.logs.formats.base import COUNT, NUMBER, StepLine, fields, real, records, whole
from steptime.logs.models import Step

_RECORD = re.compile(
    rb"GPU utilization:\s*(?P<tflops>" + NUMBER + rb")\s*(?:MODEL_)?TFLOP|"
    rb"iteration\s+(?P<iteration>" + COUNT + rb")\s*/\s*(?P<iterations>" + COUNT + rb")\s*\|"
)


class MegatronBridge:
    """Step lines of Megatron-Bridge; its iteration 1 is global step 0.

    The step time is the mean over the lines' logging interval, as printed in `elapsed time per iteration`.
    """

    name: ClassVar[str] = "megatron_bridge"
    words: ClassVar[tuple[bytes, ...]] = (b"elapsed time per iteration", b"GPU utilization: ")
    redraws: ClassVar[bool] = False

    def __init__(self) -> None:
        self._tflops: float | None = None

    def read(self, line: bytes) -> Iterator[StepLine]:
        """The steps of a line; the utilization that is printed before a step belongs to it."""
        for match, text in records(line, _RECORD):
            if match["tflops"] is not None:
                self._tflops = real(match["tflops"])
                continue
            values = fields(text)
            tflops = real(values.get(b"throughput per GPU (TFLOP/s/GPU)"))
            # Megatron leaves a loss that is no number out of its line.
            loss = (
                math.nan if whole(values.get(b"number of nan iterations")) else real(values.get(b"lm loss"))
            )
            step = Step(
                global_step=int(match["iteration"]) - 1,
                step_time_s=_seconds(real(values.get(b"elapsed time per iteration (ms)"))),
                loss=loss,
                learning_rate=real(values.get(b"learning rate")),
                global_batch_size=whole(values.get(b"global batch size")),
                consumed_samples=whole(values.get(b"consumed samples")),
                tflops_per_gpu=self._tflops if tflops is None else tflops,
            )
            self._tflops = None
            if step.global_step >= 0:
                last_step = int(match["iterations"]) - 1
                yield StepLine(step, text, last_step, grad_norm=real(values.get(b"grad norm")))


def _seconds(milliseconds: float | None) -> float | None:
    """Exactly the printed digits: 20289.1 ms are 20.2891 s, which a division by 1000 would not give."""
    return None if milliseconds is None else float(Decimal(repr(milliseconds)).scaleb(-3))
