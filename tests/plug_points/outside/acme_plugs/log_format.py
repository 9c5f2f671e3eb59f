"""A log format: `acme step 3 took 0.5 s, loss 8.1`."""

import re

from steptime.logs.formats import LogFormat

ACME = LogFormat(
    name="acme",
    # The second word finds lines of NeMo's format too, so that both formats read such a line.
    words=(b"acme step ", b"Training epoch "),
    start=re.compile(rb"acme step (?P<iteration>\d+) took (?P<step_time_s>[\d.]+) s, loss (?P<loss>[\d.]+)"),
    fields={},
)
