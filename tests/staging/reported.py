"""What a staging reports while it is under way."""

import asyncio
import time

DEADLINE_S = 60


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
