"""Run upstream's recipes at a tag of its clone, with the stand-ins of `steptime recipes import`."""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steptime.recipes.importing.recorder import describe
from steptime.recipes.importing.recorder.describe import LOADED, Anything, AutoBridge, Finder
from steptime.recipes.importing.release import unpack_commit

__all__ = ["LOADED", "git", "imported", "shown"]

_MORE_FOLDERS = {
    "perf_plugins": "scripts/performance/perf_plugins",
    "benchmark_parallelism": "scripts/common/benchmark_parallelism",
    "megatron.bridge.perf_recipes": "src/megatron/bridge/perf_recipes",
}
_TREES = tempfile.TemporaryDirectory()


@functools.cache
def shown(clone: str, tag: str, path: str) -> str:
    """Return the content of a file at a tag."""
    return git(clone, "show", f"{tag}:{path}")


def git(clone: str, *arguments: str) -> str:
    command = ("git", "-C", clone, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def imported(clone: str, tag: str) -> Iterator[None]:
    """Make upstream's modules importable as they are at a tag, within this context."""
    tree = unpack_commit(Path(clone), tag, Path(_TREES.name, tag), "src/megatron/bridge", "scripts")
    finder = Finder(tree, describe.FOLDERS | _MORE_FOLDERS)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.knows(name)]:
            del sys.modules[name]


class _SizedBridge(AutoBridge):
    """Makes a model that knows the repository of its sizes."""

    @classmethod
    def from_hf_pretrained(cls, name: str, *_: Any, **__: Any) -> Anything:
        super().from_hf_pretrained(name)
        return cls(sizes_of=name)

    def to_megatron_provider(self, *_: Any, **__: Any) -> Anything:
        return Anything(sizes_of=self.sizes_of)


describe.AutoBridge = _SizedBridge  # type: ignore[misc]
