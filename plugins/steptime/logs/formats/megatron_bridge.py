"""Megatron-Bridge and Megatron-LM: two lines a step, counted from 1.

`Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU`, then
`[2025-12-19 10:49:15] iteration        1/       1 | … | elapsed time per iteration (ms): 20289.1 | …`.
The step time is the mean over the lines' logging interval; the utilization belongs to the step that follows.
"""

import re

from steptime.logs.formats.base import COUNT, NUMBER, LogFormat

MEGATRON_BRIDGE = LogFormat(
    name="megatron_bridge",
    words=(b"elapsed time per iteration", b"GPU utilization: "),
    start=re.compile(
        rb"GPU utilization:\s*(?P<tflops_per_gpu>" + NUMBER + rb")\s*(?:MODEL_)?TFLOP|"
        rb"iteration\s+(?P<iteration>" + COUNT + rb")\s*/\s*(?P<iterations>" + COUNT + rb")\s*\|"
    ),
    fields={
        b"elapsed time per iteration (ms)": "step_time_ms",
        b"lm loss": "loss",
        b"learning rate": "learning_rate",
        b"global batch size": "global_batch_size",
        b"consumed samples": "consumed_samples",
        b"throughput per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
        b"grad norm": "grad_norm",
        b"number of nan iterations": "nan_iterations",
    },
    first=1,
)
