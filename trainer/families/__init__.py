"""The model families of the backend NeMo: each module turns a planned shape into NeMo's config and model.

A new family is a module with `build_model` and a line in `FAMILIES`. Another package provides one by an entry
point of the group `steptime.trainer_families`, installed in the environment or image that trains.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from trainer.errors import TrainerError
from trainer.spec import BRIDGE, ModelShape
from trainer.versions import has_option

FAMILIES = {
    "llama": "trainer.families.llama",
    "nemotron4": "trainer.families.nemotron4",
    "nemotron_h": "trainer.families.nemotron_h",
}
"""Module of each architecture, imported when it is needed: importing NeMo takes many seconds."""
BRIDGE_FAMILIES = ("gpt", "llama", "nemotron_h")
"""The architectures that the backend of Megatron-Bridge has, in trainer/bridge/model_providers.py."""

BuildModel = Callable[[ModelShape, str, dict[str, Any]], Any]
"""`build_model(shape, device, device_options)` returns NeMo's model; the options are fields of Megatron's
TransformerConfig."""


def families() -> dict[str, str]:
    """Return the module of each model family by name; a built-in family wins over another package's."""
    added = {
        entry_point.name: entry_point.value for entry_point in entry_points(group="steptime.trainer_families")
    }
    return {**added, **FAMILIES}


def check_family(architecture: str, backend: str) -> None:
    """Raise TrainerError, which lists the backend's model families, if it has none of this name."""
    known = BRIDGE_FAMILIES if backend == BRIDGE else tuple(families())
    if architecture not in known:
        raise TrainerError(
            f"this trainer has no model family '{architecture}' with the backend {backend}; it has: "
            f"{', '.join(sorted(known))}."
        )


def builder(architecture: str) -> BuildModel:
    """Return the function `build_model` of a model family."""
    build: BuildModel = import_module(families()[architecture]).build_model
    return build


def vocabulary(config: type, size: int) -> tuple[dict[str, int], Any]:
    """Return the config fields and the tokenizer that give a model this vocabulary size.

    From NeMo 2.3 on the size is a field, and the tokenizer is None. NeMo 2.2 takes it from the tokenizer and
    rounds it up to a multiple of 128 × tensor parallelism.
    """
    if has_option(config, "vocab_size"):
        return {"vocab_size": size}, None
    from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer

    return {}, NullTokenizer(vocab_size=size - 1)  # it counts one more than it is given
