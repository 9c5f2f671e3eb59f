"""What is wrong with the files of `config/`: all problems at once, each with file, line and field."""

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from steptime.errors import BrokenFiles, UserError
from steptime.refusals import in_words

NAMED, DESCRIBED = "(named)", "(described)"
"""Tags of the union of models, in a form that no field and no key has: places of problems go without them."""
Location = tuple[int | str, ...]
Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file."""

    message: str
    """What is wrong, with which value, and what to do; without its full stop."""
    location: Location = ()
    """Keys and indices from the top of the file, or from the model whose validator found it."""
    line: int | None = None
    """Counted from 1; None for the line of `location`."""

    @classmethod
    def of(cls, error: Exception, *location: int | str) -> Self:
        """Return the mistake that an exception's sentence names."""
        return cls(str(error).removesuffix("."), location)


class FieldErrors(ValueError):
    """Raised by a model's validator that compares fields: the problems are located below that model."""

    def __init__(self, problems: Iterable[Mistake]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))


class FieldError(FieldErrors):
    """One such problem."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__([Mistake(message, location)])


def check_each(values: Iterable[str], check: Callable[[str], object]) -> None:
    """Raise FieldErrors for the entries of a list for which `check` raises UserError."""
    problems = []
    for index, value in enumerate(values):
        try:
            check(value)
        except UserError as error:
            problems.append(Mistake.of(error, index))
    if problems:
        raise FieldErrors(problems)


def load_each(
    names: Iterable[str], load: Callable[[str], Loaded]
) -> tuple[tuple[Loaded, ...], BrokenFiles | None]:
    """Return what could be loaded of `names`, in their order, and what is wrong with the others, if any."""
    loaded: list[Loaded] = []
    sentences: list[str] = []
    for name in names:
        try:
            loaded.append(load(name))
        except UserError as error:
            sentences += error.sentences if isinstance(error, BrokenFiles) else [str(error)]
    return tuple(loaded), BrokenFiles(sentences) if sentences else None


def refuse(*broken: BrokenFiles | None) -> None:
    """Raise the errors that there are as one."""
    sentences = [sentence for files in broken if files is not None for sentence in files.sentences]
    if sentences:
        raise BrokenFiles(sentences)


def misfits(error: ValidationError) -> list[Mistake]:
    """Return the problems that pydantic found.

    A typo in a field's name is one, and not a field too many and another one missing.
    """
    mistakes: list[Mistake] = []
    errors: list[Any] = [found | {"loc": _as_written(found["loc"])} for found in error.errors()]
    missing = [(*found["loc"],) for found in errors if found["type"] == "missing"]
    meant_ones: set[Location] = set()
    for found in errors:
        if found["type"] != "extra_forbidden":
            continue
        *parent, name = found["loc"]
        lacking = [str(location[-1]) for location in missing if [*location[:-1]] == parent]
        meant = difflib.get_close_matches(str(name), lacking, n=1)
        meant_ones.update((*parent, one) for one in meant)
        mistakes.append(
            Mistake("unknown field" + (f", perhaps '{meant[0]}' is meant" if meant else ""), found["loc"])
        )
    for found in errors:
        location, kind = found["loc"], found["type"]
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, FieldErrors):
            mistakes += [Mistake(one.message, location + one.location) for one in cause.problems]
        elif any(other["loc"][: len(location)] == location != other["loc"] for other in errors):
            continue  # a list is too short only without its entries that have problems of their own
        elif kind == "missing" and location not in meant_ones:
            mistakes.append(Mistake("is missing", location))
        elif kind not in ("missing", "extra_forbidden"):
            mistakes.append(Mistake(_message(found), location))
    return mistakes


def _as_written(location: Location) -> Location:
    """A place in a file, without the tags of unions that pydantic puts between its keys."""
    return tuple(part for part in location if part not in (NAMED, DESCRIBED))


def _message(found: Any) -> str:
    message, value = in_words(found), found["input"]
    is_single = value is None or isinstance(value, str | int | float)
    if is_single and f"'{value}'" not in message:  # our own sentences have it already
        message += f", not {json.dumps(value)}"
    if found["type"] == "string_type" and isinstance(value, int | float):
        message += " (put it in quotes)"
    return message
