"""How long each rank computes by itself on some steps: it shows which rank or node is slow.

What is timed is the forward pass of each micro batch, as Megatron's straggler detection does: in the backward
pass all ranks wait for the slowest one. On GPUs it is the time between two CUDA events. On the CPU it is the
CPU time of the thread, as several ranks share a core there, and waiting takes none. Ranks of one tensor- or
context-parallel group wait for each other within the forward pass: they are slow together.
"""

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from trainer import ranks, records
from trainer.loop import Loop, LoopCallback
from trainer.spec import PlannedRun

SAMPLED_STEPS = 20


class RankTimes(LoopCallback):
    """Times the forward pass on steps of the second half of a run; rank 0 prints the record of all ranks.

    The model has torch's forward hooks on these steps only: all others run as if there were no such callback.
    NeMo's events around a micro batch would cost each step six times as much.
    """

    def __init__(self, run: PlannedRun, device: str):
        self.steps = sampled_steps(run)
        self.device = device
        self.marks: dict[int, list[list[Any]]] = {}
        """Begin and end of each micro batch, by step and by chunk of the model on this rank."""
        self.hooks: list[RemovableHandle] = []

    def on_step_start(self, loop: Loop) -> None:
        """Hook into the model's chunks if this step is timed."""
        if loop.step not in self.steps:
            return
        chunks = self.marks[loop.step] = []
        for chunk in loop.chunks:
            marks: list[Any] = []
            chunks.append(marks)
            mark = partial(_record_event, marks) if self.device == "cuda" else _clock_reading(marks)
            self.hooks += [chunk.register_forward_pre_hook(mark), chunk.register_forward_hook(mark)]

    def on_step_end(self, loop: Loop) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()

    def on_train_end(self, loop: Loop) -> None:
        """Gather the times of all ranks; print the record on rank 0 if several ranks all have one."""
        self.marks = {step: chunks for step, chunks in self.marks.items() if any(chunks)}
        times = ranks.gathered((self._seconds(), ranks.work_group(), records.own_node_name()))
        seconds, groups, names = zip(*times, strict=True)
        if loop.rank == 0 and len(times) > 1 and None not in seconds:
            nodes = list(dict.fromkeys(names))
            fields = {
                "clock": "cpu_time" if self.device == "cpu" else "cuda_events",
                "steps": list(self.marks),
                "nodes": nodes,
                "node": [nodes.index(name) for name in names],
                "group": groups,
                "seconds": seconds,
            }
            records.emit("rank_times", fields)

    def _seconds(self) -> float | None:
        """Return this rank's seconds in the forward passes of a step, the median of the timed steps.

        The first of several micro batches is left out. Return None if nothing was timed, or if the GPU has
        not recorded an event.
        """
        if self.device != "cpu":
            torch.cuda.synchronize()
        try:
            steps = [sum(map(self._sum_chunk, chunks)) for chunks in self.marks.values()]
        except RuntimeError:  # an event that the GPU has not recorded: no reason to fail a training
            return None
        return float(f"{statistics.median(steps):.6g}") if steps else None

    def _sum_chunk(self, marks: list[Any]) -> float:
        """Return the seconds of all micro batches but the first, which may wait for parameters.

        If there is only one micro batch, it counts.
        """
        pairs = list(zip(marks[::2], marks[1::2], strict=False))
        if self.device == "cpu":
            return math.fsum(end - begin for begin, end in pairs[1:] or pairs)
        return math.fsum(begin.elapsed_time(end) for begin, end in pairs[1:] or pairs) / 1e3


def _clock_reading(marks: list[float]) -> Callable[..., None]:
    """Return a hook that appends the CPU time of the thread, with as little to do as a hook can have."""
    append, read = marks.append, time.thread_time
    return lambda *_: append(read())


def _record_event(marks: list[Any], *_: Any) -> None:
    if not torch.cuda.is_current_stream_capturing():
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)


def sampled_steps(run: PlannedRun) -> range:
    """Return up to `SAMPLED_STEPS` global steps, evenly spaced over the second half of a run."""
    first = (run.first_step + run.max_steps) // 2
    return range(first, run.max_steps, math.ceil((run.max_steps - first) / SAMPLED_STEPS))
