"""Declarations of run options, from which flags, form, checks and plan are made."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Self

from pydantic import Field
from pydantic.fields import FieldInfo

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.plug_points import CLUSTER_KINDS
from steptime.recipes.models import Mode, OptionValue, Recipe

Check = Callable[[str, Any, Recipe], None]
"""Called with an option's name and value for each recipe of a plan. Raises UserError if they do not fit."""


@dataclass(frozen=True)
class Declaration:
    """The properties of a run option besides its name, type, default and help."""

    section: str
    """Section of the trigger form, and panel of `--help`."""
    needs: str | None
    """Condition for the examples, as a sentence's start (`On GPUs`); None if the form's defaults suffice."""
    pattern: str | None
    """Regular expression for the value, in the syntax of JSON schema."""
    checks: tuple[Check, ...]
    sets_trainer: bool
    """Whether it replaces the trainer's setting of the same name."""
    only_in: Mode | None
    """The only mode that has this option; None if every mode has it."""
    default_of: Callable[[Recipe], Any] | None
    """Returns the trainer's setting if none is requested; None to leave it to the workload's file."""

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add the pattern to the JSON schema of the option."""
        if self.pattern is not None:
            schema["pattern"] = self.pattern


def option(
    section: str,
    text: str,
    default: Any = None,
    *,
    needs: str | None = None,
    pattern: str | None = None,
    checks: tuple[Check, ...] = (),
    sets_trainer: bool = False,
    only_in: Mode | None = None,
    default_of: Callable[[Recipe], Any] | None = None,
    **field: Any,
) -> Any:
    """Declare an option as a model's field; `text` is its help, pydantic's `Field` gets `field`.

    The other arguments are explained in `Declaration`.
    """
    declaration = Declaration(section, needs, pattern, checks, sets_trainer, only_in, default_of)
    if "default_factory" not in field:
        field["default"] = default
    return Field(description=text, json_schema_extra=declaration, **field)


def declaration(field: FieldInfo) -> Declaration:
    """Return how an option was declared, from its field.

    Raises TypeError if it was not declared by `option`.
    """
    declared = field.json_schema_extra
    if not isinstance(declared, Declaration):
        raise TypeError(f"{field} is not declared with option()")
    return declared


class ClusterOptions(Frozen):
    """Base class of the run options that only one kind of cluster has.

    Each kind has a subclass of it, `Options`, in its package.
    """

    clusters: ClassVar[str] = ""
    """The name of the clusters of this kind for people, such as `Slurm`."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parse options by name. Raises UserError for a value that the cluster would refuse."""
        return cls(**given)

    @property
    def given(self) -> dict[str, OptionValue]:
        """The options with a value, by name."""
        return self.model_dump(exclude_none=True)

    def check(self, recipe: Recipe) -> None:
        """Raise UserError if these options do not fit runs of the recipe."""


@cache
def options_of_kinds() -> Mapping[str, type[ClusterOptions]]:
    """Return the option classes by kind of cluster, for kinds that have options."""
    by_kind = {}
    for kind in CLUSTER_KINDS.names():
        with suppress(
            UserError
        ):  # a kind that cannot be loaded is refused where one of its clusters is named
            by_kind[kind] = getattr(CLUSTER_KINDS.load(kind), "Options", ClusterOptions)
    return MappingProxyType({kind: options for kind, options in by_kind.items() if options.model_fields})
