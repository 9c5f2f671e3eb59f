"""Callbacks of NeMo's training loop: step lines, seeds, and steptime's callbacks as Lightning calls them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback
from megatron.core import parallel_state, tensor_parallel
from nemo.lightning.pytorch.callbacks import ProgressPrinter
from nemo.lightning.pytorch.callbacks.progress_bar import MegatronProgressBar
from nemo.utils.exp_manager import TimingCallback
from torch import nn

from trainer.loop import LoopCallback
from trainer.progress import Progress
from trainer.run import TFLOPS_FIELD, WALL_TIME_FIELD
from trainer.spec import PlannedRun


@dataclass(frozen=True)
class NemoLoop:
    """NeMo's training loop as a `Loop`."""

    trainer: Any
    pl_module: Any
    timing: TimingCallback
    step: int

    @property
    def rank(self) -> int:
        """This process's rank."""
        return int(self.trainer.global_rank)

    @property
    def chunks(self) -> Sequence[nn.Module]:
        """The parts of the model on this rank, one for each of its pipeline stages."""
        return list(self.trainer.strategy.megatron_parallel)

    @property
    def config(self) -> Any:
        """Megatron's TransformerConfig of the model."""
        return self.pl_module.config

    @property
    def consumed_samples(self) -> int:
        """The number of samples consumed before training begins."""
        return int(self.trainer.datamodule.data_sampler.init_consumed_samples)

    @property
    def loss(self) -> float:
        """The loss that the step's line shows."""
        return float(self.trainer.callback_metrics["reduced_train_loss"])

    @property
    def learning_rate(self) -> float:
        """The step's learning rate."""
        return float(self.trainer.callback_metrics["lr"])

    @property
    def step_time_s(self) -> float:
        """NeMo's own time of the step in seconds."""
        return float(self.timing.timer["train_step_timing"])

    def sharded_state_dicts(self) -> list[dict[str, Any]]:
        """Return Megatron's description of all weights on this rank."""
        return [self.trainer.strategy.megatron_parallel.sharded_state_dict()]


class InNemo(Callback):
    """Calls one of steptime's callbacks from NeMo's training loop."""

    def __init__(self, callback: LoopCallback, timing: TimingCallback):
        self.callback = callback
        self.timing = timing

    def _loop(self, trainer: Any, pl_module: Any, step: int) -> NemoLoop:
        return NemoLoop(trainer, pl_module, self.timing, step)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Pass on that training starts."""
        self.callback.on_train_start(self._loop(trainer, pl_module, trainer.global_step))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Pass on that a step begins."""
        self.callback.on_step_start(self._loop(trainer, pl_module, trainer.global_step))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass on that a step has ended."""
        self.callback.on_step_end(self._loop(trainer, pl_module, trainer.global_step - 1))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Pass on that training has ended."""
        self.callback.on_train_end(self._loop(trainer, pl_module, trainer.global_step - 1))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Pass on that an exception ends the training."""
        self.callback.on_exception(exception)


class WallTime(Callback):
    """Logs each step's wall time, which `Records` has taken before.

    NeMo's own step time ends before the GPU has finished the step, and omits the time between steps.
    """

    def __init__(self, progress: Progress):
        self.progress = progress

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the wall time of the step that has just ended; the first step has none."""
        wall_time_s = self.progress.wall_time_s
        if wall_time_s is not None:
            pl_module.log(
                WALL_TIME_FIELD, wall_time_s, on_step=True, on_epoch=False, batch_size=1, prog_bar=True
            )


class StepLines(ProgressPrinter):
    """Prints NeMo's step lines, but not Megatron's timers.

    Only rank 0 prints. Megatron's timers gather from all ranks, so rank 0's gather would be paired with the
    other ranks' next collective call, and the run would hang at the first checkpoint.
    """

    def log_megatron_timers(self, timers: Any) -> None:
        """Do nothing, instead of printing Megatron's timers."""


class StepBar(MegatronProgressBar):
    """NeMo's progress bar, redrawn once a step's numbers are known, as NeMo 1 did.

    NeMo 2 sets the numbers after it has drawn the bar, which would show those of the previous step.
    """

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *results: Any, **named_results: Any) -> None:
        """Redraw the bar with the step's numbers."""
        super().on_train_batch_end(trainer, pl_module, *results, **named_results)
        self.train_progress_bar.refresh()


class ModelFlops(Callback):
    """Logs each step's model TFLOPS per GPU, in the field that NeMo's own callback for this uses.

    The FLOPs per sample are the plan's (`PlannedRun.model_flops`), because NeMo's callback has other
    formulas. If the plan has none, nothing is logged.
    """

    def __init__(self, run: PlannedRun, timing: TimingCallback):
        self.run = run
        self.timing = timing

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the FLOP rate of the step that has just ended."""
        tflops = self.run.tflops_per_gpu(float(self.timing.timer["train_step_timing"]))
        if tflops is not None:
            pl_module.log(TFLOPS_FIELD, tflops, on_step=True, on_epoch=False, batch_size=1, prog_bar=True)


class ModelParallelSeed(Callback):
    """Seeds Megatron's random states from the run's seed: NeMo uses a fixed seed, and only on GPUs."""

    STAGES_APART = 100
    """Difference between the seeds of successive pipeline stages, as in NeMo (nemo.lightning.megatron_init).
    With equal seeds the stages would begin with equal weights."""

    def __init__(self, seed: int):
        self.seed = seed

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Seed before the model is built and its weights are drawn."""
        stage_rank = parallel_state.get_pipeline_model_parallel_rank()
        tensor_parallel.model_parallel_cuda_manual_seed(self.seed + self.STAGES_APART * stage_rank)
