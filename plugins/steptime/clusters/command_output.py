"""Takes in what a command writes while it runs, here or behind ssh: all of it, and line by line."""

import codecs
from collections.abc import Awaitable, Callable

from steptime.errors import SystemFailure

LONGEST_OUTPUT = 64 << 20
"""Characters of one stream of a command; whatever writes more does not do what it was started for."""


async def collect(
    read: Callable[[int], Awaitable[bytes]], on_output: Callable[[str], None] | None, *, of: str
) -> str:
    """All text that `read` gives until its end; each whole line is handed on as it comes.

    Raises SystemFailure if the command, called `of`, writes more than `LONGEST_OUTPUT`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    parts: list[str] = []
    pending = ""
    length = 0
    while chunk := await read(1 << 16):
        text = decoder.decode(chunk)
        length += len(text)
        if length > LONGEST_OUTPUT:
            raise SystemFailure(
                f"the command {of} was ended: it wrote more than {LONGEST_OUTPUT >> 20} MiB of output"
            )
        parts.append(text)
        if on_output:
            *lines, pending = (pending + text).split("\n")
            for line in lines:
                on_output(line)
    if on_output and pending:
        on_output(pending)
    return "".join(parts)
