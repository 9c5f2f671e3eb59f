"""One file of the trainer, read by `ast`: its imports, its functions, and its conditions."""

import ast
from typing import Any, NamedTuple

from .release_source import dotted


class Condition(NamedTuple):
    """A condition for reaching a place in the trainer."""

    name: str
    """An argument of upstream; or a field of the plan, or of what the trainer makes of the plan."""
    value: Any
    """The field's value; ARGUMENT if upstream is asked."""
    holds: bool
    """Whether upstream has the argument, or the field equals the value; False requires the opposite."""


ARGUMENT = object()
Conditions = tuple[Condition, ...]


class Module:
    """One file of the trainer."""

    def __init__(self, path, name):
        self.path, self.name = path, name
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.above = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.imports = dict(self._imports())
        self.functions = {
            node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)
        }
        self.values = {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

    def _imports(self):
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"

    def place(self, node):
        return f"{self.name.replace('.', '/')}.py:{getattr(node, 'lineno', '?')}"

    def ancestors(self, node):
        """Yield pairs of a node and the node around it, from the inside out."""
        while node in self.above:
            yield node, self.above[node]
            node = self.above[node]

    def function_of(self, node):
        return next((above for _, above in self.ancestors(node) if isinstance(above, ast.FunctionDef)), None)

    def conditions(self, node):
        """Return all conditions for reaching a node within its function."""
        conditions = []
        for inner, above in self.ancestors(node):
            if isinstance(above, ast.IfExp) and inner is not above.test:
                conditions += _told(above.test, inner is above.body)
            if isinstance(above, ast.If) and inner is not above.test:
                conditions += _told(above.test, inner in above.body)
            body = getattr(above, "body", None)
            if isinstance(body, list) and inner in body:  # after an `if` that returns
                for earlier in body[: body.index(inner)]:
                    if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], ast.Return | ast.Raise):
                        conditions += _told(earlier.test, False)
            if isinstance(above, ast.FunctionDef):
                break
        return tuple(conditions)


def _told(test, answer):
    """Yield the conditions that follow from a test's answer; none if its form is not known here."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _told(inner, not answer)
        case ast.BoolOp(op=ast.And(), values=every) if answer:
            for operand in every:
                yield from _told(operand, answer)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[ast.Constant(value=value)]):
            yield Condition(_last(left), value, answer)
        case ast.Compare(left=left, ops=[ast.NotEq() | ast.IsNot()], comparators=[ast.Constant(value=value)]):
            yield Condition(_last(left), value, not answer)
        case ast.Attribute() | ast.Name():
            yield Condition(_last(test), True, answer)
        case ast.Call():
            for node in ast.walk(test):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield Condition(node.value, ARGUMENT, answer)


def _last(node):
    return dotted(node).rpartition(".")[2]
