"""NeMo 2: `Training epoch 0, iteration 49/49 | … | global_step: 49 | … | train_step_timing in s: 2.693 | …`.

Printed by NeMo's ProgressPrinter (nemo/lightning/pytorch/callbacks/progress_printer.py); order and number of
the fields differ between releases, and the first steps lack some. The global step counts; if it is not
printed, the iteration.
"""

import re

from steptime.logs.formats.base import COUNT, LogFormat

FIELDS = {
    b"global_step": "global_step",
    b"train_step_timing in s": "step_time_s",
    b"reduced_train_loss": "loss",
    b"lr": "learning_rate",
    b"global_batch_size": "global_batch_size",
    b"consumed_samples": "consumed_samples",
    b"TFLOPS_per_GPU": "tflops_per_gpu",
    b"tflops_per_sec_per_gpu": "tflops_per_gpu",
    b"peak_memory_usage": "peak_memory_bytes",
    b"max_memory_allocated": "peak_memory_bytes",
    b"wall_step_timing in s": "wall_time_s",
}

NEMO2 = LogFormat(
    name="nemo2",
    words=(b"Training epoch ",),
    start=re.compile(
        rb"Training epoch \d+, iteration (?P<iteration>" + COUNT + rb")(?:/(?P<iterations>" + COUNT + rb"))?"
    ),
    fields=FIELDS | {b"grad_norm": "grad_norm"},
    counters=("global_step", "iteration"),
)
