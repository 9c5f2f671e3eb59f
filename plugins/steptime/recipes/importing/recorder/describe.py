"""Find out what a release's recipes train on, by running their code without the training libraries.

    python describe.py MEGATRON_BRIDGE QUESTIONS.json ANSWERS.json

A question has the family, recipe, GPU type, dtype, variant and number of GPUs. An answer has the tokens per
sample (null if the recipe does not say), the files that the recipe reads, by repository on the Hugging Face
hub, and its fields for parallelism and batch.
Missing training libraries are replaced by stand-in objects.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_FOLDERS = {
    "configs": "scripts/performance/configs",
    "utils": "scripts/performance/utils",
    "megatron.bridge.recipes": "src/megatron/bridge/recipes",
    "megatron.bridge.perf_recipes": "src/megatron/bridge/perf_recipes",
}
"""Folders of upstream's code that are run, by their name in imports."""
_PACKAGES = ("configs", "megatron.bridge.recipes")
"""Packages whose own code is not run: it imports every family, and only one is needed."""
_NOT_RUN = ("megatron.bridge.recipes.utils.optimizer_utils", "megatron.bridge.recipes.utils.finetune_utils")
"""Modules that are not run, because they inspect classes of Megatron."""
_PARALLELISM = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
)
_BATCH = ("micro_batch_size", "global_batch_size")
_ABSENT = ("megatron", "torch", "transformers", "omegaconf", "hydra", "PIL", "datasets", "nemo_run")


class _Kind(type):
    """Metaclass of stand-in classes: each attribute of such a class is another stand-in class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (Anything,), {})

    def __or__(cls, _other: Any) -> Any:
        return Any  # in annotations

    __ror__ = __or__


class Anything(metaclass=_Kind):
    """A stand-in object: it keeps attributes that are set, and returns stand-ins for all others."""

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
        """Return another stand-in."""
        return Anything(**told)

    def __iter__(self) -> Iterator[Any]:
        return iter((Anything(), Anything()))  # an optimizer and its schedule

    def __getitem__(self, _key: Any) -> Any:
        return Anything()


LOADED: dict[str, list[str]] = {}
"""Files that the current recipe loads from the hub, by repository."""


class AutoBridge(Anything):
    """Stand-in for a class of Megatron-Bridge: records the Hugging Face repository that a recipe reads."""

    @classmethod
    def from_hf_pretrained(cls, name: str, *_: Any, **__: Any) -> Anything:
        """Record the name of the Hugging Face repository; return a stand-in for the bridge."""
        LOADED.setdefault(name, []).append("config.json")
        return Anything()


class _Absent(types.ModuleType):
    __all__ = ("CommOverlapConfig",)  # what upstream takes from one by a star

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = AutoBridge if name == "AutoBridge" else _Kind(name, (Anything,), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules of the Megatron-Bridge checkout `tree`, and stand-ins for missing libraries."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in the tree or of a stand-in; None for any other module."""
        if name.partition(".")[0] not in (*_ABSENT, *_FOLDERS):
            return None
        file = self._find_file(name)
        if file is None:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)

    def _find_file(self, name: str) -> Path | None:
        if name in (*_NOT_RUN, *_PACKAGES):
            return None
        for root, folder in _FOLDERS.items():
            if name == root or name.startswith(f"{root}."):
                path = self.tree / (folder + name[len(root) :].replace(".", "/"))
                return next(
                    (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None
                )
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return a module of stand-ins in place of one that is not installed, so that its import succeeds."""
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


def _described(question: Mapping[str, Any]) -> dict[str, Any]:
    LOADED.clear()
    config = _make_config(question)
    lengths = (config.model.seq_length, config.dataset.sequence_length, config.dataset.seq_length)
    if config.tokenizer.tokenizer_type == "HuggingFaceTokenizer":
        LOADED.setdefault(config.tokenizer.tokenizer_model, []).append("tokenizer_config.json")
    fields = {name: getattr(config.model, name, None) for name in _PARALLELISM}
    fields |= {name: getattr(config.train, name, None) for name in _BATCH} if hasattr(config, "train") else {}
    return {
        "seq_length": next((length for length in lengths if isinstance(length, int)), None),
        "hub": {name: sorted(set(files)) for name, files in sorted(LOADED.items())},
        "fields": {name: value for name, value in fields.items() if isinstance(value, int)},
    }


def _make_config(question: Mapping[str, Any]) -> Any:
    """Call Megatron-Bridge's function for the configuration of a recipe, which differs by release."""
    utils = importlib.import_module("utils.utils")
    if not hasattr(utils, "get_perf_optimized_recipe"):  # v0.2
        return utils.get_model_recipe(
            model_name=question["family"],
            model_size=question["recipe"],
            gpu=question["gpu_type"],
            compute_dtype=question["dtype"],
            domain="llm",
            task="pretrain",
        )
    function = utils.get_perf_optimized_recipe
    scaled = "num_gpus" in inspect.signature(function).parameters
    return function(
        model_family_name=question["family"],
        model_recipe_name=question["recipe"],
        train_task="pretrain",
        gpu=question["gpu_type"],
        compute_dtype=question["dtype"],
        config_variant=question["variant"],
        **({"num_gpus": question["gpus"]} if scaled else {}),
    )


def main(tree: Path, questions: Path, answers: Path) -> None:
    """Answer questions about what Megatron-Bridge's recipes train on, by running code of the checkout `tree`.

    `questions` and `answers` are JSON files, each a list in the same order. An error in
    Megatron-Bridge's code is not caught.
    """
    sys.meta_path.insert(0, Finder(tree))
    sys.modules["typing_extensions"] = typing  # which has what upstream takes from it
    answers.write_text(json.dumps([_described(question) for question in json.loads(questions.read_text())]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
