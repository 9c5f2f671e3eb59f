"""What a staging reports while it is under way."""

import asyncio
import time
from contextlib import suppress

import psutil

DEADLINE_S = 240


class Reported:
    """The lines of a staging's report, to be waited for."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def has_said(self, words: str) -> None:
        """Wait until a line has these words."""
        deadline = time.monotonic() + DEADLINE_S
        while not any(words in line for line in self.lines):
            assert time.monotonic() < deadline, self.lines
            await asyncio.sleep(0.02)


def child_running(program: str) -> psutil.Process:
    """The child of this process whose command names the program; zombies of other tests are passed over."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any(program in word for word in child.cmdline()):
                return child
    raise AssertionError(f"no child runs {program}")
