"""The source of one release of NeMo and Megatron-Core, read by `ast` from its wheels; nothing is imported.

What a package takes from others (Lightning, torch) is outside, and unknown here.
"""

import ast
import functools
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("nemo", "megatron")


@dataclass(frozen=True)
class Found:
    """The definition that a dotted name stands for."""

    module: str
    """The module that defines it; empty if that is outside."""
    node: ast.AST | None = None
    """A class or function; None for a module, or for a value that is not looked into."""


OUTSIDE = Found("")


class Parameters(NamedTuple):
    """The parameters of a call."""

    names: frozenset[str]
    takes_more: bool
    """Whether others are passed on to something outside."""


class _Names(NamedTuple):
    """The names that a module binds: by definitions, by imports, and by `import *`."""

    bound: dict[str, list[ast.AST | tuple[str, str]]]
    stars: list[str]


class Source:
    """The modules of a release."""

    def __init__(self, wheels: Sequence[Path]) -> None:
        self._files: dict[str, tuple[zipfile.ZipFile, str]] = {}
        self._folders: set[str] = set()
        for wheel in wheels:
            archive = zipfile.ZipFile(wheel)
            for name in archive.namelist():
                if name.endswith(".py") and name.startswith(tuple(f"{package}/" for package in PACKAGES)):
                    parts = name.removesuffix(".py").removesuffix("/__init__").split("/")
                    self._files[".".join(parts)] = (archive, name)
                    self._folders.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        self._under_way: set[tuple[str, str]] = set()
        self._names = functools.cache(self._read_names)
        self.find = functools.cache(self._find)

    def _find(self, dotted: str) -> Found | None:
        """Return what a dotted name stands for, or None if this release has no such name."""
        found: Found | None = Found(dotted.split(".", 1)[0])
        for name in dotted.split(".")[1:]:
            if found is None or found is OUTSIDE:
                return found
            if found.node is not None:
                return found if self.has_attribute(found, name) is not False else None
            found = self._member(found.module, name)
        return found

    def parameters(self, found: Found) -> Parameters | None:
        """Return the parameters of a function or of a class's constructor; None if they are unknown."""
        if isinstance(found.node, ast.FunctionDef):
            return _of_function(found.node)
        if not isinstance(found.node, ast.ClassDef):
            return None
        names: set[str] = set()
        for one in self._ancestry(found):
            if not isinstance(one.node, ast.ClassDef):
                return Parameters(frozenset(names), takes_more=True)
            own = _definition(one.node, "__init__")
            if own is not None:
                told = _of_function(own)
                names |= told.names
                if not told.takes_more:
                    return Parameters(frozenset(names), takes_more=False)
            elif _is_dataclass(one.node):
                names.update(self._dataclass_fields(one))
                return Parameters(frozenset(names), takes_more=False)
        return Parameters(frozenset(names), takes_more=False)

    def has_attribute(self, found: Found, name: str) -> bool | None:
        """Return whether a class or its objects have an attribute; None if that is decided outside."""
        if not isinstance(found.node, ast.ClassDef):
            return None
        outside = False
        for one in self._ancestry(found):
            if not isinstance(one.node, ast.ClassDef):
                outside = True
            elif name in _attributes(one.node):
                return True
        return None if outside else False

    def keys_read(self, *packages: str) -> set[str]:
        """Return the names by which the packages may read a config: keys, attributes, fields, parameters."""
        found: set[str] = set()
        for module, (archive, path) in self._files.items():
            if f"{module}.".startswith(tuple(f"{package}." for package in packages)):
                for node in ast.walk(_parsed(archive.read(path))):
                    found.update(_read_by(node))
        return found

    def _dataclass_fields(self, found: Found) -> Iterator[str]:
        for one in self._ancestry(found):
            if isinstance(one.node, ast.ClassDef) and _is_dataclass(one.node):
                for statement in one.node.body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        yield statement.target.id

    def _ancestry(self, found: Found) -> Iterator[Found]:
        """Yield the class and its bases, depth first; OUTSIDE stands for a base in no package here."""
        yield found
        if isinstance(found.node, ast.ClassDef):
            for base in found.node.bases:
                name = dotted(base)
                if name == "object":
                    continue
                inherited = self._find_from(found.module, name) if name else None
                yield from self._ancestry(inherited) if inherited else (OUTSIDE,)

    def _find_from(self, module: str, dotted: str) -> Found | None:
        """Return what a name in a module's text stands for."""
        found: Found | None = Found(module)
        for name in dotted.split("."):
            if found is None or found is OUTSIDE or found.node is not None:
                return None if found is None else OUTSIDE
            found = self._member(found.module, name)
        return found

    def _member(self, module: str, name: str) -> Found | None:
        if (module, name) in self._under_way:  # a package may import its own modules from itself
            return None
        self._under_way.add((module, name))
        try:
            return self._bound_or_module(module, name)
        finally:
            self._under_way.remove((module, name))

    def _bound_or_module(self, module: str, name: str) -> Found | None:
        bound, stars = self._names(module)
        outside = False
        for one in bound.get(name, ()):
            if isinstance(one, tuple):
                found = self._imported(*one)
            elif isinstance(one, ast.ClassDef | ast.FunctionDef):
                found = Found(module, one)
            elif isinstance(one, ast.Name) and one.id != name:
                found = self._member(module, one.id) or OUTSIDE
            else:
                found = OUTSIDE  # a value, not looked into
            if found not in (None, OUTSIDE):
                return found
            outside |= found is OUTSIDE
        for star in stars:
            found = self._member(star, name) if star in self._files else None
            if found is not None:
                return found
        if f"{module}.{name}" in self._folders:
            return Found(f"{module}.{name}")
        return OUTSIDE if outside else None

    def _imported(self, module: str, name: str) -> Found | None:
        if module.split(".", 1)[0] not in PACKAGES:
            return OUTSIDE
        if not name:
            return Found(module) if module in self._folders else None
        return self._member(module, name) if module in self._folders else None

    def _read_names(self, module: str) -> _Names:
        names = _Names({}, [])
        if module in self._files:
            archive, path = self._files[module]
            package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
            _bind(_parsed(archive.read(path)).body, package, names)
        return names


