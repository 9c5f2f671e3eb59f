"""A tqdm bar (24.11): `Epoch 0: : 100%|██| 100/100 [07:57<00:00, …, global_step=99.00, …]`.

The bar is redrawn behind a carriage return, and rounds its numbers: step 1999 reads `2e+3`.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from steptime.logs.formats.base import COUNT, StepLine, fields, records, whole
from steptime.logs.formats.nemo2 import step_of

_RECORD = re.compile(rb"Epoch\s+\d+\s*:")
_COUNT = re.compile(rb"(?<!\d)(" + COUNT + rb")/(" + COUNT + rb")\s*\[")
_ROUNDED = re.compile(rb"\d+(?:\.(\d*))?[eE]\+?(\d{1,2})")


class Tqdm:
    """Step lines of NeMo's progress bar, counted from 0."""

    name: ClassVar[str] = "tqdm"
    words: ClassVar[tuple[bytes, ...]] = (b"Epoch ",)
    redraws: ClassVar[bool] = True

    def read(self, line: bytes) -> Iterator[StepLine]:
        """The steps of a line; a bar without `global_step` (before the first, or of validation) is none."""
        for _, text in records(line, _RECORD):
            count = _COUNT.search(text)
            postfix = text[count.end() :] if count else text
            values = fields(postfix)
            printed_step = values.get(b"global_step")
            global_step = whole(printed_step)
            if printed_step is None or global_step is None:
                continue
            last_step = None
            if count is not None:
                by_bar = int(count[1]) - 1
                if abs(by_bar - global_step) <= _rounding(printed_step):
                    global_step, last_step = by_bar, int(count[2]) - 1
            # What follows the count's bracket is the clock, which differs when a bar is drawn again.
            yield StepLine(step_of(global_step, values), postfix.partition(b",")[2], last_step)


def _rounding(printed: bytes) -> float:
    """How far the true number may be from what was printed: 500 for `2e+3`, nothing for `99.00`."""
    match = _ROUNDED.fullmatch(printed)
    return 0.0 if match is None else 0.5 * 10.0 ** (int(match[2]) - len(match[1] or b""))
