"""Waits that are over at once: a module goes by a clock of the test, which its waits alone set forward."""

import asyncio
import time
from types import ModuleType, SimpleNamespace

import pytest


def waits_over_at_once(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what the module sleeps by asyncio from now on, in seconds, as it goes on."""
    began = time.monotonic()
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        if seconds:
            waits.append(seconds)

    clock = SimpleNamespace(time=time.time, monotonic=lambda: began + sum(waits))
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(Lock=asyncio.Lock, sleep=wait))
    return waits
