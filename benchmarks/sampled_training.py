"""Train as the CPU's launcher does, and print what sampling costs rank 0, as a line of JSON.

`benchmarks/sampling.py` starts it in the trainer's environment.
"""

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any

from trainer import cpu_ranks
from trainer.ending import Ending
from trainer.launch import Launch

_LAUNCHER: Any = cpu_ranks
_prepare = _LAUNCHER.prepare_training
_Times = dict[int, list[float]]


class Costs:
    """Processor time of this rank's thread in seconds, by global step."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.began_at: dict[int, float] = {}
        self.calls: _Times = defaultdict(list)
        """Calls of the model, one per micro batch, without the forward pass: torch runs the hooks in them."""
        self.hooks: _Times = defaultdict(list)
        """Hooks at the beginning and the end of a step."""
        self.end: _Times = defaultdict(list)
        """Collection and output of the times of all ranks."""

    def install(self) -> None:
        """Time the hooks of the sampling callbacks, and the calls of the model."""
        from trainer.callbacks import GpuSamples, Records
        from trainer.rank_times import RankTimes

        first: Any = Records
        last: Any = RankTimes
        for callback in (RankTimes, GpuSamples):
            for name in {"on_step_start", "on_step_end"} & vars(callback).keys():
                setattr(callback, name, self._timed(getattr(callback, name), self.hooks))
        finish = self._timed(last.on_train_end, self.end)

        def begin(_: Any, loop: Any) -> None:
            self.step = loop.step
            self.began_at[loop.step] = time.thread_time()

        def end(callback: Any, loop: Any) -> None:
            finish(callback, loop)
            if loop.rank == 0:
                self._print(callback.steps)

        def time_calls(_: Any, loop: Any) -> None:
            self._time_calls(type(loop.chunks[0]))

        first.on_step_start = begin  # before the hooks of those that sample
        last.on_train_start = time_calls
        last.on_train_end = end

    def _time_calls(self, model: Any) -> None:
        call, forward = model.__call__, model.forward
        forward_s = 0.0

        def timed_forward(*arguments: Any, **named: Any) -> Any:
            nonlocal forward_s
            begin = time.thread_time()
            result = forward(*arguments, **named)
            forward_s = time.thread_time() - begin
            return result

        def timed_call(*arguments: Any, **named: Any) -> Any:
            begin = time.thread_time()
            result = call(*arguments, **named)
            self.calls[self.step or 0].append(time.thread_time() - begin - forward_s)
            return result

        model.__call__, model.forward = timed_call, timed_forward

    def _timed(self, function: Callable[..., Any], times: _Times) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            begin = time.thread_time()
            result = function(*arguments, **named)
            times[self.step or 0].append(time.thread_time() - begin)
            return result

        return call

    def _print(self, timed: range) -> None:
        whole = [step for step in timed if step + 1 in self.began_at]
        costs = {
            "steps_s": [self.began_at[step + 1] - self.began_at[step] for step in whole],
            "calls_s": [self.calls[step] for step in whole],
            "call_without_hooks_s": statistics.median(
                chain.from_iterable(times for step, times in self.calls.items() if step not in timed)
            ),
            "hooks_s": [sum(self.hooks[step]) for step in whole],
            "end_s": sum(sum(times) for times in self.end.values()),
        }
        print("costs", json.dumps(costs), flush=True)


def _with_costs(*arguments: Any) -> cpu_ranks.Train:
    train: cpu_ranks.Train = _prepare(*arguments)

    def train_rank(launch: Launch, ending: Ending) -> None:
        Costs().install()
        train(launch, ending)

    return train_rank


if __name__ == "__main__":
    _LAUNCHER.prepare_training = _with_costs
    sys.exit(cpu_ranks.main())
