"""The source of one release of NeMo and Megatron-Core, read by `ast` from its wheels; nothing is imported.

What a package takes from others (Lightning, torch) is outside, and unknown here.
"""

import ast
import functools
import warnings
import zipfile
from dataclasses import dataclass
from typing import NamedTuple

PACKAGES = ("nemo", "megatron")


@dataclass(frozen=True)
class Definition:
    """The definition that a dotted name stands for."""

    module: str
    """The module that defines it; empty if that is outside."""
    node: ast.AST | None = None
    """A class or function; None for a module, or for a value that is not looked into."""


OUTSIDE = Definition("")


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

    def __init__(self, wheels):
        self._files = {}
        self._folders = set()
        for wheel in wheels:
            archive = zipfile.ZipFile(wheel)
            for name in archive.namelist():
                if name.endswith(".py") and name.startswith(tuple(f"{package}/" for package in PACKAGES)):
                    parts = name.removesuffix(".py").removesuffix("/__init__").split("/")
                    self._files[".".join(parts)] = (archive, name)
                    self._folders.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        self._under_way = set()
        self._names = functools.cache(self._read_names)
        self.find = functools.cache(self._find)

    def _find(self, dotted):
        """Return what a dotted name stands for, or None if this release has no such name."""
        definition = Definition(dotted.split(".", 1)[0])
        for name in dotted.split(".")[1:]:
            if definition is None or definition is OUTSIDE:
                return definition
            if definition.node is not None:
                return definition if self.has_attribute(definition, name) is not False else None
            definition = self._member(definition.module, name)
        return definition

    def parameters(self, definition):
        """Return the parameters of a function or of a class's constructor; None if they are unknown."""
        if isinstance(definition.node, ast.FunctionDef):
            return _of_function(definition.node)
        if not isinstance(definition.node, ast.ClassDef):
            return None
        names = set()
        for ancestor in self._ancestry(definition):
            if not isinstance(ancestor.node, ast.ClassDef):
                return Parameters(frozenset(names), takes_more=True)
            constructor = _definition(ancestor.node, "__init__")
            if constructor is not None:
                told = _of_function(constructor)
                names |= told.names
                if not told.takes_more:
                    return Parameters(frozenset(names), takes_more=False)
            elif _is_dataclass(ancestor.node):
                names.update(self._dataclass_fields(ancestor))
                return Parameters(frozenset(names), takes_more=False)
        return Parameters(frozenset(names), takes_more=False)

    def has_attribute(self, definition, name):
        """Return whether a class or its objects have an attribute; None if that is decided outside."""
        if not isinstance(definition.node, ast.ClassDef):
            return None
        outside = False
        for ancestor in self._ancestry(definition):
            if not isinstance(ancestor.node, ast.ClassDef):
                outside = True
            elif name in _attributes(ancestor.node):
                return True
        return None if outside else False

    def keys_read(self, *packages):
        """Return the names by which the packages may read a config: keys, attributes, fields, parameters."""
        keys = set()
        for module, (archive, path) in self._files.items():
            if f"{module}.".startswith(tuple(f"{package}." for package in packages)):
                for node in ast.walk(_parsed(archive.read(path))):
                    keys.update(_read_by(node))
        return keys

    def _dataclass_fields(self, definition):
        for ancestor in self._ancestry(definition):
            if isinstance(ancestor.node, ast.ClassDef) and _is_dataclass(ancestor.node):
                for statement in ancestor.node.body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        yield statement.target.id

    def _ancestry(self, definition):
        """Yield the class and its bases, depth first; OUTSIDE stands for a base in no package here."""
        yield definition
        if isinstance(definition.node, ast.ClassDef):
            for base in definition.node.bases:
                name = dotted(base)
                if name == "object":
                    continue
                inherited = self._find_from(definition.module, name) if name else None
                yield from self._ancestry(inherited) if inherited else (OUTSIDE,)

    def _find_from(self, module, dotted):
        """Return what a name in a module's text stands for."""
        definition = Definition(module)
        for name in dotted.split("."):
            if definition is None or definition is OUTSIDE or definition.node is not None:
                return None if definition is None else OUTSIDE
            definition = self._member(definition.module, name)
        return definition

    def _member(self, module, name):
        if (module, name) in self._under_way:  # a package may import its own modules from itself
            return None
        self._under_way.add((module, name))
        try:
            return self._bound_or_module(module, name)
        finally:
            self._under_way.remove((module, name))

    def _bound_or_module(self, module, name):
        bound, stars = self._names(module)
        outside = False
        for binding in bound.get(name, ()):
            if isinstance(binding, tuple):
                definition = self._imported(*binding)
            elif isinstance(binding, ast.ClassDef | ast.FunctionDef):
                definition = Definition(module, binding)
            elif isinstance(binding, ast.Name) and binding.id != name:
                definition = self._member(module, binding.id) or OUTSIDE
            else:
                definition = OUTSIDE  # a value, not looked into
            if definition not in (None, OUTSIDE):
                return definition
            outside |= definition is OUTSIDE
        for star in stars:
            definition = self._member(star, name) if star in self._files else None
            if definition is not None:
                return definition
        if f"{module}.{name}" in self._folders:
            return Definition(f"{module}.{name}")
        return OUTSIDE if outside else None

    def _imported(self, module, name):
        if module.split(".", 1)[0] not in PACKAGES:
            return OUTSIDE
        if not name:
            return Definition(module) if module in self._folders else None
        return self._member(module, name) if module in self._folders else None

    def _read_names(self, module):
        names = _Names({}, [])
        if module in self._files:
            archive, path = self._files[module]
            package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
            _bind(_parsed(archive.read(path)).body, package, names)
        return names


def _parsed(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # newer Pythons warn of some texts of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        return ast.parse(text)


def _bind(body, package, names):
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


def _bind_import(statement, package, names):
    origin = statement.module or ""
    if statement.level:
        above = package.split(".")[: len(package.split(".")) - statement.level + 1]
        origin = ".".join([*above, *filter(None, [origin])])
    for alias in statement.names:
        if alias.name == "*":
            names.stars.append(origin)
        else:
            names.bound.setdefault(alias.asname or alias.name, []).append((origin, alias.name))


def _on_every_way(body):
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    yield from _on_every_way([inner])
                elif isinstance(inner, ast.ExceptHandler):
                    yield from _on_every_way(inner.body)


def _read_by(node):
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


def _of_function(function):
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return Parameters(frozenset(names) - {"self", "cls"}, takes_more=arguments.kwarg is not None)


def _definition(owner, name):
    for statement in owner.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement
    return None


def _is_dataclass(owner):
    return any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list)


@functools.cache
def _attributes(owner):
    """Return the methods, the names in the class body, and what its methods set on `self`."""
    names = set()
    for statement in owner.body:
        if isinstance(statement, ast.FunctionDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and dotted(node.value) == "self"
        ):
            names.add(node.attr)
    return frozenset(names)


def dotted(node):
    """Return `a.b.c` as text; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (above := dotted(node.value)):
        return f"{above}.{node.attr}"
    return ""
