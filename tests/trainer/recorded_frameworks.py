"""Stand-ins for torch, NeMo, Megatron and Lightning, which write down what the trainer asks of them.

Whatever is imported from them exists, can be called, and can be subclassed. They compute nothing.
"""

import inspect
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from types import MappingProxyType, ModuleType
from typing import Any

FRAMEWORKS = ("torch", "nemo", "megatron", "lightning", "nvidia_resiliency_ext", "transformer_engine")
_ASKED = []


class _AnyOption(inspect.Signature):
    """The signature of what takes every option."""

    class _All(dict[str, Any]):
        def __contains__(self, name):
            return True

    @property
    def parameters(self):
        return MappingProxyType(self._All())


class _Kind(type):
    """A class, function or value of a framework; what is in it is one, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Kind(name, (Recorded,), {"where": f"{cls.where}.{name}" if cls.where else name})
        setattr(cls, name, made)
        return made

    def __repr__(cls):
        return cls.__name__


class Recorded(metaclass=_Kind):
    """An object of a framework, with the arguments that it was made of."""

    where = ""
    __signature__ = _AnyOption()
    __dataclass_fields__: Mapping[str, Any] = {}

    def __init__(self, *arguments, **named):
        self._arguments, self._named = arguments, named
        _ASKED.append(self)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_Kind(type(self).__name__, (Recorded,), {"where": type(self).__name__}), name)

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def __lt__(self, other):
        return Recorded()

    def __int__(self):
        return 0


class _Module(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Kind(name, (Recorded,), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name, *_):
        return (
            ModuleSpec(name, self, is_package=True) if name.split(".", maxsplit=1)[0] in FRAMEWORKS else None
        )

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module): ...


@dataclass
class _DatasetProvider:
    dataloader_type: str = ""
    num_workers: int = 0
    pin_memory: bool = False


@dataclass
class _Nemotron15B:
    hidden_size: int = 6144


@dataclass
class _Nemotron340B:
    hidden_size: int = 18432


@contextmanager
def recorded_frameworks():
    """Let the trainer import the stand-ins within this context, all of its modules afresh."""

    def is_ours(name):
        return name.split(".", maxsplit=1)[0] in (*FRAMEWORKS, "trainer")

    before = {name: module for name, module in sys.modules.items() if is_ours(name)}
    finder = _Finder()
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        import_module("megatron.bridge.training.config").DatasetProvider = _DatasetProvider
        nemotron = import_module("nemo.collections.llm.gpt.model.nemotron")
        nemotron.Nemotron4Config15B = _kind("Nemotron4Config15B", _Nemotron15B)
        nemotron.Nemotron4Config340B = _kind("Nemotron4Config340B", _Nemotron340B)
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if is_ours(name)]:
            del sys.modules[name]
        sys.modules |= before


def _kind(name, like):
    """Return a class with that name and the fields of another one."""
    return _Kind(name, (Recorded,), {"__dataclass_fields__": like.__dataclass_fields__})  # type: ignore[attr-defined]


def asked():
    """Return what was called since the last time, in this order: arguments within the call that gets them."""
    calls = list(_ASKED)
    _ASKED.clear()
    show = _Show()
    return "\n".join(show.value(call) for call in calls if id(call) not in _arguments(calls))


def _arguments(calls):
    """Return the identities of the calls whose result another one gets."""
    return {id(part) for call in calls for part in _parts(call)}


def _parts(value):
    if isinstance(value, Recorded) and "_named" in vars(value):
        inner = [
            *(*value._arguments, *value._named.values()),
            *(item for name, item in vars(value).items() if name not in (*_LEFT_OUT, "_arguments", "_named")),
        ]
    elif isinstance(value, Mapping):
        inner = [*value.values()]
    elif isinstance(value, list | tuple):
        inner = [*value]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inner = [item for name, item in vars(value).items() if name not in _LEFT_OUT]
    else:
        inner = []
    for part in inner:
        yield part
        yield from _parts(part)


_LEFT_OUT = ("ending", "progress", "run", "timing", "marks", "hooks", "launch")
"""Attributes of callbacks that say nothing of what is asked."""


class _Show:
    """Shows values as text, an argument in a line; objects that were shown once in short."""

    def __init__(self):
        self._seen = set()

    def value(self, value, within=""):  # noqa: PLR0911
        deeper = within + "  "
        if isinstance(value, type):
            return value.__name__
        if isinstance(value, Recorded) and "_named" in vars(value):
            called = value.where or type(value).__name__
            if id(value) in self._seen and (value._arguments or value._named):
                return f"{called}(…)"
            self._seen.add(id(value))
            named = [f"{name}={self.value(item, deeper)}" for name, item in value._named.items()]
            set_later = [
                f".{name}={self.value(item, deeper)}"
                for name, item in vars(value).items()
                if name not in _LEFT_OUT and name not in ("_arguments", "_named")
            ]
            arguments = [self.value(item, deeper) for item in value._arguments]
            return _lines(called, [*arguments, *named, *set_later], within)
        if isinstance(value, Mapping):
            return _lines("", [f"{key}={self.value(item, deeper)}" for key, item in value.items()], within)
        if isinstance(value, partial):
            named = [f"{name}={self.value(item, deeper)}" for name, item in value.keywords.items()]
            return _lines(value.func.__name__, named, within)
        if isinstance(value, list | tuple) and any(not isinstance(item, int | str) for item in value):
            return _lines("", [self.value(item, deeper) for item in value], within)
        if isinstance(value, PurePath | Enum) or type(value).__module__ == "builtins":
            return (
                value.__name__ if callable(value) else repr(value) if isinstance(value, str) else str(value)
            )
        named = [
            f"{name}={self.value(item, deeper)}"
            for name, item in vars(value).items()
            if name not in _LEFT_OUT and not name.startswith("_")
        ]
        return _lines(type(value).__name__, named, within)


def _lines(called, parts, within):
    text = f"{called}({', '.join(parts)})"
    if len(text) + len(within) <= 90 and "\n" not in text:
        return text
    return "\n".join([f"{called}(", *(f"{within}  {part}," for part in parts), f"{within})"])
