"""The trainer's own records: JSON behind `steptime.start` and others."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from steptime.logs.models import Problem

NODE_CHECK = "node_check"
TRAINER_FAILED = "trainer_failed"
_NAMES = (NODE_CHECK, "start", "resumed", "result")
RECORD_WORDS = (b"steptime.",)
_RECORD = re.compile(rf"steptime\.({'|'.join(_NAMES)}) (?=\{{)".encode())


class Record(NamedTuple):
    """One record."""

    name: str
    values: dict[str, Any]


def read_records(line: bytes) -> list[Record | Problem]:
    """Read the records of a line; text glued behind one does not matter, but broken JSON is a problem."""
    found: list[Record | Problem] = []
    for match in _RECORD.finditer(line):
        name, text = match[1].decode(), line[match.end() :].decode(errors="replace")
        try:
            found.append(Record(name, json.JSONDecoder().raw_decode(text)[0]))
        except (ValueError, RecursionError):  # broken JSON, or made to break the decoder
            message = f"the trainer's record steptime.{name} is cut or broken"
            found.append(Problem(kind="broken_record", message=message, fatal=False))
    return found


def trainers_end(records: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Report how the training ended by the trainer's records, unless it completed or writes none."""
    end = records.get("result", {})
    state, error = end.get("state"), end.get("error")
    if "result" not in records:
        if "start" in records:
            message = "the trainer wrote no record of its end: it was ended from outside, or still runs"
            yield Problem(kind="no_end_record", message=message, fatal=True)
    elif state == "failed" and isinstance(error, str):
        yield Problem(kind=TRAINER_FAILED, message=error, fatal=True)
    elif state != "completed":
        why = f": {error}" if isinstance(error, str) else ""
        message = f"the trainer recorded its end as '{state}'{why}"
        yield Problem(kind="trainer_state", message=message, fatal=True)
