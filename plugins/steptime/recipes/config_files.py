"""Read the YAML files of `config/` into strict models, with the line of every value."""

import difflib
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from steptime.errors import BrokenFiles, UserError, one_line, unknown_value
from steptime.files import read_limited
from steptime.refusals import describe_validation_error
from steptime.settings import config_dir

NAMED, DESCRIBED, COLLECTIVE = "(named)", "(described)", "(collective)"
"""pydantic's tags for members of a union; brackets tell them from fields and keys in locations."""
Location = tuple[int | str, ...]
Loaded = TypeVar("Loaded")
_Model = TypeVar("_Model", bound=BaseModel)

_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


# The parser in C reads a file some ten times faster; PyYAML built without libyaml has only the other.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Takes keys as they are written: `on`, `010` and `25.10`, which YAML 1.1 reads as true, 8 and 25.1."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        self.flatten_mapping(node)  # of merge keys (`<<`)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Mistake:
    """One mistake in a configuration file: what is wrong, and where."""

    message: str
    """What is wrong, with which value, and what to do; without a full stop."""
    location: Location = ()
    """Keys and indices from the top of the file, or from the model whose validator found it."""
    line: int | None = None
    """Line number from 1; None for the line of `location`."""

    @classmethod
    def of(cls, error: Exception, *location: int | str) -> Self:
        """Make a mistake from an exception's message, at this location in the file."""
        return cls(str(error).removesuffix("."), location)


class FieldErrors(ValueError):
    """Raised by a validator that compares fields: mistakes, each with its location in the model."""

    def __init__(self, problems: Iterable[Mistake]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems))


class FieldError(FieldErrors):
    """Raised by a validator for a single mistake, with its location in the model."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__([Mistake(message, location)])


def unknown_file(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name of which `config/<kind>s/` has no file; `known` are those that have one.

    A workload's `name` may be that of its family.
    """
    for path in (config_dir() / f"{kind}s").glob("*.yml"):
        if name in (path.stem, path.stem.rpartition("-")[0]):
            return UserError(f"{path} is not read: rename it to {path.stem}.yaml.")
    return unknown_value(kind, name, known)


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
    """Call `load` for each name; return the results in order, and one error for all names that failed.

    The error is None if none failed.
    """
    loaded: list[Loaded] = []
    sentences: list[str] = []
    for name in names:
        try:
            loaded.append(load(name))
        except UserError as error:
            sentences += error.sentences if isinstance(error, BrokenFiles) else [str(error)]
    return tuple(loaded), BrokenFiles(sentences) if sentences else None


def raise_together(*broken: BrokenFiles | None) -> None:
    """Raise the given errors as one; do nothing if there are none.

    A mistake is told once: a later sentence that repeats an earlier one is left out.
    """
    told: list[str] = []
    for sentence in (sentence for files in broken if files is not None for sentence in files.sentences):
        if not any(earlier in sentence for earlier in told):
            told.append(sentence)
    if told:
        raise BrokenFiles(told)


def mistakes_of(error: ValidationError, fields: Iterable[str] = ()) -> list[Mistake]:
    """Convert pydantic's validation error to mistakes, each with its location in the file.

    A misspelt field name counts as one mistake, not as an unknown field and a missing one. `fields` are those
    of the model itself, of which an optional one may be misspelt.
    """
    mistakes: list[Mistake] = []
    problems: list[Any] = [problem | {"loc": _without_tags(problem["loc"])} for problem in error.errors()]
    missing = [(*problem["loc"],) for problem in problems if problem["type"] == "missing"]
    misspelt: set[Location] = set()
    for problem in problems:
        if problem["type"] != "extra_forbidden":
            continue
        *parent, name = problem["loc"]
        lacking = [str(location[-1]) for location in missing if [*location[:-1]] == parent]
        known = [] if parent else [*fields]
        meant = difflib.get_close_matches(str(name), lacking, n=1) or (
            difflib.get_close_matches(str(name), known, n=1)
        )
        misspelt.update((*parent, field) for field in meant)
        remedy = f", perhaps '{meant[0]}' is meant" if meant else ""
        remedy = remedy or (f". Valid are: {', '.join(known)}" if known else "")
        mistakes.append(Mistake(f"unknown field{remedy}", problem["loc"]))
    for problem in problems:
        location, kind = problem["loc"], problem["type"]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, FieldErrors):
            mistakes += [replace(mistake, location=location + mistake.location) for mistake in cause.problems]
        elif any(other["loc"][: len(location)] == location != other["loc"] for other in problems):
            continue  # a list is too short only without its entries that have problems of their own
        elif kind == "missing" and location not in misspelt:
            mistakes.append(Mistake("is missing", location))
        elif kind not in ("missing", "extra_forbidden"):
            mistakes.append(Mistake(message_of(problem), location))
    return mistakes


def _without_tags(location: Location) -> Location:
    """Return a location without the tags that pydantic inserts for unions."""
    return tuple(part for part in location if part not in (NAMED, DESCRIBED, COLLECTIVE))


