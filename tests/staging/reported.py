"""Reports of a staging while it is in progress."""

import asyncio
import time
from contextlib import suppress

import psutil

DEADLINE_S = 240


class Reported:
    """The lines that a staging reports, for tests that wait for one."""

    def __init__(self):
        self.lines = []

    async def has_said(self, words):
        """Wait until a line contains these words."""
        deadline = time.monotonic() + DEADLINE_S
        while not any(words in line for line in self.lines):
            assert time.monotonic() < deadline, self.lines
            await asyncio.sleep(0.02)


def child_running(program):
    """Return the child of this process whose command contains the program; zombies are ignored."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any(program in word for word in child.cmdline()):
                return child
    raise AssertionError(f"no child runs {program}")
