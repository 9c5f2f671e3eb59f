"""Models that are known by the name of their recipe alone: Megatron-Bridge has it with all of its sizes."""

from typing import Annotated, Any, Literal

from pydantic import PositiveInt

from steptime.frozen import Frozen
from steptime.refusals import written

MEGATRON_BRIDGE = "megatron_bridge"
"""What a workload's file has as `architecture` of such a model."""

_Name = Annotated[str, written("[a-z0-9][a-z0-9_.]*", "small letters, digits, _ and ., as in gpt_oss_120b")]
"""Becomes an argument of a command; upstream's parser has no capitals either."""


class NamedRecipe(Frozen):
    """A recipe of Megatron-Bridge by name: what its model is made of is upstream's to know."""

    architecture: Literal["megatron_bridge"]
    family: _Name
    """As the release's launch script calls it: `gpt_oss`."""
    recipe: _Name
    """`gpt_oss_120b`; in release 25.11 what stands behind the family's name, `120b`."""
    variant: _Name | None = None
    """Of several configurations that a recipe has for one type of GPU, `v2`; None for upstream's default."""
    seq_length: PositiveInt
    """Tokens of a sample, for tokens per second; the recipe has it itself."""

    @property
    def num_layers(self) -> None:
        """Not known here."""


def kind_of_model(model: Any) -> str:
    """Return the tag of the model, in a union with `NamedRecipe`, that a description is read as."""
    architecture = (
        model.get("architecture") if isinstance(model, dict) else getattr(model, "architecture", None)
    )
    return NAMED if architecture == MEGATRON_BRIDGE else DESCRIBED


NAMED, DESCRIBED = "(named)", "(described)"
"""Tags of that union, in a form that no field and no key has: places of problems go without them."""
