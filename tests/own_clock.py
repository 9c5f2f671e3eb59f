"""Long waits that end at once, on a clock of the test's own that only these waits advance."""

import asyncio
import time
from types import SimpleNamespace

import tenacity

_LONG_S = 0.25


def waits_over_at_once(monkeypatch, *modules):
    """Return a list that gets coroutines' long sleeps, in seconds; tenacity and `modules` use the clock."""
    began, sleep = time.monotonic(), asyncio.sleep
    waits = []

    async def wait(seconds):
        if seconds >= _LONG_S:
            waits.append(seconds)
            assert len(waits) < 1000, "it waits without end"
        await sleep(seconds if seconds < _LONG_S else 0)

    clock = SimpleNamespace(time=lambda: time.time() + sum(waits), monotonic=lambda: began + sum(waits))
    for module in (tenacity, *modules):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", wait)
    return waits
