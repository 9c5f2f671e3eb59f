"""The lines of a log around the cause of a failure, for people: few, printable, and without secrets."""

import re
from dataclasses import dataclass
from typing import Self

from steptime.logs.formats import plain
from steptime.recipes.environment import ACCESS_TOKEN, PASSWORD_IN_ADDRESS, SENSITIVE_WORDS

BYTES_BEFORE, BYTES_BEHIND = 3072, 1024
_MOST_BYTES = 4096
_LINES_BEFORE, _LINES_BEHIND = 15, 5
_LONGEST_LINE = 300
_LEFT_OUT = "(line left out: it may show a secret)"
_NAMED_SECRET = re.compile(rf"\w*{SENSITIVE_WORDS}\W{{1,5}}\w", re.IGNORECASE)


@dataclass
class Excerpt:
    """The lines of a log around a sign of failure."""

    before: bytes = b""
    """The lines up to and including the one with the sign of failure."""
    behind: bytes = b""
    is_open: bool = False
    """Whether `extend` may still append the lines that follow."""

    @classmethod
    def around(cls, end: int, block: bytes, block_before: bytes) -> Self:
        """Return the lines around the line that ends at position `end` of a block of the log.

        `block_before` is the text before the block.
        """
        before = block[max(0, end - BYTES_BEFORE) : end]
        missing = BYTES_BEFORE - len(before)
        if missing:
            before = block_before[-missing:] + before
        behind = block[end : end + BYTES_BEHIND]
        return cls(before, behind, is_open=len(behind) < BYTES_BEHIND)

    def extend(self, block: bytes) -> None:
        """Append the beginning of the next block of the log, up to `BYTES_BEHIND` in all."""
        if self.is_open:
            self.behind += block[: BYTES_BEHIND - len(self.behind)]
            self.is_open = len(self.behind) < BYTES_BEHIND

    @property
    def text(self) -> str:
        """At most 20 printable lines; long ones are cut, and lines that may contain a secret left out."""
        lines = (*_lines(self.before)[-_LINES_BEFORE:], *_lines(self.behind)[:_LINES_BEHIND])
        return "\n".join(map(_without_secret, lines)).encode()[:_MOST_BYTES].decode(errors="ignore")


def _lines(text: bytes) -> list[str]:
    lines = re.split(r"[\r\n]+", plain(text).decode(errors="replace"))
    shown = (
        "".join(character if character.isprintable() else " " for character in line).rstrip()
        for line in lines
    )
    return [line for line in shown if line]


def _without_secret(line: str) -> str:
    if any(form.search(line) for form in (_NAMED_SECRET, ACCESS_TOKEN, PASSWORD_IN_ADDRESS)):
        return _LEFT_OUT
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"
