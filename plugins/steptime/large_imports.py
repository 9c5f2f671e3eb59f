"""Importing large packages: without what they import and seldom use, and without searches for garbage."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


@contextmanager
def put_off(*names: str) -> Iterator[None]:
    """Within this context, importing one of these modules does not run it: that waits until it is used.

    A module within a package needs the package named, too. One that is not installed fails as always.
    """
    finder = _LazyFinder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def uncollected() -> Iterator[None]:
    """Within this context Python searches for no garbage, and what is there at its end is left out later.

    Modules stay to the end: to search them while they are imported takes a tenth to a fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class _LazyFinder(MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in self._names else None
        if spec and spec.loader:
            spec.loader = LazyLoader(spec.loader)
        return spec
