"""Like Megatron-LM's `pretrain_gpt.py`, whose loop is in no package: it imports modules beside it.

It prints Megatron-LM's lines, and trains nothing.
"""

import os
import sys

from gpt_builders import batch_of
from model_provider import loss_of

[steps] = [int(text.partition("=")[2]) for text in sys.argv if text.startswith("--train-iters=")]
ranks = int(os.environ["WORLD_SIZE"])
if int(os.environ["RANK"]) == ranks - 1:  # as Megatron-LM, the last rank prints
    for step in range(1, steps + 1):
        print(
            f" [2026-11-28 18:15:09.{step:06}] iteration {step:8}/{steps:8} | consumed samples: "
            f"{step * batch_of(ranks):12} | elapsed time per iteration (ms): 500.0 | "
            f"learning rate: 9.000000E-05 | global batch size: {batch_of(ranks):5} | "
            f"lm loss: {loss_of(step):.6E} | loss scale: 1.0 | "
            "grad norm: 0.616 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            flush=True,
        )
