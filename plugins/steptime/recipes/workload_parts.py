"""The parts of a workload's file that could be read: for the checks of how they fit together."""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import ValidationError

from steptime.recipes.config_files import Document
from steptime.recipes.config_problems import Location
from steptime.recipes.models import ModelShape, NamedRecipe
from steptime.recipes.workload_file import Configuration, Steps

KINDS = ("configurations", "proxies")


class Placed(NamedTuple):
    """A configuration or a proxy that could be read, and where it stands."""

    location: Location
    size: str
    rule: Configuration

    @property
    def kind(self) -> str:
        """Of `KINDS`."""
        return str(self.location[2])

    def __str__(self) -> str:
        return ".".join(map(str, self.location))


def is_read(document: Document, part: str) -> bool:
    """Return whether a part has entries that others may name: without, their names cannot be checked."""
    return isinstance(document.value(part), dict)


def keys_of(document: Document, part: str) -> tuple[str, ...]:
    """Return the keys of `gpu_types` or `sizes`; none if they cannot be read."""
    return tuple(document.value(part)) if is_read(document, part) else ()


def rules_of(document: Document) -> Iterator[Placed]:
    """Yield the configurations and proxies of all sizes, in the file's order."""
    for size in keys_of(document, "sizes"):
        for kind in KINDS:
            listed = document.value("sizes", size, kind)
            for index in range(len(listed) if isinstance(listed, list) else 0):
                location = ("sizes", size, kind, index)
                rule, _ = document.part(Configuration, *location)
                if rule is not None:
                    yield Placed(location, size, rule)


def all_read(document: Document, size: str) -> bool:
    """Return whether every configuration of a size and its proxy could be read.

    Only then is what they lack really lacking.
    """
    configurations, proxies = (document.value("sizes", size, kind) for kind in KINDS)
    if not isinstance(configurations, list) or not isinstance(proxies, list | None):
        return False
    return len(configurations) + len(proxies or ()) == sum(one.size == size for one in rules_of(document))


def model_of(document: Document, size: str) -> ModelShape | None:
    """Return the whole model of a size, or None if it cannot be read, or is known by name alone."""
    return document.part(ModelShape, "sizes", size, "model")[0]


def named_of(document: Document, size: str) -> NamedRecipe | None:
    """Return the recipe of a size that is known by name; None if it is not, or cannot be read."""
    return document.part(NamedRecipe, "sizes", size, "model")[0]


def steps_of(document: Document, size: str) -> Steps | None:
    """Return the steps of a size: its own, or those of the workload."""
    location = ("sizes", size, "steps")
    own = document.value(*location) is not None
    return document.part(Steps, *(location if own else ("steps",)))[0]


def model_of_rule(document: Document, placed: Placed) -> ModelShape | None:
    """Return the model of a rule, or None if it cannot be read."""
    whole = model_of(document, placed.size)
    if whole is None or not placed.rule.is_proxy:
        return whole
    try:
        return ModelShape.model_validate(placed.rule.changed(whole.model_dump()))
    except ValidationError:
        return None
