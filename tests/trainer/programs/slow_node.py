"""Train as the CPU's launcher does, but with transformer layers that take more CPU time in the last rank.

Most of a layer's time is counted out: what its matrices take depends on what else the machine does. A
stand-in for nvidia-smi has GPUs, of which the fourth is slowed down by its heat.
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

OTHER_RANKS_S, SLOW_RANK_S = 0.02, 0.06
_prepare = cpu_ranks.prepare_training


def _lengthen_layers(seconds: float) -> None:
    """Let each layer's forward pass use this much more CPU time."""
    from megatron.core.transformer.transformer_layer import TransformerLayer

    forward = TransformerLayer.forward

    def longer(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = forward(self, *args, **kwargs)
        end = time.thread_time()
        while time.thread_time() - end < seconds:
            pass
        return result

    TransformerLayer.forward = longer


def _with_slow_rank(*arguments: Any) -> cpu_ranks.Train:
    train = _prepare(*arguments)

    def train_rank(launch: Launch, ending: Ending) -> None:
        _lengthen_layers(SLOW_RANK_S if launch.rank == launch.world_size - 1 else OTHER_RANKS_S)
        train(launch, ending)

    return train_rank


if __name__ == "__main__":
    stand_ins = Path(__file__).parents[2] / "stand_ins" / "gpu_node"
    os.environ["PATH"] = f"{stand_ins}:{os.environ['PATH']}"
    os.environ["STAND_IN_GPU_FAULTS"] = json.dumps({"*": "throttled"})
    cpu_ranks.prepare_training = _with_slow_rank
    sys.exit(cpu_ranks.main())
