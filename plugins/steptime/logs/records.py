"""The trainer's own records: JSON behind `steptime.start` and others."""

import json
import re
from typing import Any, NamedTuple

NODE_CHECK = "node_check"
_NAMES = (NODE_CHECK, "start", "resumed", "result")
WORDS = tuple(f"steptime.{name} {{".encode() for name in _NAMES)

_RECORD = re.compile(rf"steptime\.({'|'.join(_NAMES)}) (?=\{{)".encode())


class Record(NamedTuple):
    """One record; `values` is None if its JSON is broken or cut."""

    name: str
    values: dict[str, Any] | None


def read_records(line: bytes) -> list[Record]:
    """The records of a line; text glued behind one does not matter."""
    found = []
    for match in _RECORD.finditer(line):
        text = line[match.end() :].decode(errors="replace")
        try:
            values, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):  # broken JSON, or made to break the decoder
            values = None
        found.append(Record(match[1].decode(), values))
    return found
