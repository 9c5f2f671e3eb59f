"""What one NeMo 2 release would train with: runs its own launch module, and flattens what that made.

`record_settings.py` starts this file in the trainer's environment, with the release's NeMo, Megatron-Core
and nemo_run first on PYTHONPATH and its NeMo as working directory. It reads a list of jobs on standard input,
each with the arguments and the environment that the document's `launch.sh` starts Python with, runs
`python -m MODULE ARGUMENTS` for each up to the point where the job would be submitted, and writes one flat
dictionary of settings per job to the file that it is given.

Nothing here knows a setting's value. Packages that need CUDA, and packages of NeMo's other collections, are
stood in for by empty modules (`STAND_INS`): building a configuration does no more than import them.
"""

import argparse
import dataclasses
import enum
import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import runpy
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

STAND_INS = {
    # CUDA only: present in every image of the documents.
    "fused_weight_gradient_mlp_cuda",
    "mamba_ssm",
    "transformer_engine",
    # Read by NeMo's other collections as they are imported, used by no pretraining recipe.
    "h5py",
    "ijson",
    "jieba",
    "opencc",
    "pangu",
    "rouge_score",
    "sacrebleu",
}
STAND_IN_VERSION = "2.5.0"
"""Version of Transformer Engine that is new enough for every option that a release checks."""


