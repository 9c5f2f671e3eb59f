"""Megatron's optimizer with the trainer's hyperparameters."""

from typing import Any

from megatron.core.optimizer import OptimizerConfig
from nemo.lightning.pytorch.optim import MegatronOptimizerModule
from nemo.lightning.pytorch.optim.lr_scheduler import WarmupPolicyScheduler

from trainer import hyperparameters
from trainer.spec import PlannedRun
from trainer.versions import accepted


def optimizer(run: PlannedRun, *, distributed: bool) -> MegatronOptimizerModule:
    """Megatron's Adam: linear warm-up, then a constant rate."""
    dtype = run.recipe.dtype
    precision_aware: dict[str, Any] = {}
    if run.settings.use_precision_aware_optimizer:
        precision_aware = accepted(OptimizerConfig, use_precision_aware_optimizer=True)
    return MegatronOptimizerModule(
        config=OptimizerConfig(
            optimizer="adam",
            lr=hyperparameters.highest_rate(run),
            weight_decay=hyperparameters.WEIGHT_DECAY,
            adam_beta1=hyperparameters.BETAS[0],
            adam_beta2=hyperparameters.BETAS[1],
            adam_eps=hyperparameters.EPSILON,
            clip_grad=hyperparameters.CLIP_GRADIENT,
            bf16=dtype != "fp32",
            use_distributed_optimizer=distributed,
            **precision_aware,
        ),
        lr_scheduler=WarmupPolicyScheduler(warmup_steps=hyperparameters.warmup_steps(run)),
    )
