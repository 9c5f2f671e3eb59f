"""torchtitan: `step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282 …`.

One line a rank, counted from 1, in colour on a terminal. It prints tokens per second and device but no step
time, and none is made up from it.
"""

import re

from steptime.logs.formats.base import COUNT, NUMBER, LogFormat, Values

_FIELD = re.compile(
    rb"(?<![A-Za-z_])(?:(loss|grad_norm|tflops):\s*(" + NUMBER + rb")|memory:\s*(" + NUMBER + rb")GiB)"
)


class _TorchTitan(LogFormat):
    def values(self, text: bytes) -> Values:
        """Only blanks are between the fields; the first of a name counts."""
        return {
            self.fields[name or b"memory"]: value or size
            for name, value, size in reversed(_FIELD.findall(text))
        }


TORCHTITAN = _TorchTitan(
    name="torchtitan",
    words=(b"tps: ",),
    start=re.compile(rb"(?<![A-Za-z_])(?<!validate )step:\s*(?P<iteration>" + COUNT + rb")\s"),
    fields={
        b"loss": "loss",
        b"grad_norm": "grad_norm",
        b"tflops": "tflops_per_gpu",
        b"memory": "peak_memory_gib",
    },
    first=1,
)