class _StandIn(types.ModuleType):
    """A module in which names with a capital are empty classes, and all other names are such modules."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> None:
        """A function of the package, called as a module is imported."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StandIn(spec.name)
        module.__dict__["__version__"] = STAND_IN_VERSION
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _stand_in_for_apex() -> None:
    """Stand in for apex: Megatron-Core looks there for fused rotary embeddings."""
    for name in ("apex", "apex.transformer", "apex.transformer.functional"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    for name in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        setattr(sys.modules["apex.transformer.functional"], name, type(name, (), {}))


def plain(value: Any) -> Any:
    """Return `value` as in JSON, with objects by their names."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, Path) or type(value).__module__ == "torch":  # torch: a dtype
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _built_fields(config: Any) -> Iterator[tuple[str, Any]]:
    """Return every field of a dataclass configuration, with the values that its class fills in."""
    import fiddle

    built = fiddle.build(config)
    for field in dataclasses.fields(built):
        yield field.name, getattr(built, field.name, None)


def _given_fields(config: Any) -> Iterator[tuple[str, Any]]:
    """Every field of a dataclass configuration: the value that was set, else its default.

    Megatron's OptimizerConfig cannot be built here: it asks Transformer Engine's optimizer for its arguments.
    """
    given = config.__arguments__
    for field in dataclasses.fields(config.__fn_or_cls__):
        if field.name in given:
            yield field.name, given[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            yield field.name, field.default_factory()
        elif field.default is not dataclasses.MISSING:
            yield field.name, field.default


def _arguments(config: Any, without: set[str]) -> Iterator[tuple[str, Any]]:
    """Return every argument of a configured callable: the value that was set, else its default."""
    given = dict(config.__arguments__)
    for name, parameter in inspect.signature(config.__fn_or_cls__).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in without:
            continue
        if name in given or parameter.default is not parameter.empty:
            yield name, given.pop(name, parameter.default)
    for name, value in given.items():  # through **kwargs
        if name not in without:
            yield name, value


def _is_config(value: Any) -> bool:
    return hasattr(value, "__fn_or_cls__")


def _flat(prefix: str, pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in pairs:
        key = f"{prefix}.{name}"
        if _is_config(value):
            settings[key] = value.__fn_or_cls__.__qualname__
            settings |= _flat(key, _arguments(value, set()))
        else:
            settings[key] = plain(value)
    return settings


def userbuffers_name(value: Any, converted: list[Any]) -> str | None:
    """The name of a userbuffers configuration in NeMo's own module of them, several of which are equal.

    The scripts turn the named object into a nemo_run Config: `converted` has the objects that were turned.
    """
    if value is None:
        return None
    module = sys.modules["nemo.collections.llm.recipes.tp_overlap_configs.userbuffers"]
    names = {id(each): name for name, each in vars(module).items() if name.startswith("userbuffers_")}
    if not _is_config(value):
        return names[id(value)]
    return [names[id(each)] for each in converted if id(each) in names][-1]


def _noting(convert: Callable[..., Any], converted: list[Any]) -> Callable[..., Any]:
    def note(value: Any, **options: Any) -> Any:
        converted.append(value)
        return convert(value, **options)

    return note


def _callbacks(task: Any, converted: list[Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    names = []
    for callback in task.trainer.callbacks:
        name = callback.__fn_or_cls__.__name__
        names.append(name)
        if name == "MegatronCommOverlapCallback":
            settings |= _flat("overlap", _arguments(callback, {"tp_comm_overlap_cfg"}))
            userbuffers = getattr(callback, "tp_comm_overlap_cfg", None)
            settings["overlap.tp_comm_overlap_cfg"] = userbuffers_name(userbuffers, converted)
        elif name == "MegatronTokenDropCallback":
            settings |= _flat("token_drop", _arguments(callback, set()))
        elif name == "GarbageCollectionCallback":
            settings |= _flat("gc", _arguments(callback, set()))
        elif name == "NsysCallback":
            settings |= _flat("nsys", _arguments(callback, {"ranks"}))
            settings["nsys.ranks"] = f"{min(callback.ranks)} to {max(callback.ranks)}"
        elif name == "ModelCheckpoint":
            settings |= _flat("checkpoint", _arguments(callback, set()))
    settings["trainer.callbacks"] = sorted(names)
    return settings


def _precision(plugins: Any) -> dict[str, Any]:
    plugins = plugins if isinstance(plugins, list) else [plugins]
    (precision,) = [plugin for plugin in plugins if plugin.__fn_or_cls__.__name__ == "MegatronMixedPrecision"]
    return _flat("precision", _arguments(precision, set()))


def task_settings(task: Any, converted: list[Any]) -> dict[str, Any]:
    """Return the settings of a NeMo pre-training task, before Lightning and the callbacks change it."""
    strategy = task.trainer.strategy
    settings = {
        "model.class": task.model.config.__fn_or_cls__.__name__,
        **_flat("model", _built_fields(task.model.config)),
        **_flat("strategy", _arguments(strategy, {"ddp"})),
        **_flat("ddp", _given_fields(strategy.ddp)),
        **_flat("optimizer", _given_fields(task.optim.config)),
        **_flat("scheduler", _arguments(task.optim.lr_scheduler, set())),
        **_flat("data", _arguments(task.data, set())),
        **_flat("trainer", _arguments(task.trainer, {"callbacks", "plugins", "strategy"})),
        **_precision(task.trainer.plugins),
        **_callbacks(task, converted),
    }
    if task.resume is not None:
        settings |= _flat("resume", _arguments(task.resume, set()))
    return settings


def launch_settings(executor: Any) -> dict[str, Any]:
    """Return what Slurm is asked for, and the commands before the training program."""
    commands = [*executor.srun_args, getattr(executor.launcher, "template_vars", {}) or {}]
    prefix = " ".join(str(each) for each in commands)
    bound = re.search(r"numactl --cpunodebind=\$\(\(SLURM_LOCALID/(\d+)\)\) --membind=", prefix)
    mpi = re.search(r"--mpi=(\w+)", prefix)
    settings = {
        "launch.ranks_per_numa_node": int(bound[1]) if bound else None,
        "launch.vboost": "boost-slider --vboost 1" in (executor.setup_lines or ""),
        "launch.mpi": mpi[1] if mpi else None,
        "launch.srun_args": [arg for arg in executor.srun_args if not arg.startswith("--container-env=")],
        "launch.container_image": executor.container_image,
        "launch.container_mounts": executor.container_mounts,
    }
    for name in ("nodes", "ntasks_per_node", "time", "mem", "exclusive", "segment", "network"):
        settings[f"launch.{name}"] = getattr(executor, name, None)
    settings |= {f"environment.{name}": str(value) for name, value in executor.env_vars.items()}
    launcher = executor.get_launcher()
    if launcher.nsys_profile:
        settings["launch.nsys_trace"] = launcher.nsys_trace
        settings["launch.nsys_extra_args"] = launcher.nsys_extra_args
    return settings


def _take_every_gpu_type() -> None:
    """A release's parser may not list a GPU type that its launch.sh has: `releases.py` says which."""
    check = argparse.ArgumentParser._check_value

    def check_others(self: argparse.ArgumentParser, action: argparse.Action, value: Any) -> None:
        if action.dest != "gpu":
            check(self, action, value)

    argparse.ArgumentParser._check_value = check_others  # type: ignore[method-assign]


class _Submitted:
    """Stands in for nemo_run's Experiment and keeps what would be submitted."""

    jobs: ClassVar[list[tuple[Any, Any]]] = []

    def __init__(self, title: str, *args: Any, **kwargs: Any) -> None:
        self.title = title

    def __enter__(self) -> "_Submitted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add(self, task: Any, executor: Any, plugins: Any = None, **_: Any) -> None:
        executor = executor.clone()
        for plugin in plugins or []:
            plugin.setup(task, executor)
        self.jobs.append((task, executor))

    def run(self, **_: Any) -> None:
        pass

    dryrun = run


def main(record: Path) -> None:
    """Write the settings of every job on standard input to `record`."""
    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    sys.meta_path.insert(0, _StandIns())
    _stand_in_for_apex()
    import fiddle._src.experimental.dataclasses as fiddle_dataclasses
    import nemo_run

    nemo_run.Experiment = _Submitted
    _take_every_gpu_type()
    converted: list[Any] = []
    fiddle_dataclasses.convert_dataclasses_to_configs = _noting(
        fiddle_dataclasses.convert_dataclasses_to_configs, converted
    )
    settings = []
    for job in request["jobs"]:
        _Submitted.jobs.clear()
        sys.argv = [job["module"], *job["arguments"]]
        os.environ.clear()
        os.environ.update(job["environment"])
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        task, executor = _Submitted.jobs[-1]  # the performance run, where there is one, comes first
        settings.append({**task_settings(task, converted), **launch_settings(executor)})
    record.write_text(json.dumps(settings))


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder
    sys.path.insert(0, str(Path.cwd()))
    main(Path(sys.argv[1]))
