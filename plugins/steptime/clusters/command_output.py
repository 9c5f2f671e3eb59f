"""Collect the output of a running command, and pass it on line by line."""

import codecs
from collections.abc import Awaitable, Callable

from steptime.errors import SystemFailure

LONGEST_OUTPUT = 64 << 20
"""Most characters that a command may write to one stream; one that writes more has gone wrong."""


class Lines:
    """Splits text that arrives in pieces: `on_line` gets each line as soon as it is complete."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._incomplete: list[str] = []
        """The pieces of the last line, joined once it ends: a long line may come in thousands of them."""

    def take(self, chunk: bytes) -> str:
        """Pass complete lines on to `on_line`, and return the decoded text of `chunk`."""
        text = self._decoder.decode(chunk)
        *complete, last = text.split("\n")
        for line in complete:
            self._hand_on("".join((*self._incomplete, line)))
            self._incomplete.clear()
        self._incomplete.append(last)
        return text

    def end(self) -> None:
        """Pass on the last line if it has no line break."""
        if line := "".join(self._incomplete):
            self._hand_on(line)
        self._incomplete.clear()

    def _hand_on(self, line: str) -> None:
        if self._on_line:
            self._on_line(line)


async def collect(
    read: Callable[[int], Awaitable[bytes]], on_output: Callable[[str], None] | None, *, of: str
) -> str:
    """Read one output stream of a command to its end and return it; `on_output` gets each line as it ends.

    Raises SystemFailure if the command, called `of` in the message, writes more than `LONGEST_OUTPUT`.
    """
    lines = Lines(on_output)
    parts: list[str] = []
    length = 0
    while chunk := await read(1 << 16):
        parts.append(lines.take(chunk))
        length += len(parts[-1])
        if length > LONGEST_OUTPUT:
            raise SystemFailure(
                f"the command {of} was ended: it wrote more than {LONGEST_OUTPUT >> 20} MiB of output"
            )
    lines.end()
    return "".join(parts)
