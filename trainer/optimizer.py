"""The optimizer: Adam as in NeMo's pre-training recipes, its schedule independent of the run's length."""

import torch
from megatron.core.optimizer import OptimizerConfig
from nemo.lightning.pytorch.optim import MegatronOptimizerModule
from nemo.lightning.pytorch.optim.lr_scheduler import WarmupPolicyScheduler

LEARNING_RATE = 3e-4
WARMUP_STEPS = 10


def optimizer(dtype: str, *, distributed: bool) -> MegatronOptimizerModule:
    """Megatron's Adam: linear warm-up, then a constant rate.

    A schedule that anneals over the run's steps would give a run of 20 steps and a run of 22 different rates,
    and a resumed run could not be compared with an uninterrupted one.
    """
    return MegatronOptimizerModule(
        config=OptimizerConfig(
            optimizer="adam",
            lr=LEARNING_RATE,
            weight_decay=0.1,
            adam_beta1=0.9,
            adam_beta2=0.95,
            adam_eps=1e-5,
            clip_grad=1.0,
            bf16=dtype != "fp32",
            params_dtype=torch.float32 if dtype == "fp32" else torch.bfloat16,
            use_distributed_optimizer=distributed,
        ),
        lr_scheduler=WarmupPolicyScheduler(warmup_steps=WARMUP_STEPS),
    )
