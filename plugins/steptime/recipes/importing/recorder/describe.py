"""Find out what a release's recipes train on, by running their code without the training libraries.

    python describe.py MEGATRON_BRIDGE QUESTIONS.json ANSWERS.json

A question is a list of family, recipe, GPU type, dtype and variant. An answer has the tokens per sample (null
if the recipe does not say) and the files that the recipe reads, by repository on the Hugging Face hub.
Missing training libraries are replaced by stand-in objects.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDERS = {
    "configs": "scripts/performance/configs",
    "utils": "scripts/performance/utils",
    "megatron.bridge.recipes": "src/megatron/bridge/recipes",
}
"""Folders of upstream's code that are run, by their name in imports."""
_PACKAGES = ("configs", "megatron.bridge.recipes", "megatron.bridge.perf_recipes")
"""Packages whose own code is not run: it imports every family, and only one is needed."""
_NOT_RUN = ("megatron.bridge.recipes.utils.optimizer_utils", "megatron.bridge.recipes.utils.finetune_utils")
"""Modules that are not run, because they inspect classes of Megatron."""
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

    def __init__(self, tree: Path, folders: Mapping[str, str]) -> None:
        self.tree = tree
        self.folders = folders

    def knows(self, name: str) -> bool:
        """Return whether a module belongs to Megatron-Bridge or is replaced by a stand-in."""
        return name.partition(".")[0] in (*_ABSENT, *self.folders)

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in the tree or of a stand-in; None for any other module."""
        if not self.knows(name):
            return None
        file = self._find_file(name)
        if file is None:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)

    def _find_file(self, name: str) -> Path | None:
        if name in (*_NOT_RUN, *_PACKAGES):
            return None
        for root, folder in self.folders.items():
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


def _described(family: str, recipe: str, gpu_type: str, dtype: str, variant: str) -> dict[str, Any]:
    LOADED.clear()
    made = importlib.import_module("utils.utils").get_perf_optimized_recipe(
        model_family_name=family,
        model_recipe_name=recipe,
        train_task="pretrain",
        gpu=gpu_type,
        compute_dtype=dtype,
        config_variant=variant,
    )
    lengths = (made.model.seq_length, made.dataset.sequence_length, made.dataset.seq_length)
    if made.tokenizer.tokenizer_type == "HuggingFaceTokenizer":
        LOADED.setdefault(made.tokenizer.tokenizer_model, []).append("tokenizer_config.json")
    return {
        "seq_length": next((length for length in lengths if isinstance(length, int)), None),
        "hub": {name: sorted(set(files)) for name, files in sorted(LOADED.items())},
    }


def main(tree: Path, questions: Path, answers: Path) -> None:
    """Answer questions about what Megatron-Bridge's recipes train on, by running code of the checkout `tree`.

    `questions` and `answers` are JSON files, each a list in the same order. A question names a recipe's
    family, the recipe, GPU type, dtype and variant. An error in Megatron-Bridge's code is not caught.
    """
    sys.meta_path.insert(0, Finder(tree, FOLDERS))
    sys.modules["typing_extensions"] = typing  # which has what upstream takes from it
    answers.write_text(json.dumps([_described(*question) for question in json.loads(questions.read_text())]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
