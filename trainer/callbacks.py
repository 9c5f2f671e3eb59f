"""Callbacks of either training loop: steptime's records, history, GPU samples, and a stop at NaN."""

import time
from pathlib import Path
from typing import TextIO

from trainer import gpu_samples, ranks, records
from trainer.cpu.initial_weights import InitialWeights
from trainer.ending import Ending
from trainer.errors import TrainerError, check_loss
from trainer.launch import Launch
from trainer.loop import Loop, LoopCallback
from trainer.profiling import ProfileSteps
from trainer.progress import Progress
from trainer.rank_times import RankTimes
from trainer.records import write_step
from trainer.run import Folders
from trainer.spec import PlannedRun


class FiniteLoss(LoopCallback):
    """Ends the training at the first step whose loss is NaN or infinite.

    Only the rank that writes the step lines checks. Another rank could end the run before that step's line is
    written.
    """

    def on_step_end(self, loop: Loop) -> None:
        """Check the loss that the step line shows."""
        check_loss(loop.step, loop.loss)


class History(LoopCallback):
    """Writes each step's loss and times with all digits to a file of JSON lines; logs have four to six."""

    def __init__(self, path: Path, progress: Progress):
        self.progress = progress
        self.path = path
        self.file: TextIO | None = None

    def on_train_start(self, loop: Loop) -> None:
        """Open the file. The constructor cannot: NeMo's Trainer copies its callbacks."""
        self.file = self.path.open("w", encoding="utf-8")

    def on_step_end(self, loop: Loop) -> None:
        """Write one line for the step that has just ended."""
        if self.file:
            write_step(
                self.file,
                loop.step,
                loss=loop.loss,
                learning_rate=loop.learning_rate,
                step_time_s=loop.step_time_s,
                wall_time_s=self.progress.wall_time_s,
            )

    def on_train_end(self, loop: Loop) -> None:
        """Close the file."""
        if self.file:
            self.file.close()


class Records(LoopCallback):
    """Prints the record `steptime.start`, takes wall times, and collects data for `steptime.result`.

    After a checkpoint load it also prints the record `steptime.resumed`.
    """

    def __init__(self, run: PlannedRun, device: str, ending: Ending):
        self.run = run
        self.device = device
        self.ending = ending
        self.progress = ending.progress

    def on_train_start(self, loop: Loop) -> None:
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
            parameters=ranks.count_parameters(loop.chunks),
            imports_s=self.progress.imports_s,
        )
        if loop.rank == 0:
            records.emit("start", started)
        if self.run.checkpoint_path is not None:
            self._resumed(loop)
        self.progress.training_began_at = time.perf_counter()

    def _resumed(self, loop: Loop) -> None:
        if loop.step != self.run.first_step:
            raise TrainerError(
                f"the checkpoint {self.run.checkpoint_path} continues at step {loop.step}, "
                f"but the plan's first_step is {self.run.first_step}: load one that continues there."
            )
        if loop.rank == 0:
            records.emit(
                "resumed",
                {
                    "checkpoint_path": self.run.checkpoint_path,
                    "global_step": loop.step,
                    "consumed_samples": loop.consumed_samples,
                },
            )

    def on_step_end(self, loop: Loop) -> None:
        """Record the step for the watchdog and for `steptime.result`."""
        self.progress.step_ended(loop.step)

    def on_train_end(self, loop: Loop) -> None:
        """Determine the largest peak memory of any rank."""
        self.progress.highest_memory_bytes = int(ranks.highest(self.progress.own_peak_memory()))

    def on_exception(self, error: BaseException) -> None:
        """Record immediately why training ends early: shutting down the ranks may take long, or hang."""
        self.ending.failed(error)


class GpuSamples(LoopCallback):
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

    def on_train_start(self, loop: Loop) -> None:
        """Start the sampling process, on the first rank of each node."""
        if self.launch.rank % self.launch.local_world_size == 0:
            self.process = gpu_samples.SamplingProcess(self.output, self.launch.local_world_size)

    def on_step_start(self, loop: Loop) -> None:
        """Record the time at which the first of the steps to summarize begins."""
        if loop.step == self.steps.start:
            self.began_at = time.time()

    def on_step_end(self, loop: Loop) -> None:
        """Record the time at which the last of the steps to summarize ended."""
        if loop.step == self.steps.stop - 1:
            self.ended_at = time.time()

    def on_exception(self, error: BaseException) -> None:
        """End the sampling process: otherwise the job would be reported to have left it running."""
        if self.process is not None:
            self.process.end(None, None)

    def on_train_end(self, loop: Loop) -> None:
        """End the sampling processes and gather their summaries; rank 0 prints them as one record."""
        summary_here = None if self.process is None else self.process.end(self.began_at, self.ended_at)
        nodes = [summary for summary in ranks.gathered(summary_here) if summary is not None]
        if loop.rank == 0 and nodes:
            steps = {"first_step": self.steps.start, "last_step": self.steps.stop - 1}
            fields = {**steps, "began_at": self.began_at, "ended_at": self.ended_at, "nodes": nodes}
            records.emit("gpu_samples", fields)


def common_callbacks(
    run: PlannedRun, launch: Launch, folders: Folders, ending: Ending, device: str, *, logs_steps: bool
) -> list[LoopCallback]:
    """Return the callbacks that follow a step's line, in the order in which they act.

    `logs_steps`: whether this rank writes the step lines, and so has the loss.
    """
    callbacks: list[LoopCallback] = []
    if logs_steps:
        if folders.history:
            callbacks.append(History(folders.history, ending.progress))
        callbacks.append(FiniteLoss())
    callbacks.append(RankTimes(run, device))
    if run.settings.gpu_samples and run.profile is None:
        callbacks.append(GpuSamples(run, launch, folders.output))
    if device == "cpu" and run.checkpoint_path is None:
        callbacks.append(InitialWeights(run.seed))
    if run.profile is not None:
        callbacks.append(ProfileSteps(run.profile, folders.output))
    return callbacks
