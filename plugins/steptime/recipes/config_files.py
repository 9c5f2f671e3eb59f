"""Reads the YAML files of `config/` into strict models; a broken one is refused with file, line and field."""

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from steptime.errors import UserError

Model = TypeVar("Model", bound=BaseModel)

# The parser in C reads a file some ten times faster; PyYAML built without libyaml has only the other.
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_DEEPEST = 50
"""Levels of nesting."""
_HARMLESS_DEPTH = 1000
"""What the parser's own recursion takes easily."""
_MOST_VALUES = 100_000


class FieldError(ValueError):
    """Raised by a model's validator that compares fields: the error is at `location`, below that model."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__(message)
        self.location = location


def load_yaml_model(path: Path, model: type[Model]) -> Model:
    """The content of the YAML file `path` as `model`, without any coercion of types.

    Raises UserError naming file, line and field where the file is missing, is no YAML, has a key twice, or
    does not fit the model.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}.") from None
    loader = _Loader(text)
    try:
        _check_depth(path, text)
        root = loader.get_single_node()
        if root is None:
            raise UserError(f"{path}: is empty.")
        _check_size(path, root)
        for key in _repeated_keys(root):
            raise UserError(f"{path}, line {_line(key)}: '{key.value}' is given twice; keep one.")
        # Through JSON, because there strictness still lets a list be a tuple and a string an enum member.
        content = json.dumps(loader.construct_document(root), default=str)
    except yaml.YAMLError as error:
        raise UserError(_syntax_error(path, error)) from None
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: has a value that no setting can have: {error}.") from None
    finally:
        loader.dispose()
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise UserError(_misfit(path, root, error)) from None


def _check_depth(path: Path, text: str) -> None:
    """Refuse what nests so deeply that the parser in C would die of it.

    Without many brackets and with short lines nothing can: then the text is not read twice.
    """
    longest = max((len(line) for line in text.splitlines()), default=0)
    if text.count("[") + text.count("{") + 2 * longest < _HARMLESS_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            line = getattr(event.start_mark, "line", 0) + 1
            raise UserError(f"{path}, line {line}: nests deeper than {_DEEPEST} levels; write it flatter.")


def _check_size(path: Path, root: yaml.Node) -> None:
    """Refuse aliases that stand for more than a file can hold: nine lists of nine each, ten times over."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int = 0) -> int:
        if depth > _DEEPEST:
            raise UserError(
                f"{path}, line {_line(node)}: nests deeper than {_DEEPEST} levels, or holds itself; "
                "write it flatter."
            )
        if id(node) not in sizes:
            children = node.value if isinstance(node, yaml.CollectionNode) else ()
            if isinstance(node, yaml.MappingNode):
                children = [part for pair in children for part in pair]
            sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in children)
        if sizes[id(node)] > _MOST_VALUES:
            raise UserError(
                f"{path}, line {_line(node)}: its aliases stand for more than {_MOST_VALUES:,} values; "
                "write out what is needed."
            )
        return sizes[id(node)]

    size(root)


def _repeated_keys(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Keys that stand twice in one mapping: YAML would silently keep the last."""
    pending, visited = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in visited:  # an alias
            continue
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    yield key
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
                pending.append(value)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _syntax_error(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}, line {mark.line + 1}" if mark else str(path)
    return f"{place}: is not valid YAML: {getattr(error, 'problem', None) or error}."


def _misfit(path: Path, root: yaml.Node, error: ValidationError) -> str:
    """One sentence on the first misfit, and how many more there are."""
    # A field with a typo is unknown, and the one that was meant is missing: the typo is what to tell.
    problems = sorted(
        error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden"
    )
    first = problems[0]
    node, field = _locate(root, first["loc"] + getattr(first.get("ctx", {}).get("error"), "location", ()))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        *parent, name = first["loc"]
        lacking = [
            str(problem["loc"][-1])
            for problem in problems
            if problem["type"] == "missing" and [*problem["loc"][:-1]] == parent
        ]
        meant = difflib.get_close_matches(str(name), lacking, n=1)
        message = f"unknown field, perhaps '{meant[0]}' is meant" if meant else "unknown field"
    elif first["type"] == "missing":
        message = "is missing"
    else:
        message = f"{message}, not {json.dumps(first['input'])}" if _is_scalar(first["input"]) else message
    if first["type"] == "string_type" and isinstance(first["input"], int | float):
        message += " (put it in quotes)"
    more = f" ({len(problems) - 1} more after it)" if len(problems) > 1 else ""
    return f"{path}, line {_line(node)}, {field or 'top level'}: {message}{more}."


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _locate(root: yaml.Node, location: tuple[int | str, ...]) -> tuple[yaml.Node, str]:
    """The node that a pydantic location speaks of (the nearest that exists), and the location in dots."""
    node, mark = root, root
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == str(part)), None)
            if pair is None:
                break
            mark, node = pair
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            mark = node = node.value[part]
        else:
            break
    return mark, ".".join(str(part) for part in location if part != "[key]")