def message_of(problem: Any) -> str:
    """Describe one of pydantic's `errors()` with the value that was given."""
    message, value = describe_validation_error(problem), problem["input"]
    is_single = value is None or isinstance(value, str | int | float)
    if is_single and f"'{value}'" not in message:  # our own sentences have it already
        message += f", not {one_line(json.dumps(value, ensure_ascii=False))}"
    if problem["type"] == "string_type" and isinstance(value, int | float):
        message += " (put it in quotes)"
    return message


class Document:
    """A parsed YAML file that knows the line of each value."""

    def __init__(self, path: Path, root: yaml.Node, content: Any, problems: Sequence[Mistake] = ()) -> None:
        self.path = path
        self.content = content
        """The content as in JSON: mappings, lists, text, numbers, booleans and None."""
        self._root = root
        self._read: dict[tuple[type[BaseModel], tuple[str, ...]], Any] = {}
        self.problems = tuple(problems)
        """Mistakes that do not depend on a model: duplicate keys, and numbers that YAML misreads."""

    def fit(self, model: type[_Model], *location: str) -> tuple[_Model | None, list[Mistake]]:
        """Validate the value below these keys, or the whole file; return it as `model`, and all its mistakes.

        The model is None if the value does not fit. Types are not coerced. The mistakes include keys that
        occur twice anywhere in the file, and numbers that YAML misreads.
        """
        if (model, location) not in self._read:  # each run reads the entries of its GPU type and formula
            self._read[model, location] = self._fit(model, location)
        fitting, mistakes = self._read[model, location]
        misread = {problem.location for problem in self.problems if problem.line is None}
        return fitting, [
            *self.problems,
            *(mistake for mistake in mistakes if mistake.location not in misread),
        ]

    def _fit(self, model: type[_Model], location: tuple[str, ...]) -> tuple[_Model | None, list[Mistake]]:
        try:
            # Through JSON, because there strictness still lets a list be a tuple and a string an enum member.
            return model.model_validate_json(json.dumps(self.value(*location)), strict=True), []
        except ValidationError as error:
            return None, [
                replace(mistake, location=location + mistake.location)
                for mistake in mistakes_of(error, model.model_fields)
            ]

    def misnamed(self, field: str, problems: Sequence[Mistake]) -> list[Mistake]:
        """Return a mistake if the value of `field` differs from the file's name.

        The list is empty if the two agree, or if `problems` already has a mistake about the field.
        """
        name, stem = self.value(field), self.path.stem
        if (
            not isinstance(name, str)
            or name == stem
            or any(problem.location == (field,) for problem in problems)
        ):
            return []
        return [Mistake(f"'{name}' differs from the file's name, '{stem}': change one of them", (field,))]

    def value(self, *keys: str) -> Any:
        """Return the value below these keys, or the whole file's; None if there is none."""
        value = self.content
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def refusal(self, problems: Iterable[Mistake]) -> BrokenFiles:
        """Return an error that lists these mistakes by file, line and field, in the file's order."""
        messages_by_line: dict[tuple[int, str, str], list[str]] = {}
        for problem in problems:
            node, location = _locate(self._root, problem.location)
            field = ".".join(str(part) for part in location if part != "[key]")
            # What each member of a union has against one value is one problem.
            kind = "" if len(location) < len(problem.location) else problem.message
            messages = messages_by_line.setdefault((problem.line or _line(node), field, kind), [])
            if problem.message not in messages:
                messages.append(problem.message)
        return BrokenFiles.from_sentences(
            [
                f"{self.path}, line {line}, {field or 'top level'}: {', or '.join(messages)}."
                for (line, field, _), messages in sorted(
                    messages_by_line.items(), key=lambda item: item[0][0]
                )
            ]
        )


def read_entries(path: Path, none: str) -> Document:
    """Read a YAML file of named entries; it is read again only when it changes.

    Raises UserError if the file cannot be read, has a key twice, or is not a mapping; `none` is the message
    for the last case.
    """
    return _read_entries(path, file_state(path), none)


def file_state(path: Path) -> tuple[int, int]:
    """Return a file's modification time in ns and its size in bytes; both 0 if it cannot be examined.

    Cached content is used as long as both stay the same. The size is included because the clock of a file
    system may advance only every few milliseconds.
    """
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=16)
def _read_entries(path: Path, _state: tuple[int, int], none: str) -> Document:
    document = read_document(path)
    if not isinstance(document.content, dict):
        raise document.refusal([Mistake(none)])
    if document.problems:
        raise document.refusal(document.problems)
    return document


def broken_entries(read: Callable[[], Document], model: type[BaseModel]) -> BrokenFiles | None:
    """Return all mistakes in a file whose named entries should each be a `model`; None if there are none.

    `read` reads the file.
    """
    try:
        document = read()
    except UserError as error:
        return BrokenFiles(str(error).split("\n"))
    problems = [problem for name in document.content for problem in document.fit(model, name)[1]]
    return document.refusal(problems) if problems else None


