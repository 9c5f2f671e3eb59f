"""Model flops by named formulas: what a document counts as the work of one training step on one sample.

Each document counts differently: Nemotron4 15b is 4.345e14 by that of 24.11 and 3.85e14 by that of 25.12. An
MFU therefore always carries the name of its formula, and two formulas are never compared. They are data
(`config/flops.yaml`); a package may add one that needs Python.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, PositiveFloat, model_validator

from steptime.errors import BrokenFiles, UserError, unknown_value
from steptime.frozen import Frozen
from steptime.plug_points import FLOPS_FORMULAS
from steptime.recipes.config_files import Document, broken_entries, read_entries
from steptime.recipes.counting import Counted
from steptime.recipes.models import Model, ModelShape, NamedRecipe, Recipe
from steptime.settings import config_dir, shipped


class Formula(NamedTuple):
    """A document's formula, and the architectures that it counts."""

    of: Callable[[ModelShape], float]
    architectures: tuple[str, ...]


class DocumentsFormula(Frozen):
    """An entry of `config/flops.yaml`: how a document comes to its model flops, in one of three ways."""

    source: str
    architectures: tuple[str, ...] = Field(min_length=1)
    """Of `plug_points.MODEL_FAMILIES`."""
    counted: Counted | None = None
    """From the model's sizes."""
    stated: dict[str, PositiveFloat] | None = Field(default=None, min_length=1)
    """By size, as the document states them without a formula; of other sizes nothing is known."""
    logged: bool = False
    """What the framework logs as TFLOPS of a GPU is taken as it is."""

    @model_validator(mode="after")
    def _in_one_way(self) -> Self:
        if sum((self.counted is not None, self.stated is not None, self.logged)) != 1:
            raise ValueError("give one of counted, stated and logged: true")
        return self


def flops_file() -> Path:
    """Return the file of the documents' formulas: the shipped one if the config folder has none."""
    own = config_dir() / "flops.yaml"
    return own if own.exists() else shipped("config") / "flops.yaml"


def formula_names() -> tuple[str, ...]:
    """Return the documents' formulas in the file's order, then those of packages. Raises UserError."""
    return (*_document().content, *FLOPS_FORMULAS.names())


def load_formula(name: str) -> Formula | DocumentsFormula:
    """Load the formula of that name. Raises UserError if there is none or its description is wrong."""
    document = _document()
    if name not in document.content:
        if name not in FLOPS_FORMULAS.names():
            raise unknown_value("formula", name, formula_names())
        added: Formula = FLOPS_FORMULAS.load(name)
        return added
    described, problems = document.part(DocumentsFormula, name)
    if described is None:
        raise document.refusal(problems)
    return described


def broken_formulas() -> BrokenFiles | None:
    """Return everything that is wrong with the documents' formulas, or None if nothing is."""
    return broken_entries(_document, DocumentsFormula)


def misfit(name: str, shape: Model) -> str | None:
    """Return what of a model its formula does not count, or counts in vain; None if they fit.

    Raises UserError for a formula that is not there.
    """
    formula = load_formula(name)
    if isinstance(shape, NamedRecipe):
        counts = isinstance(formula, Formula) or formula.counted is not None
        return "counts a model's sizes, and of a recipe by name nobody has them" if counts else None
    if shape.architecture not in formula.architectures:
        return f"counts {', '.join(formula.architectures)} models, and this is {shape.architecture}"
    counted = formula.counted if isinstance(formula, DocumentsFormula) else None
    return counted.misfit(shape) if counted is not None else None


def model_flops(shape: Model, formula: str) -> float:
    """Return the floating-point operations of one training step on one sample, by the named formula.

    Raises UserError for a formula that is not there, that counts nothing, or that does not fit the model.
    """
    described = load_formula(formula)
    if isinstance(shape, NamedRecipe):
        raise UserError(
            f"the formula {formula} {misfit(formula, shape)}: give its recipe one that is logged."
        )
    if isinstance(described, Formula):
        return described.of(shape)
    if described.counted is None:
        raise UserError(f"the formula {formula} counts nothing: its document states or logs what it takes.")
    if (problem := described.counted.misfit(shape)) is not None:
        raise UserError(f"the formula {formula} {problem}: give its recipe the formula of its own document.")
    return described.counted.flops(shape)


class Flops(NamedTuple):
    """Model flops of one sample, and where they come from."""

    per_sample: float | None
    """None if nobody knows."""
    source: str
    logged: bool = False
    """Whether the TFLOPS that a run logs are the document's own, in place of these."""


def recipe_flops(recipe: Recipe) -> Flops:
    """Return the model flops of a recipe by its own formula. Raises UserError as `model_flops` does."""
    name = recipe.flops_formula
    formula = load_formula(name)
    if isinstance(formula, DocumentsFormula) and formula.logged:
        return Flops(None, "the TFLOPS that a run logs", logged=True)
    if isinstance(formula, DocumentsFormula) and formula.stated is not None:
        stated: Mapping[str, float] = formula.stated
        source = f"as {name} states" if recipe.size in stated else f"{name} states none for {recipe.size}"
        return Flops(stated.get(recipe.size), source)
    return Flops(model_flops(recipe.model, name), f"by the formula {name}")


def _document() -> Document:
    return read_entries(flops_file(), "names no formulas, as in llama3.1-25.04: {source: …}")
