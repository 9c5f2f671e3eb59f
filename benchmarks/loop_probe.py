"""A trigger that measures its triggerer: how late the loop is, why, and what it asks clusters for."""

import asyncio
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from airflow.triggers.base import TriggerEvent

from steptime.airflow.triggers import TrainingTrigger
from steptime.clusters.slurm.ssh import LoginNode

FOLDER = "LOOP_PROBES"
"""The environment variable that names the folder of the probes' files, which it has by process and suffix."""
BEATS, STACKS = ".beats", ".stacks"
_BEAT_S = 0.01
_WRITTEN_EVERY_S = 1.0
HELD_UP_S = 0.05
"""Processor time of the loop's thread between two beats from which on its stack is written down."""
_INNERMOST = 8
"""Frames of that stack."""
_CALLS: Counter[str] = Counter(waits=0, commands=0, reads=0)


def counted(what: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same call, counted."""

    async def with_count(*arguments: Any, **options: Any) -> Any:
        _CALLS[what] += 1
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


class Watch(threading.Thread):
    """Appends the stack of the loop's thread, once it has worked for so long without a beat, to a file.

    A line of JSON each: `at` in unix seconds, `busy_ms` so far, and `stack`, the innermost frame last.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.of = threading.get_ident()
        self.beaten = time.thread_time()

    def run(self) -> None:
        """Look until the process ends."""
        clock = time.pthread_getcpuclockid(self.of)
        written = None
        with self.path.open("a", buffering=1) as lines:
            while True:
                time.sleep(HELD_UP_S / 10)
                beaten = self.beaten
                busy_s = time.clock_gettime(clock) - beaten
                if busy_s > HELD_UP_S and beaten != written:
                    written = beaten
                    frames = traceback.extract_stack(sys._current_frames()[self.of])[-_INNERMOST:]
                    stack = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
                    lines.write(
                        json.dumps({"at": time.time(), "busy_ms": 1000 * busy_s, "stack": stack}) + "\n"
                    )


async def probe(path: Path) -> None:
    """Append a line of JSON a second to a file, as long as the loop runs.

    It has the waits that have begun so far, and the calls (`commands`, `reads`); and of that second's beats
    the greatest delay (`late_ms`), and the most processor time that the loop's thread took between two
    (`busy_ms`): other work on the machine makes the first longer, not the second. `garbage_ms` is the longest
    collection of Python's garbage in that second, in the same time.
    """
    LoginNode.run = counted("commands", LoginNode.run)  # type: ignore[method-assign,assignment]
    LoginNode.read = counted("reads", LoginNode.read)  # type: ignore[method-assign,assignment]
    garbage, watch = Collections(), Watch(path.with_suffix(STACKS))
    gc.callbacks.append(garbage)
    watch.start()
    with path.open("a", buffering=1) as lines:
        while True:
            written, late_s, busy_s = time.monotonic(), 0.0, 0.0
            while time.monotonic() - written < _WRITTEN_EVERY_S:
                began, busy_before = time.monotonic(), time.thread_time()
                await asyncio.sleep(_BEAT_S)
                late_s = max(late_s, time.monotonic() - began - _BEAT_S)
                watch.beaten = time.thread_time()
                busy_s = max(busy_s, watch.beaten - busy_before)
            beat = {"at": time.time(), "late_ms": 1000 * late_s, "busy_ms": 1000 * busy_s, **_CALLS}
            beat["garbage_ms"] = 1000 * garbage.take_longest_s()
            lines.write(json.dumps(beat) + "\n")


class ProbedTrigger(TrainingTrigger):
    """steptime's trigger; the first of a process starts the probe of its loop."""

    probing: ClassVar[asyncio.Task[None] | None] = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the end of the job."""
        if ProbedTrigger.probing is None:
            path = Path(os.environ[FOLDER], f"{os.getpid()}{BEATS}")
            ProbedTrigger.probing = asyncio.create_task(probe(path))
        _CALLS["waits"] += 1
        async for event in super().run():
            yield event
