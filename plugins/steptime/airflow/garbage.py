"""Python's garbage collection in a triggerer: it must not hold up the event loop in which all triggers wait.

A full collection looks through everything that Airflow has imported, for a quarter of a second, and through
what each wait keeps, some 150 objects. So what one has found alive is frozen: the next one looks at what came
since. Frozen objects are freed as usual once nothing refers to them; only cycles among them stay. Those are
looked for when nothing waits, or after very many waits.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_OLDEST_GENERATION = 2
"""A collection of it is a full one."""
_SMALLER_COLLECTIONS_BETWEEN = 2
"""Between two full ones, at least; Python's own ten let a burst of waits keep 70,000 objects meanwhile."""
_WAITS_WORTH_A_SEARCH = 2_000
"""So many have to have ended before everything is searched, which holds up the loop for 0.2 s: each leaves
some 40 objects in cycles, 5 kB."""
_WAITS_WORTH_A_PAUSE = 20_000
"""Likewise where others wait all the time: 100 MB would stay."""

_WAITS: Counter[str] = Counter()
"""Of this process: how many are `living`, and how many have `ended` since everything was searched."""


@contextmanager
def one_wait() -> Iterator[None]:
    """Keep collections short from this process's first wait on; search everything after many."""
    if _freeze_after_a_full_one not in gc.callbacks:
        youngest, middle, _ = gc.get_threshold()
        gc.set_threshold(youngest, middle, _SMALLER_COLLECTIONS_BETWEEN)
        gc.collect(_OLDEST_GENERATION - 1)
        gc.freeze()
        gc.collect()  # finds next to nothing, and so the next one does not wait for a quarter of all imports
        gc.callbacks.append(_freeze_after_a_full_one)
    _WAITS["living"] += 1
    try:
        yield
    finally:
        _WAITS["living"] -= 1
        _WAITS["ended"] += 1
        if _WAITS["ended"] >= (_WAITS_WORTH_A_PAUSE if _WAITS["living"] else _WAITS_WORTH_A_SEARCH):
            _WAITS["ended"] = 0
            gc.unfreeze()
            gc.collect()


def _freeze_after_a_full_one(phase: str, collection: dict[str, int]) -> None:
    """Called by Python before and after each collection."""
    if phase == "stop" and collection["generation"] == _OLDEST_GENERATION:
        gc.freeze()
