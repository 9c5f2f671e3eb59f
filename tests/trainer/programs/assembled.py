"""What the trainer gives NeMo for a run on GPUs: its objects and settings, up to the start of training.

The trainer's own code makes them. Only NeMo's Trainer and its logger are replaced by stand-ins, as they would
look for GPUs and make folders.
"""

import dataclasses
import enum
import functools
import inspect
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from megatron.core.optimizer import OptimizerConfig
from nemo.collections.llm.gpt.data.mock import MockDataModule
from nemo.collections.llm.gpt.model.base import GPTConfig
from nemo.collections.llm.recipes.tp_overlap_configs import userbuffers
from nemo.lightning import Trainer
from nemo.lightning.pytorch.callbacks.garbage_collection import GarbageCollectionCallback
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.plugins import MegatronMixedPrecision
from nemo.lightning.pytorch.strategies import MegatronStrategy

from trainer import devices, training
from trainer.ending import Ending
from trainer.environment import prepare
from trainer.launch import Launch
from trainer.progress import Progress
from trainer.spec import PlannedRun

RECORDED = {
    MegatronStrategy: "strategy",
    MegatronMixedPrecision: "precision",
    MegatronCommOverlapCallback: "overlap",
    GarbageCollectionCallback: "gc",
    MockDataModule: "data",
}
"""Classes that do not keep their arguments, and the names of these groups in `settings`."""

WITHOUT_KERNELS = {"apply_rope_fusion": False, "gradient_accumulation_fusion": False}
"""Settings without which NeMo makes no config where Transformer Engine and Apex are not installed."""


class Assembled(NamedTuple):
    """The objects with which a run is trained."""

    trainer: dict[str, Any]
    """The arguments of NeMo's Trainer, among them strategy, plugins and callbacks."""
    model: Any
    data: Any
    arguments: dict[str, dict[str, Any]]
    """The arguments of the classes in `RECORDED`, with their defaults."""
    environment: dict[str, str]
    """Variables that the trainer sets, in an environment that is empty otherwise."""

    def plugin(self, of: type) -> Any:
        """Return the plugin of that class."""
        (match,) = [plugin for plugin in self.trainer["plugins"] if isinstance(plugin, of)]
        return match

    def settings(self) -> dict[str, Any]:
        """Return all settings flat, under the names of NeMo's and Megatron's objects, as JSON values."""
        config = self.model.config
        # As with the kernels installed: NeMo then fuses the sums of gradients in GPT models, and in no other.
        kernels = {"gradient_accumulation_fusion": isinstance(config, GPTConfig)}
        if "apply_rope_fusion" in fields_of(config):
            kernels["apply_rope_fusion"] = type(config).apply_rope_fusion
        # Upstream's releases use the older name of Megatron-Core 0.15's implementation "local".
        kernels["enable_cuda_graph"] = config.enable_cuda_graph or config.cuda_graph_impl == "local"
        callbacks = sorted({type(callback).__name__ for callback in self.trainer["callbacks"]})
        trainer = _arguments(Trainer.__init__, None, **(self.trainer | {"callbacks": callbacks}))
        groups = {
            "model": {"class": type(config).__name__, **fields_of(config), **kernels},
            "ddp": fields_of(self.trainer["strategy"].ddp_config),
            "optimizer": fields_of(self.model.optim.config),
            "scheduler": {"warmup_steps": self.model.optim.lr_scheduler.warmup_steps},
            "trainer": {name: trainer[name] for name in trainer if name not in ("strategy", "plugins")},
            "environment": self.environment,
            **self.arguments,
        }
        if "overlap" in groups:
            groups["overlap"]["tp_comm_overlap_cfg"] = _name(groups["overlap"]["tp_comm_overlap_cfg"])
        return {
            f"{group}.{name}": _plain(value)
            for group, values in groups.items()
            for name, value in values.items()
        }


def assembled(run: PlannedRun, gpus_per_node: int) -> Assembled:
    """Return what the trainer assembles for a run, as rank 0 of a job on GPUs."""
    given: dict[str, Any] = {}

    class StandIn:
        """A stand-in for NeMo's Trainer."""

        def __init__(self, **arguments: Any):
            given["trainer"] = arguments

        def fit(self, model: Any, datamodule: Any, ckpt_path: str | None) -> None:
            given.update(model=model, data=datamodule)

    ranks = run.recipe.parallelism.world_size
    launch = Launch(
        rank=0,
        world_size=ranks,
        local_world_size=gpus_per_node,
        threads=1,
        by_launcher=True,
        on_one_host=False,
        has_mpi=True,
    )
    with mock.patch.dict(os.environ, clear=True):
        prepare(launch, run.recipe)
        environment = dict(os.environ)
    with (
        tempfile.TemporaryDirectory() as folder,
        _arguments_kept() as arguments,
        mock.patch.object(training, "Trainer", StandIn),
        mock.patch.object(training, "NeMoLogger"),
        mock.patch.object(training, "CallbackGroup", None),
        mock.patch.object(devices, "model_options", return_value=WITHOUT_KERNELS),
        mock.patch.object(OptimizerConfig, "__post_init__"),  # asks Transformer Engine for its Adam
    ):
        ending = Ending(Path(folder), launch, Progress())
        training.fit(run, launch, training.Folders(Path(folder)), ending, "cuda")
    return Assembled(arguments=arguments, environment=environment, **given)


@contextmanager
def _arguments_kept() -> Iterator[dict[str, dict[str, Any]]]:
    """Record the arguments of each class in `RECORDED`."""
    kept: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        for of, name in RECORDED.items():
            stack.enter_context(mock.patch.object(of, "__init__", _noting(of.__init__, name, kept)))
        yield kept


def _noting(make: Any, name: str, kept: dict[str, dict[str, Any]]) -> Any:
    @functools.wraps(make)
    def noting(self: Any, *positional: Any, **named: Any) -> None:
        kept[name] = _arguments(make, self, *positional, **named)
        make(self, *positional, **named)

    return noting


def _arguments(make: Any, *positional: Any, **named: Any) -> dict[str, Any]:
    bound = inspect.signature(make).bind(*positional, **named)
    bound.apply_defaults()
    parameters = inspect.signature(make).parameters
    arguments: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:  # without self
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        elif parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL:
            arguments[name] = value
    return arguments


def fields_of(config: Any) -> dict[str, Any]:
    """Return every field of a dataclass, with its value."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _name(value: Any) -> str | None:
    """Return the name of a value in NeMo's module of userbuffers; None for None."""
    if value is None:
        return None
    (name,) = [name for name, each in vars(userbuffers).items() if each is value]
    return name


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; objects and functions by their names."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
        return value
    return _named(value.func if isinstance(value, functools.partial) else value)


def _named(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value).__module__ == "torch":  # a dtype
        return str(value)
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)
