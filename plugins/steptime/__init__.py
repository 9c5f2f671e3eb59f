"""steptime: seconds per training step, measured on a schedule, with results people can trust.

A run goes through these steps. Each passes its result to the next as an immutable model with a JSON form:
recipes -> plan -> stage -> submit -> wait -> read log -> measure -> validate -> publish -> show.

`read_runs`, `read_steps` and `read_judgements` return results as DataFrames (`steptime.frames`); pandas and
the database library are imported when one of them is first used.
"""

import importlib
from importlib.metadata import version
from typing import Any

_READERS = ("read_runs", "read_steps", "read_judgements")
__version__ = version("steptime")


def __getattr__(name: str) -> Any:
    """Return a reader of `steptime.frames`. Raises AttributeError for other names."""
    if name in _READERS:
        return getattr(importlib.import_module("steptime.frames"), name)
    raise AttributeError(f"module 'steptime' has no attribute '{name}'")
