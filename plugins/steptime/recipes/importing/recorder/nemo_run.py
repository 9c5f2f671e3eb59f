"""A stand-in for NeMo-Run during an import: it records what would be submitted."""

import argparse
import json
import os
import re
import shlex
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__path__: list[str] = []
_HOME = "/llmb/nemo_run"
_RECORD = Path("/llmb/record.json")


class Kept:
    """Stand-in for a class of NeMo-Run: keeps the keyword arguments of its constructor as attributes."""

    def __init__(self, *_: Any, **told: Any) -> None:
        self.__dict__.update(told)


class Plugin:
    """Stand-in for the class of NeMo-Run from which upstream's plugins derive."""


class Script(Kept):
    """Stand-in for NeMo-Run's Script: a script with its arguments."""

    path: str
    args: list[str]

    def to_command(self) -> list[str]:
        """Return the command line, which Megatron-Bridge writes to its log."""
        return [self.path, *self.args]


class SlurmTemplate(Kept):
    """Stand-in for NeMo-Run's SlurmTemplate: stores the commands to run before the program of each rank."""

    nsys_extra_args = None


class SlurmExecutor(Kept):
    """Stand-in for NeMo-Run's SlurmExecutor: stores the options of a Slurm job."""

    launcher: SlurmTemplate

    def get_launcher(self) -> SlurmTemplate:
        """Return the object on which upstream's profiler plugin sets options."""
        return self.launcher


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Kept,), {})


_PARSERS: list[argparse.ArgumentParser] = []
"""Parsers that have read arguments; the last one is that of upstream's launcher."""
_parse_known_args = argparse.ArgumentParser.parse_known_args


def _parse_and_keep(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
    _PARSERS.append(parser)
    return _parse_known_args(parser, *args, **kwargs)


argparse.ArgumentParser.parse_known_args = _parse_and_keep  # type: ignore[method-assign,assignment]


def _plain(value: Any) -> Any:
    return vars(value) if isinstance(value, Kept) else str(value)


def _rank_arguments(script: str, words: Sequence[str]) -> list[list[str]]:
    """Return the arguments that reach ranks: [long name, value] per option, [long name] per flag, or [word].

    Options that only the launcher reads are left out. Values are unquoted, because the launcher passes them
    through a shell.
    """
    folder = Path(script).parent
    files = (folder / "run_script.py", folder / "utils/overrides.py", folder / "utils/helpers.py")
    text = "".join(file.read_text() for file in files if file.exists())
    read = {name or key for name, key in re.findall(r'\bargs\.(\w+)|\bkwargs\.get\("(\w+)"', text)}
    options = _PARSERS[-1]._option_string_actions
    arguments: list[list[str]] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None:
            arguments.append([word])  # overrides upstream's configuration
            continue
        long = next(text for text in option.option_strings if text.startswith("--"))
        told = [] if option.nargs == 0 else [value if equals else next(rest)]
        if option.required or option.dest in read:
            arguments.append([long, *(shlex.split(text)[0] for text in told)])
    return arguments


def run(script: Script, *, executor: Kept, plugins: Sequence[Any] = (), name: str = "", **_: Any) -> None:
    """Write the job that NeMo-Run would submit, as `plugins` change it, to a JSON file, and exit."""
    for plugin in plugins or ():
        plugin.setup(script, executor)
    given = json.loads(os.environ["STEPTIME_GIVEN"])
    job = {
        "experiment": name,
        "script": script.path,
        "arguments": _rank_arguments(script.path, script.args),
        "told": script.args,
        "executor": vars(executor),
        "exported": {key: value for key, value in os.environ.items() if given.get(key) != value},
    }
    _RECORD.write_text(json.dumps(job, default=_plain))
    raise SystemExit(0)


def _submodule(name: str, **has: Callable[..., Any] | type) -> None:
    module = types.ModuleType(name)
    module.__dict__.update({"__path__": [], **has})
    sys.modules[name] = module


def _nothing(*_: Any, **__: Any) -> None:
    """Ignore the home folder that Megatron-Bridge sets: nothing is written there."""


_submodule(
    "nemo_run.config",
    get_nemorun_home=lambda: os.environ.get("NEMORUN_HOME", _HOME),
    set_nemorun_home=_nothing,
)
for _package in ("nemo_run.core", "nemo_run.core.execution"):
    _submodule(_package)
_submodule("nemo_run.core.execution.launcher", SlurmTemplate=SlurmTemplate)
_submodule("nemo_run.core.execution.kubeflow", KubeflowExecutor=type("KubeflowExecutor", (Kept,), {}))
KubeflowExecutor = sys.modules["nemo_run.core.execution.kubeflow"].__dict__["KubeflowExecutor"]
