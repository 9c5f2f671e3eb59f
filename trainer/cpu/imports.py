"""What NeMo, Megatron and Lightning import and no training on the CPU uses: two thirds of their import.

Nothing is taken away for good. While a module of `WITHOUT` is imported, packages that it merely tries to
import count as not installed. A module of `PUT_OFF` runs when something of it is asked for, and is then what
it always is.
"""

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

WITHOUT = {
    # Lightning uses its base class; plots, signals and scores of texts are for metrics that nobody has here.
    "torchmetrics": ("matplotlib", "scipy", "transformers"),
    # NeMo's strategy for Lightning's Fabric, which trains nothing here, could restore quantised models, and
    # Megatron's timers write to the two others; the step lines do not come from them.
    "nemo.lightning": ("modelopt", "tensorboard", "wandb"),
    # Annotations for NeMo-Run's command line, which brings clients of clouds.
    "nemo.collections.llm.utils": ("nemo_run",),
}
"""Modules, in the order of their import, and what counts as not installed meanwhile."""


def _nothing(*_: Any, **__: Any) -> None:
    """What modelopt does for a model that it has not changed."""


def changed_by_modelopt(weights: Path | None) -> bool:
    """Return whether a checkpoint is of a model that modelopt has changed, which needs modelopt itself."""
    return weights is not None and (weights / "modelopt_state").exists()


PUT_OFF: dict[str, dict[str, Callable[..., Any] | None]] = {
    # Packages that import all of their modules, of which a training uses few.
    "nemo.core": {},
    "nemo.collections.common": {},
    "nemo.collections.common.tokenizers": {},
    "nemo.collections.llm": {},
    "nemo.collections.llm.gpt.data": {},
    "nemo.collections.llm.gpt.model": {},
    "nemo.collections.llm.recipes": {},
    # Registers tokenizers of texts, for checkpoints of models that have one.
    "nemo.lightning.io.registry": {},
    # Reads checkpoints to be exported.
    "nemo.export.trt_llm.nemo_ckpt_loader.nemo_file": {"load_distributed_model_weights": None},
    # Logs to a service, and imports pandas.
    "nemo.utils.loggers.clearml_logger": {"ClearMLLogger": None, "ClearMLParams": None},
    # Asked in each training whether modelopt has changed the model.
    "nemo.collections.llm.modelopt": {},
    "nemo.collections.llm.modelopt.model_utils": {
        "restore_modelopt_state": _nothing,
        "save_modelopt_state": _nothing,
    },
    "nemo.collections.llm.modelopt.distill": {},
    "nemo.collections.llm.modelopt.distill.utils": {"get_tensor_shapes_adjust_fn_for_distillation": _nothing},
}
"""Modules that run when a name is asked for, and names that they have before: each a function, or None for
one that runs the module when it is called."""


@contextlib.contextmanager
def few_imports() -> Iterator[None]:
    """Leave out of NeMo's import, within this context, what a training on the CPU does not use."""
    import torch

    if not any(isinstance(finder, _PutOffFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PutOffFinder())  # stays: a module of the list may be imported later
    compiler = torch.compile
    torch.compile = functools.partial(_compiled_when_called, compiler)
    try:
        for module, packages in WITHOUT.items():
            if module not in sys.modules:
                with _not_installed(packages):
                    import_module(module)
        yield
    finally:
        torch.compile = compiler


@contextlib.contextmanager
def _not_installed(packages: Sequence[str]) -> Iterator[None]:
    """Let imports of them fail, and questions for their versions, too."""
    imported = {name: sys.modules[name] for name in packages if name in sys.modules}
    handlers = [*logging.root.handlers]  # of which a warning that a package is missing would make one
    its_own = Distribution.__dict__["from_name"]

    def from_name(of: type[Distribution], name: str) -> Distribution:
        if name in packages:
            raise PackageNotFoundError(name)
        found: Distribution = its_own.__func__(of, name)
        return found

    Distribution.from_name = classmethod(from_name)  # type: ignore[method-assign, assignment]
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]  # None: an import of it fails
    try:
        yield
    finally:
        Distribution.from_name = its_own  # type: ignore[method-assign]
        for name in packages:
            del sys.modules[name]
        sys.modules.update(imported)
        logging.root.handlers[:] = handlers


def _compiled_when_called(compiler: Callable[..., Any], model: Any = None, **options: Any) -> Any:
    """`torch.compile`, whose imports wait until what it compiles is called.

    Megatron has its fused functions compiled when it is imported, and calls none of them on the CPU.
    """
    if model is None:
        return functools.partial(_compiled_when_called, compiler, **options)
    compiled = functools.cache(lambda: compiler(model, **options))

    @functools.wraps(model)
    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled()(*args, **kwargs)

    return call


class PutOff(ModuleType):
    """A module that has not run; modules within it can be imported nevertheless."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        inner, folders = f"{self.__name__}.{name}", self.__dict__.get("__path__")
        if folders and PathFinder.find_spec(inner, folders):
            return import_module(inner)
        _run(self)
        return getattr(self, name)


def _run(module: ModuleType) -> None:
    loader: Any = module.__loader__
    module.__class__ = ModuleType
    try:
        loader.its_own.exec_module(module)
    except BaseException:
        module.__class__ = PutOff
        raise


def _when_called(module: ModuleType, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(module, PutOff):
            _run(module)
        return getattr(module, name)(*args, **kwargs)

    return call


class _PutOffLoader(Loader):
    def __init__(self, its_own: Loader) -> None:
        self.its_own = its_own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return PutOff(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for name, function in PUT_OFF[module.__name__].items():
            setattr(module, name, function or _when_called(module, name))


class _PutOffFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in PUT_OFF:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _PutOffLoader(spec.loader)
        return spec
