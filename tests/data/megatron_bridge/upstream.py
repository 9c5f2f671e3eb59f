"""Runs upstream's recipes as a tag of its clone has them, with stand-ins for everything that trains."""

import functools
import importlib.abc
import importlib.machinery
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FOLDERS = {
    "configs": "scripts/performance/configs",
    "utils": "scripts/performance/utils",
    "perf_plugins": "scripts/performance/perf_plugins",
    "benchmark_parallelism": "scripts/common/benchmark_parallelism",
    "megatron.bridge.recipes": "src/megatron/bridge/recipes",
    "megatron.bridge.perf_recipes": "src/megatron/bridge/perf_recipes",
}
"""What of upstream is run, by the name that it is imported under."""
_NOT_RUN = ("megatron.bridge.recipes.utils.optimizer_utils", "megatron.bridge.recipes.utils.finetune_utils")
"""They look into classes of Megatron's."""
_ABSENT = ("megatron", "torch", "transformers", "nemo_run", "omegaconf", "hydra", "PIL", "datasets")
"""What is stood in for."""


@functools.cache
def shown(clone: str, tag: str, path: str) -> str:
    """A file at a tag."""
    return git(clone, "show", f"{tag}:{path}")


def git(clone: str, *arguments: str) -> str:
    command = ("git", "-C", clone, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def imported(clone: str, tag: str) -> Iterator[None]:
    """Within it, upstream's modules can be imported as they are at a tag."""
    finder = _Finder(clone, tag)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.knows(name)]:
            del sys.modules[name]


class _Kind(type):
    """A class of which nothing is known: what it has are classes and functions likewise."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (Anything,), {})

    def __or__(cls, _other: Any) -> Any:
        return Any  # in annotations

    __ror__ = __or__


class Anything(metaclass=_Kind):
    """Keeps what it is made with and what is set; all else that is asked for is one more of it."""

    def __init__(self, *_: Any, **told: Any) -> None:
        self.__dict__.update(told)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Upstream asks whether it is so, and an unknown thing would count as true.
        made = False if name == "use_megatron_fsdp" else Anything()
        self.__dict__[name] = made
        return made

    def __call__(self, *_: Any, **told: Any) -> Any:
        return Anything(**told)

    def __iter__(self) -> Iterator[Any]:
        return iter((Anything(), Anything()))  # an optimizer and its schedule

    def __getitem__(self, _key: Any) -> Any:
        return Anything()


LOADED: set[str] = set()
"""Repositories of the Hugging Face hub whose model configurations were asked for."""


class _AutoBridge(Anything):
    """Makes a model that knows whose sizes it has."""

    @classmethod
    def from_hf_pretrained(cls, name: str, *_: Any, **__: Any) -> Any:
        LOADED.add(name)
        return cls(sizes_of=name)

    def to_megatron_provider(self, *_: Any, **__: Any) -> Any:
        return Anything(sizes_of=self.sizes_of)


class _Absent(types.ModuleType):
    __path__ = ()
    __all__ = ("CommOverlapConfig",)  # what upstream takes from one by a star

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _AutoBridge if name == "AutoBridge" else _Kind(name, (Anything,), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, clone: str, tag: str) -> None:
        self.clone, self.tag = clone, tag
        listed = git(clone, "ls-tree", "-r", "--name-only", tag, "src/megatron/bridge", "scripts")
        self.files = set(listed.split())

    def knows(self, name: str) -> bool:
        return name.partition(".")[0] in (*_ABSENT, *_FOLDERS)

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if not self.knows(name):
            return None
        file = self._file_of(name)
        is_package = file is None or file.endswith("__init__.py")
        return importlib.machinery.ModuleSpec(name, self, origin=file, is_package=is_package)

    def _file_of(self, name: str) -> str | None:
        # The packages of all families import what no recipe here needs.
        if name in _NOT_RUN or name in ("configs", "megatron.bridge.recipes", "megatron.bridge.perf_recipes"):
            return None
        for root, folder in _FOLDERS.items():
            if name == root or name.startswith(f"{root}."):
                path = folder + name[len(root) :].replace(".", "/")
                files = (file for file in (f"{path}.py", f"{path}/__init__.py") if file in self.files)
                return next(files, None)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return None if spec.origin is not None else _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        file = module.__spec__.origin if module.__spec__ is not None else None
        if file is not None:
            # Modules look for their neighbours from where they lie: nowhere.
            module.__file__ = f"/nowhere/{file}"
            text = shown(self.clone, self.tag, file)
            exec(compile(text, f"{self.tag}:{file}", "exec"), module.__dict__)  # noqa: S102
