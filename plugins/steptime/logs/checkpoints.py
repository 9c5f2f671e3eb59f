"""Checkpoint lines of NeMo: `Global Checkpoint Save : Rank: 0 : … : Save duration: 4.389s`.

Spacing differs between save and load, older releases print no iteration, and an asynchronous save says later
that it succeeded (nemo/utils/callbacks/dist_ckpt_io.py).
"""

import re
from typing import NamedTuple

from steptime.logs.models import CheckpointTiming

_SCHEDULED = b"Scheduled async checkpoint save for"
WORDS = (b"Global Checkpoint ", b"Successfully saved checkpoint from iteration", _SCHEDULED)

_TIMING = re.compile(
    rb"Global Checkpoint (?P<kind>Save|Load)\s*:\s*Rank\s*:\s*(?P<rank>\d{1,9})"
    rb"(?:\s*:\s*Iteration\s*:\s*(?P<iteration>\d{1,15}))?"
    rb"\s*:\s*Start time\s*:\s*(?P<start>\d{1,15}(?:\.\d*)?)\s*s"
    rb"\s*:\s*[A-Za-z_ ]{1,40}:\s*(?P<duration>\d{1,15}(?:\.\d*)?(?:e-?\d{1,2})?)\s*s"
)
_FINALISED = re.compile(rb"Successfully saved checkpoint from iteration\s+(\d{1,15})")


class CheckpointLine(NamedTuple):
    """A printed timing, and the rank that printed it."""

    timing: CheckpointTiming
    rank: int


class Scheduled(NamedTuple):
    """An asynchronous save that has begun."""

    times: int


class Finalised(NamedTuple):
    """An asynchronous save that has reached the disk."""

    iteration: int


def read_checkpoints(line: bytes) -> list[CheckpointLine | Scheduled | Finalised]:
    """The timings, beginnings and completions in a line."""
    found: list[CheckpointLine | Scheduled | Finalised] = []
    for match in _TIMING.finditer(line):
        timing = CheckpointTiming(
            kind=match["kind"].decode().lower(),
            iteration=None if match["iteration"] is None else int(match["iteration"]),
            started_at=float(match["start"]),
            duration_s=float(match["duration"]),
        )
        found.append(CheckpointLine(timing, int(match["rank"])))
    if begun := line.count(_SCHEDULED):
        found.append(Scheduled(begun))
    found.extend(Finalised(int(match[1])) for match in _FINALISED.finditer(line))
    return found
