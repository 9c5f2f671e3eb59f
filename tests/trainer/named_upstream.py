"""The names of NeMo and Megatron-Core that `trainer/` uses: modules, classes, functions, arguments; by `ast`.

Arguments are traced to where they are written: through `**options`, the dictionaries and functions of the
trainer that make them, and the parameters that pass them on. What cannot be traced is an error: the trainer
has to stay simple enough for this check.

Conditions are recorded with the uses under them. One kind asks upstream, by a name within a call, as
`any(field.name == "vocab_size" for field in fields(config))`; another asks the plan, as
`settings.fp8_recipe == "delayed"`. An import in `try` is one that the trainer can do without.
"""

import ast
from dataclasses import dataclass
from functools import cache
from typing import Literal

from .release_source import PACKAGES, dotted
from .trainer_file import Conditions, Module


@dataclass(frozen=True)
class Use:
    """A use of one upstream name by the trainer."""

    where: str
    """The file and line."""
    kind: Literal["name", "argument", "attribute", "override"]
    of: str
    """The dotted name of what is imported or called, or of the class."""
    name: str = ""
    """The argument, attribute or method; empty for the use of `of` itself."""
    conditions: Conditions = ()
    optional: bool = False
    """Whether the trainer can do without it."""


class CannotFollow(Exception):
    """The name of an argument cannot be traced."""


