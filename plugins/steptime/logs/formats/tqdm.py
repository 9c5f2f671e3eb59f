"""A tqdm bar (24.11): `Epoch 0: : 100%|██| 100/100 [07:57<00:00, …, global_step=99.00, …]`.

The bar is redrawn behind a carriage return, and rounds its numbers: step 1999 reads `2e+3`.
"""

import re
from collections.abc import Iterator

from steptime.logs.formats.base import COUNT, LogFormat, Values, whole
from steptime.logs.formats.nemo2 import FIELDS

_COUNT = re.compile(rb"(?<!\d)(" + COUNT + rb")/(" + COUNT + rb")\s*\[")
_ROUNDED = re.compile(rb"\d+(?:\.(\d*))?[eE]\+?(\d{1,2})")


class _Tqdm(LogFormat):
    def find(self, line: bytes) -> Iterator[tuple[bytes, Values]]:
        """The steps of a line; a bar without `global_step` (before the first, or of validation) is none."""
        for text, _ in super().find(line):
            bar = _COUNT.search(text)
            postfix = text[bar.end() :] if bar else text
            values = self.values(postfix)
            printed = whole(values.get("global_step"))
            if printed is None:
                continue
            if bar and abs(int(bar[1]) - 1 - printed) <= _rounding(values["global_step"]):
                values |= {"iteration": b"%d" % (int(bar[1]) - 1), "iterations": b"%d" % (int(bar[2]) - 1)}
            # What follows the count's bracket is the clock, which differs when a bar is drawn again.
            yield postfix.partition(b",")[2], values


def _rounding(printed: bytes) -> float:
    """How far the true number may be from what was printed: 500 for `2e+3`, nothing for `99.00`."""
    match = _ROUNDED.fullmatch(printed)
    return 0.0 if match is None else 0.5 * 10.0 ** (int(match[2]) - len(match[1] or b""))


TQDM = _Tqdm(
    name="tqdm",
    words=(b"Epoch ",),
    start=re.compile(rb"Epoch\s+\d+\s*:"),
    fields=FIELDS,
    counters=("iteration", "global_step"),
    redraws=True,
)