def load_entry(document: Document, model: type[_Model], name: str, called: str) -> _Model:
    """Load one of the named entries of a file as a `model`.

    `called` says in messages what the entries are. Raises UserError, with the known names, if there is no
    such entry, and for the mistakes of the entry.
    """
    if name not in document.content:
        raise unknown_value(called, name, document.content)
    fitting, problems = document.fit(model, name)
    if fitting is None:
        raise document.refusal(problems)
    return fitting


def load_yaml_model(
    path: Path,
    model: type[_Model],
    *,
    named_in: str = "",
    check: Callable[[_Model], Iterable[Mistake]] = lambda _fitting: (),
) -> _Model:
    """Load the YAML file `path` as a `model`, without coercing types.

    The value of the field `named_in`, if any, has to be the file's name without suffix. `check` returns
    further mistakes of a file that fits the model. Raises UserError if the file cannot be read, is not YAML,
    has a key twice, or has a mistake; the error names the line and field of each.
    """
    document = read_document(path)
    fitting, problems = document.fit(model)
    if named_in:
        problems += document.misnamed(named_in, problems)
    if fitting is not None:
        problems += check(fitting)
    if fitting is None or problems:
        raise document.refusal(problems)
    return fitting


def read_document(path: Path) -> Document:
    """Read the YAML file `path`. Raises UserError if it cannot be read, is empty or is not valid YAML."""
    try:
        content = read_limited(path)
        text = content.decode()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: is not in UTF-8: save it in that encoding.") from None
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise UserError(f"{path}: is empty.")
        problems = list(_misread_values(root))  # before merge keys (`<<`) bring in what is given otherwise
        plain = json.loads(json.dumps(loader.construct_document(root), default=str))
    except yaml.YAMLError as error:
        raise UserError(_syntax_error(path, text, error)) from None
    except UserError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: a value cannot be read as a string, number, boolean, list or mapping: {error}."
        ) from None
    return Document(path, root, plain, problems)


def _misread_values(root: yaml.Node) -> Iterator[Mistake]:
    """Yield what YAML 1.1 silently reads otherwise than it is meant.

    These are keys that occur twice in a mapping, of which it keeps the last, numbers such as `1:30` and `010`
    (90 and 8), and `.inf` and `.nan`.
    """
    pending: list[tuple[yaml.Node, Location]] = [(root, ())]
    visited = set()
    while pending:
        node, location = pending.pop()
        if id(node) in visited:  # an alias
            continue
        visited.add(id(node))
        inside: list[tuple[yaml.Node, Location]] = []
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
                if name in keys:
                    yield Mistake("is given twice; keep one", (*location, name), _line(key))
                keys.add(name)
                inside.append((value, (*location, name)))
        elif isinstance(node, yaml.SequenceNode):
            inside.extend((value, (*location, index)) for index, value in enumerate(node.value))
        elif problem := _misread_number(node):
            yield Mistake(problem, location)
        pending += reversed(inside)  # the file's order, in which an alias comes behind what it stands for


def _misread_number(node: yaml.Node) -> str:
    """Return what is wrong with a number in base 60 or 8 to YAML 1.1, or one that is not finite; or ""."""
    if node.tag not in _NUMBER_TAGS:
        return ""
    text = str(node.value)
    if ":" in text:
        return f"{text} is a number in base 60 to YAML: write a decimal number, or put it in quotes"
    if re.match(r"[+-]?0[0-9_]", text) and "." not in text:
        return f"{text} is a number in base 8 to YAML: leave out the leading zeros, or put it in quotes"
    if re.match(r"[+-]?\.(inf|nan)$", text, re.IGNORECASE):
        return f"has to be a finite number, not {text}"
    return ""


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax_error(path: Path, text: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    if mark and re.match(r"[ -]*\t", "".join(text.splitlines()[mark.line : mark.line + 1])):
        return f"{where}: is not valid YAML: it begins with a tab: write blanks."
    quotes = (
        " In brackets, a text with a brace or a comma needs quotes." if "expected ',' or" in problem else ""
    )
    return f"{where}: is not valid YAML: {problem}.{quotes}"


def _locate(root: yaml.Node, location: Location) -> tuple[yaml.Node, Location]:
    """Return the YAML node of a location or the nearest above it (a mapping's key), and its location.

    Parts of the location below a scalar are dropped: they name the member of a union that pydantic tried.
    """
    node, mark = root, root
    for depth, part in enumerate(location):
        if isinstance(node, yaml.MappingNode):
            # Of a key that stands twice the last is the one that was read.
            pair = next((pair for pair in reversed(node.value) if pair[0].value == str(part)), None)
            if pair is None:
                break
            mark, node = pair
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            mark = node = node.value[part]
        elif isinstance(node, yaml.ScalarNode):
            return mark, location[:depth]
        else:
            break
    return mark, location