class Trainer:
    """The trainer's files, but for those of the backend of Megatron-Bridge."""

    def __init__(self, folder):
        self.modules = {}
        for path in sorted(set(folder.rglob("*.py")) - set(folder.glob("bridge/*.py"))):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            self.modules[name] = Module(path, name)
        self._following = set()

    def uses(self):
        for module in self.modules.values():
            yield from self._imported(module)
            yield from self._attributes(module)
            yield from self._arguments(module)
            yield from self._subclasses(module)

    def _imported(self, module):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and _is_upstream(node.module or ""):
                for alias in node.names:
                    of = f"{node.module}.{alias.name}"
                    yield Use(module.place(node), "name", of, optional=_is_tried(of, module))

    def _attributes(self, module):
        """Yield uses as `module.function` and `Class.member`, and of names given as text with their owner."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and (of := self._upstream_name(node.value, module)):
                yield Use(module.place(node), "name", f"{of}.{node.attr}", optional=_is_tried(of, module))
            if isinstance(node, ast.Tuple) and len(node.elts) > 1 and isinstance(node.elts[1], ast.Constant):
                of = self._upstream_name(node.elts[0], module)
                if of and isinstance(node.elts[1].value, str):
                    yield Use(module.place(node), "attribute", of, node.elts[1].value)

    def _arguments(self, module):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                for of in self._called(node.func, module):
                    for keyword in node.keywords:
                        if keyword.arg is not None:
                            yield Use(
                                module.place(node), "argument", of, keyword.arg, module.conditions(node)
                            )
                            continue
                        for name, inner in self.keys(keyword.value, module):
                            every = (*module.conditions(node), *inner)
                            yield Use(module.place(keyword), "argument", of, name, every)

    def _subclasses(self, module):
        """Yield what our classes use or override of the upstream classes that they extend."""
        for owner in ast.walk(module.tree):
            if not isinstance(owner, ast.ClassDef):
                continue
            own = {node.name for node in owner.body if isinstance(node, ast.FunctionDef)}
            own |= {
                node.attr
                for node in ast.walk(owner)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
            for base in owner.bases:
                of = self._upstream_name(base, module)
                if not of:
                    continue
                for method in owner.body:
                    if isinstance(method, ast.FunctionDef) and not method.name.startswith("__"):
                        yield Use(module.place(method), "override", of, method.name)
                for node in ast.walk(owner):
                    if isinstance(node, ast.Attribute) and (
                        _is_super(node.value) or (_is_self(node.value) and node.attr not in own)
                    ):
                        yield Use(module.place(node), "attribute", of, node.attr)

    def _called(self, function, module):
        """Yield the upstream names that a call may refer to."""
        if isinstance(function, ast.Attribute) and function.attr == "__init__" and _is_super(function.value):
            owner = next(above for _, above in module.ancestors(function) if isinstance(above, ast.ClassDef))
            yield from filter(None, (self._upstream_name(base, module) for base in owner.bases))
        elif of := self._upstream_name(function, module):
            yield of
        elif isinstance(function, ast.Name):
            yield from self._classes(function, module)

    def _classes(self, node, module):
        """Yield the upstream classes that a name in the trainer may stand for."""
        if of := self._upstream_name(node, module):
            yield of
        elif isinstance(node, ast.Tuple):
            for one in node.elts:
                yield from self._classes(one, module)
        elif isinstance(node, ast.Call) and (made := self._own_function(node.func, module)):
            for returned in _returned(made[1]):
                yield from self._classes(returned, made[0])
        elif isinstance(node, ast.Name):
            inside = module.function_of(node)
            for other in ast.walk(inside) if inside else ():
                if isinstance(other, ast.Assign) and _is_target(node.id, other):
                    yield from self._classes(other.value, module)
                elif isinstance(other, ast.For) and dotted(other.target) == node.id:
                    yield from self._classes(other.iter, module)
            if node.id in module.values:
                yield from self._classes(module.values[node.id], module)

    def keys(self, node, module):
        """Yield the keys of a dictionary of arguments, each with the conditions under which it is present.

        Raises CannotFollow.
        """
        here = module.conditions(node)
        for name, inner in self._keys(node, module):
            yield name, tuple(dict.fromkeys((*here, *inner)))

    def _keys(self, node, module):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from self.keys(value, module)
                elif isinstance(key, ast.Constant):
                    yield str(key.value), module.conditions(key)
                else:
                    raise CannotFollow(f"{module.place(key)}: the key {ast.unparse(key)}")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self.keys(node.left, module)
            yield from self.keys(node.right, module)
        elif isinstance(node, ast.Call):
            yield from self._keys_of_call(node, module)
        elif isinstance(node, ast.Name):
            yield from self._keys_of_name(node, module)
        elif not isinstance(node, ast.Constant):
            raise CannotFollow(f"{module.place(node)}: **{ast.unparse(node)}")

    def _keys_of_call(self, node, module):
        """Yield the keys that a function of the trainer returns, or passes on from this call."""
        made = self._own_function(node.func, module)
        if made is None or any(keyword.arg is None for keyword in node.keywords):
            raise CannotFollow(f"{module.place(node)}: **{ast.unparse(node)}")
        origin, function = made
        values, rest = _returned(function), function.args.kwarg
        handed_on = [value for value in values if rest is not None and dotted(value) == rest.arg]
        for value in values:
            if value not in handed_on:
                yield from self.keys(value, origin)
        if handed_on:
            yield from ((str(keyword.arg), ()) for keyword in node.keywords)

    def _keys_of_name(self, node, module):
        inside = module.function_of(node)
        following = (module.name, inside.lineno if inside else 0, node.id)
        if following in self._following:  # as in options = {**options, …}
            return
        self._following.add(following)
        try:
            known = False
            for value, index in _assigned(node, module):
                known = True
                yield from self.keys(value, module) if index is None else self._part(value, index, module)
            if inside is not None and inside.args.kwarg is not None and inside.args.kwarg.arg == node.id:
                return  # passes on what the caller gave
            position = _position(inside, node.id) if inside else None
            if inside is not None and position is not None:
                for given, origin in self._given(inside, node.id, position):
                    known = True
                    yield from self.keys(given, origin)
            if not known:
                raise CannotFollow(f"{module.place(node)}: **{node.id}")
        finally:
            self._following.remove(following)

    def _part(self, value, index, module):
        """Yield the keys in one part of the tuple that the trainer's own function returns."""
        made = self._own_function(value.func, module) if isinstance(value, ast.Call) else None
        if made is None:
            raise CannotFollow(f"{module.place(value)}: {ast.unparse(value)}")
        for returned in _returned(made[1]):
            if not isinstance(returned, ast.Tuple):
                raise CannotFollow(f"{made[0].place(returned)}: {ast.unparse(returned)}")
            yield from self.keys(returned.elts[index], made[0])

    def _given(self, function, name, position):
        """Yield what the calls in the trainer give for a parameter."""
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == function.name:
                    if position < len(node.args):
                        yield node.args[position], module
                    yield from ((one.value, module) for one in node.keywords if one.arg == name)

    def _own_function(self, node, module):
        """Return the trainer's function that a name stands for, and its file; None if there is none."""
        owner, _, name = dotted(node).rpartition(".")
        if not owner and name in module.functions:
            return module, module.functions[name]
        imported = module.imports.get(owner or name, "")
        home, _, original = imported.rpartition(".")
        where = self.modules.get(imported if owner else home)
        function = where.functions.get(name if owner else original) if where else None
        return (where, function) if where and function else None

    @staticmethod
    def _upstream_name(node, module):
        """Return the dotted name if it begins with an import from upstream, otherwise an empty text."""
        first, _, rest = dotted(node).partition(".")
        imported = module.imports.get(first, "")
        return ".".join(filter(None, (imported, rest))) if _is_upstream(imported) else ""


def _assigned(node, module):
    """Yield what the function around a name assigns to it, with an index if it is part of a tuple."""
    inside = module.function_of(node)
    for other in ast.walk(inside) if inside else ():
        if isinstance(other, ast.AnnAssign | ast.AugAssign) and dotted(other.target) == node.id:
            if other.value is not None:
                yield other.value, None
        elif isinstance(other, ast.Assign):
            for target in other.targets:
                if isinstance(target, ast.Tuple):
                    for index, part in enumerate(target.elts):
                        if dotted(part) == node.id:
                            yield other.value, index
                elif dotted(target) == node.id:
                    yield other.value, None


def _is_target(name, assignment):
    return any(dotted(target) == name for target in assignment.targets)


def _position(function, name):
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    return names.index(name) if name in names else None


@cache
def _returned(function):
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]


def _is_upstream(dotted):
    return dotted.split(".", 1)[0] in PACKAGES


def _is_tried(of, module):
    """Return whether a name's import is one that the trainer can do without."""
    return any(
        isinstance(above, ast.Try)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        and any(f"{of}.".startswith(f"{node.module}.{alias.name}.") for alias in node.names)
        for _, above in module.ancestors(node)
    )


def _is_super(node):
    return isinstance(node, ast.Call) and dotted(node.func) == "super"


def _is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"