def _parsed(text: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # newer Pythons warn of some texts of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        return ast.parse(text)


def _bind(body: Sequence[ast.stmt], package: str, names: _Names) -> None:
    """Record what statements of a module bind, on every path through its conditions."""
    for statement in _on_every_way(body):
        match statement:
            case ast.ClassDef() | ast.FunctionDef():
                names.bound.setdefault(statement.name, []).append(statement)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            names.bound.setdefault(name.id, []).append(value)
            case ast.ImportFrom():
                _bind_import(statement, package, names)
            case ast.Import():
                for alias in statement.names:
                    whole = alias.name if alias.asname else alias.name.split(".", 1)[0]
                    names.bound.setdefault(alias.asname or whole, []).append((whole, ""))


def _bind_import(statement: ast.ImportFrom, package: str, names: _Names) -> None:
    origin = statement.module or ""
    if statement.level:
        above = package.split(".")[: len(package.split(".")) - statement.level + 1]
        origin = ".".join([*above, *filter(None, [origin])])
    for alias in statement.names:
        if alias.name == "*":
            names.stars.append(origin)
        else:
            names.bound.setdefault(alias.asname or alias.name, []).append((origin, alias.name))


def _on_every_way(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    yield from _on_every_way([inner])
                elif isinstance(inner, ast.ExceptHandler):
                    yield from _on_every_way(inner.body)


def _read_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that one expression or definition reads."""
    match node:
        case ast.Attribute(attr=name):
            yield name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            yield name
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.FunctionDef():
            yield from _of_function(node).names


def _of_function(function: ast.FunctionDef) -> Parameters:
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return Parameters(frozenset(names) - {"self", "cls"}, takes_more=arguments.kwarg is not None)


def _definition(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    for one in owner.body:
        if isinstance(one, ast.FunctionDef) and one.name == name:
            return one
    return None


def _is_dataclass(owner: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list)


@functools.cache
def _attributes(owner: ast.ClassDef) -> frozenset[str]:
    """Return the methods, the names in the class body, and what its methods set on `self`."""
    names: set[str] = set()
    for one in owner.body:
        if isinstance(one, ast.FunctionDef):
            names.add(one.name)
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted(node.value) == "self"
        ):
            names.add(node.attr)
    return frozenset(names)


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` as text; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (above := dotted(node.value)):
        return f"{above}.{node.attr}"
    return ""
