"""Callbacks of NeMo's training loop: step lines, seeds, steptime's records, and a stop at NaN."""

import time
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import Callback
from megatron.core import parallel_state, tensor_parallel
from nemo.lightning.pytorch.callbacks import ProgressPrinter
from nemo.lightning.pytorch.callbacks.progress_bar import MegatronProgressBar
from nemo.utils.exp_manager import TimingCallback

from trainer import gpu_samples, ranks, records
from trainer.ending import Ending
from trainer.errors import TrainerError, check_loss
from trainer.launch import Launch
from trainer.progress import Progress
from trainer.records import write_step
from trainer.run import TFLOPS_FIELD, WALL_TIME_FIELD
from trainer.spec import PlannedRun


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


class FiniteLoss(Callback):
    """Ends the training at the first step whose loss is NaN or infinite.

    Only rank 0 checks. It has the loss of all ranks and writes the log; another rank could end the run before
    that step's line is written.
    """

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the loss that the step line shows."""
        check_loss(trainer.global_step - 1, float(trainer.callback_metrics["reduced_train_loss"]))


class History(Callback):
    """Writes each step's loss and times with all digits to a file of JSON lines; NeMo logs four digits."""

    def __init__(self, path: Path, timing: TimingCallback, progress: Progress):
        self.timing = timing
        self.progress = progress
        self.path = path
        self.file: TextIO | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Open the file. The constructor cannot: NeMo's Trainer copies its callbacks."""
        self.file = self.path.open("w", encoding="utf-8")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write one line for the step that has just ended."""
        if self.file:
            write_step(
                self.file,
                trainer.global_step - 1,
                loss=float(trainer.callback_metrics["reduced_train_loss"]),
                learning_rate=float(trainer.callback_metrics["lr"]),
                step_time_s=float(self.timing.timer["train_step_timing"]),
                wall_time_s=self.progress.wall_time_s,
            )

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the file."""
        if self.file:
            self.file.close()


class ExpertSpread(Callback):
    """Refuses, on the CPU, to load a checkpoint that was saved with another expert parallelism.

    On the CPU experts that are spread over ranks have their own optimizer, whose saved state fits no other
    number of ranks.
    """

    def __init__(self, run: PlannedRun):
        self.run = run
        self.ranks = run.recipe.parallelism.expert or 1

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Store the expert parallelism in the checkpoint."""
        checkpoint["expert_parallel"] = self.ranks

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Raise TrainerError if the checkpoint has another expert parallelism."""
        saved = checkpoint.get("expert_parallel", self.ranks)
        if saved != self.ranks:
            raise TrainerError(
                f"the checkpoint {self.run.checkpoint_path} was saved with expert parallel {saved}, but this "
                f"run has {self.ranks}: on the CPU, load it in a run with expert parallel {saved}."
            )


class Records(Callback):
    """Prints the record `steptime.start`, logs wall times, and collects data for `steptime.result`.

    After a checkpoint load it also prints the record `steptime.resumed`.
    """

    def __init__(self, run: PlannedRun, device: str, ending: Ending):
        self.run = run
        self.device = device
        self.ending = ending
        self.progress = ending.progress

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the start record.

        Raises TrainerError if the loaded checkpoint continues at another step than planned.
        """
        self.progress.node_names = ranks.node_names()
        started = records.started(
            self.run,
            ranks.parallelism(),
            self.device,
            node_names=self.progress.node_names,
            numa_bound_ranks=ranks.numa_bound(),
            parameters=ranks.count_parameters(pl_module),
            imports_s=self.progress.imports_s,
        )
        if trainer.is_global_zero:
            records.emit("start", started)
        if self.run.checkpoint_path is not None:
            self._resumed(trainer)
        self.progress.training_began_at = time.perf_counter()

    def _resumed(self, trainer: Any) -> None:
        if trainer.global_step != self.run.first_step:
            raise TrainerError(
                f"the checkpoint {self.run.checkpoint_path} continues at step {trainer.global_step}, "
                f"but the plan's first_step is {self.run.first_step}: load one that continues there."
            )
        if trainer.is_global_zero:
            records.emit(
                "resumed",
                {
                    "checkpoint_path": self.run.checkpoint_path,
                    "global_step": trainer.global_step,
                    "consumed_samples": trainer.datamodule.data_sampler.init_consumed_samples,
                },
            )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the step for the watchdog and for `steptime.result`, and log its wall time.

        NeMo's own step time ends before the GPU has finished the step, and omits the time between steps.
        With the step log `bar` the wall time is recorded but not logged.
        """
        self.progress.step_ended(trainer.global_step - 1)
        wall_time_s = self.progress.wall_time_s
        if wall_time_s is not None and self.run.recipe.step_log != "bar":
            pl_module.log(
                WALL_TIME_FIELD, wall_time_s, on_step=True, on_epoch=False, batch_size=1, prog_bar=True
            )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Determine the largest peak memory of any rank."""
        self.progress.highest_memory_bytes = int(ranks.highest(self.progress.own_peak_memory()))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record immediately why training ends early: shutting down the ranks may take long, or hang."""
        self.ending.failed(exception)


class GpuSamples(Callback):
    """Starts a process on each node that samples its GPUs; rank 0 prints the record of all nodes."""

    def __init__(self, run: PlannedRun, launch: Launch, output: Path):
        self.steps = gpu_samples.sampled_steps(run)
        self.launch = launch
        self.output = output
        self.process: gpu_samples.SamplingProcess | None = None
        """The sampling process, on the first rank of a node."""
        self.began_at: float | None = None
        """When the first of the steps to summarize began, in Unix time."""
        self.ended_at: float | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the sampling process, on the first rank of each node."""
        if self.launch.rank % self.launch.local_world_size == 0:
            self.process = gpu_samples.SamplingProcess(self.output, self.launch.local_world_size)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record the time at which the first of the steps to summarize begins."""
        if trainer.global_step == self.steps.start:
            self.began_at = time.time()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the time at which the last of the steps to summarize ended."""
        if trainer.global_step == self.steps.stop:
            self.ended_at = time.time()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the sampling process: otherwise the job would be reported to have left it running."""
        if self.process is not None:
            self.process.end(None, None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the sampling processes and gather their summaries; rank 0 prints them as one record."""
        own = None if self.process is None else self.process.end(self.began_at, self.ended_at)
        nodes = [one for one in ranks.gathered(own) if one is not None]
        if trainer.is_global_zero and nodes:
            steps = {"first_step": self.steps.start, "last_step": self.steps.stop - 1}
            fields = {**steps, "began_at": self.began_at, "ended_at": self.ended_at, "nodes": nodes}
            records.emit("gpu_samples", fields)
