"""Train as the CPU's launcher does, but with transformer layers that take twice as long in the last rank.

A stand-in for nvidia-smi has GPUs, of which the fourth is slowed down by its heat.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trainer import cpu_ranks
from trainer.ending import Ending
from trainer.launch import Launch

_prepare = cpu_ranks.prepare_training


def _slow_down() -> None:
    from megatron.core.transformer.transformer_layer import TransformerLayer

    forward = TransformerLayer.forward

    def twice_as_long(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        result = forward(self, *args, **kwargs)
        end = time.thread_time()
        while time.thread_time() - end < end - begin:
            pass
        return result

    TransformerLayer.forward = twice_as_long


def _with_slow_rank(*arguments: Any) -> cpu_ranks.Train:
    train = _prepare(*arguments)

    def train_rank(launch: Launch, ending: Ending) -> None:
        if launch.rank == launch.world_size - 1:
            _slow_down()
        train(launch, ending)

    return train_rank


if __name__ == "__main__":
    stand_ins = Path(__file__).parents[2] / "stand_ins" / "gpu_node"
    os.environ["PATH"] = f"{stand_ins}:{os.environ['PATH']}"
    os.environ["STAND_IN_GPU_FAULTS"] = json.dumps({"*": "throttled"})
    cpu_ranks.prepare_training = _with_slow_rank
    sys.exit(cpu_ranks.main())
