"""A trigger that measures the triggerer it runs in: how late its loop is, and what it asks clusters for."""

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from steptime.airflow.triggers import TrainingTrigger
from steptime.clusters.slurm.ssh import LoginNode

_BEAT_S = 0.01
_WRITTEN_EVERY_S = 1.0


def counted(
    calls: Counter[str], what: str, call: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """The same call, counted."""

    async def with_count(*arguments: Any, **options: Any) -> Any:
        calls[what] += 1
        return await call(*arguments, **options)

    return with_count


class Collections:
    """Python's callback around each collection of garbage: the longest since it was last asked for."""

    def __init__(self) -> None:
        self._began = self._longest_s = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        """Called by Python."""
        if phase == "start":
            self._began = time.thread_time()
        else:
            self._longest_s = max(self._longest_s, time.thread_time() - self._began)

    def take_longest_s(self) -> float:
        """Its processor seconds."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s


class LoopProbe(BaseTrigger):
    """Never fires. Appends a line of JSON a second to `path`.

    It has the waits that have begun so far, and the calls (`commands`, `reads`); and of that second's beats
    the greatest delay (`late_ms`), and the most processor time that the loop's thread took between two
    (`busy_ms`): other work on the machine makes the first longer, not the second. `garbage_ms` is the longest
    collection of Python's garbage in that second, in the same time.
    """

    def __init__(self, path: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return "loop_probe.LoopProbe", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure until the triggerer ends."""
        calls: Counter[str] = Counter(waits=0, commands=0, reads=0)
        TrainingTrigger.news = counted(calls, "waits", TrainingTrigger.news)  # type: ignore[method-assign]
        LoginNode.run = counted(calls, "commands", LoginNode.run)  # type: ignore[method-assign]
        LoginNode.read = counted(calls, "reads", LoginNode.read)  # type: ignore[method-assign]
        garbage = Collections()
        gc.callbacks.append(garbage)
        with Path(self.path).open("a", buffering=1) as lines:  # noqa: ASYNC230 - a line a second
            while True:
                written, late_s, busy_s = time.monotonic(), 0.0, 0.0
                while time.monotonic() - written < _WRITTEN_EVERY_S:
                    began, busy_before = time.monotonic(), time.thread_time()
                    await asyncio.sleep(_BEAT_S)
                    late_s = max(late_s, time.monotonic() - began - _BEAT_S)
                    busy_s = max(busy_s, time.thread_time() - busy_before)
                beat = {"at": time.time(), "late_ms": 1000 * late_s, "busy_ms": 1000 * busy_s, **calls}
                beat["garbage_ms"] = 1000 * garbage.take_longest_s()
                lines.write(json.dumps(beat) + "\n")
        yield TriggerEvent(None)  # type: ignore[no-untyped-call]  # it makes this a generator
