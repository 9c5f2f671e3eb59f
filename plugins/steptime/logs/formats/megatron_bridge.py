"""Megatron-Bridge and Megatron-LM: two lines a step, counted from 1.

`Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU`, then
`[2025-12-19 10:49:15] iteration        1/       1 | … | elapsed time per iteration (ms): 20289.1 | …`.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from steptime.logs.formats.base import COUNT, NUMBER, StepLine, real, records, whole
from steptime.logs.models import Step

_RECORD = re.compile(
    rb"GPU utilization:\s*(?P<tflops>" + NUMBER + rb")\s*(?:MODEL_)?TFLOP|"
    rb"iteration\s+(?P<iteration>" + COUNT + rb")\s*/\s*(?P<iterations>" + COUNT + rb")\s*\|"
)
_NUMBER = re.compile(rb"\s*(" + NUMBER + rb")")
_ELAPSED_MS = b"elapsed time per iteration (ms)"


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
            values = _values(text)
            tflops = real(values.get(b"throughput per GPU (TFLOP/s/GPU)"))
            elapsed_ms = real(values.get(_ELAPSED_MS))
            step = Step(
                global_step=int(match["iteration"]) - 1,
                step_time_s=None if elapsed_ms is None else elapsed_ms / 1000,
                loss=real(values.get(b"lm loss")),
                learning_rate=real(values.get(b"learning rate")),
                global_batch_size=whole(values.get(b"global batch size")),
                consumed_samples=whole(values.get(b"consumed samples")),
                tflops_per_gpu=self._tflops if tflops is None else tflops,
            )
            self._tflops = None
            if step.global_step >= 0:
                last_step = int(match["iterations"]) - 1
                yield StepLine(step, text, last_step, grad_norm=real(values.get(b"grad norm")))


def _values(text: bytes) -> dict[bytes, bytes]:
    """The numbers of `| name with blanks: number |` by name."""
    values = {}
    for part in text.split(b"|"):
        name, _, value = part.partition(b":")
        if number := _NUMBER.match(value):
            values[name.strip()] = number[1]
    return values
