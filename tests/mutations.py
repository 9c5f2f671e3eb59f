"""Small changes of a module's source, each of which a test should notice."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
}
ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.FloorDiv(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.Mult(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
}
OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXT_FOR_PEOPLE = {"description", "title", "help", "examples"}
"""Keywords whose values no program reads: they are neither dropped nor changed."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the text between two offsets is replaced."""

    path: str
    line: int
    kind: str
    begin: int
    end: int
    replacement: str

    def place(self) -> tuple[str, int, int, str]:
        """Where it stands, for sorting."""
        return self.path, self.begin, self.end, self.replacement

    def mutated(self, source: str) -> str:
        """The whole source with this change; later lines keep their numbers."""
        lost = source[self.begin : self.end].count("\n") - self.replacement.count("\n")
        rest = source[self.end :]
        line_end = rest.find("\n")
        return source[: self.begin] + self.replacement + rest[:line_end] + "\n" * lost + rest[line_end:]

    def diff(self, source: str) -> str:
        """The change as a diff of no context."""
        old, new = source.splitlines(), self.mutated(source).splitlines()
        changed = difflib.unified_diff(old, new, self.path, f"{self.path} ({self.kind})", lineterm="", n=0)
        return "\n".join(line for line in changed if line != "+")


def mutants(path: str, source: str) -> list[Mutant]:
    """All changes of a module, in the order of their places."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    raw = source.encode()

    def offset(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    found: dict[tuple[int, int, str], Mutant] = {}
    for node, kind, replacement in _changes(ast.parse(source)):
        begin, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        mutant = Mutant(path, node.lineno, kind, begin, end, replacement)
        found.setdefault((begin, end, replacement), mutant)
    return [found[key] for key in sorted(found)]


def _changes(node: ast.AST) -> Iterator[tuple[Any, str, str]]:
    """Nodes below this one that have a place in the source, each with what to put there."""
    match node:
        case ast.JoinedStr():
            return  # before Python 3.12 its parts have no places
        case ast.Assign([ast.Name("__all__")]) | ast.If(ast.Name("TYPE_CHECKING")):
            return  # for those who read, for the linter and the type checker
        case ast.keyword(str(name)) if name in TEXT_FOR_PEOPLE:
            return
        case ast.keyword("frozen"):
            return  # the type checker holds it
    for kind, replacement in _of(node):
        yield node, kind, replacement
    for test in _plain_conditions(node):
        yield test, "condition negated", f"(not {_text(test)})"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for statement in node.body[:-1]:
            yield from _dropped_returns(statement)
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child)


def _dropped_returns(statement: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Return):
            yield node, "return dropped", "pass"


def _plain_conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Conditions that no other change touches: a name or a call."""
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    tests += node.ifs if isinstance(node, ast.comprehension) else []
    yield from (
        test for test in tests if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    )


def _of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What to put in the place of this node alone."""
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(ast.Not()):
            yield from _of_condition(node)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
            yield "arithmetic", _text(ast.BinOp(node.left, ARITHMETIC[type(node.op)], node.right))
        case ast.Constant(bool() as value):
            yield "constant", str(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", repr(value + 1)
        case ast.Call():
            yield from _of_call(node)
        case ast.Slice(lower, upper, step) if upper is not None and lower is not None:
            yield "slice", ast.unparse(ast.Slice(lower, None, step))
        case ast.stmt():
            yield from _of_statement(node)
        case _:
            yield from _of_elements(node)


def _of_condition(node: ast.Compare | ast.BoolOp | ast.UnaryOp) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                operators = [*node.ops[:index], COMPARISONS[type(operator)], *node.ops[index + 1 :]]
                yield "comparison", _text(ast.Compare(node.left, operators, node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and, or", _text(ast.BoolOp(other, node.values))
            for rest in _without_one(node.values):
                one = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield "part of a condition dropped", _text(one)
        case ast.UnaryOp():
            yield "not dropped", _text(node.operand)


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement dropped", "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "statement dropped", "pass"
        case ast.Continue():
            yield "loop", "break"
        case ast.Break():
            yield "loop", "continue"


def _of_elements(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Set(elements) | ast.List(elements, ast.Load()) if len(elements) > 1:
            for rest in _without_one(elements):
                yield "element dropped", _text(ast.Set(rest) if isinstance(node, ast.Set) else ast.List(rest))
        case ast.Tuple(elements, ast.Load()) if len(elements) > 2:  # of two, both are needed
            for rest in _without_one(elements):
                yield "element dropped", ast.unparse(ast.Tuple(rest))
        case ast.Dict(keys, values) if len(keys) > 1:
            for items in _without_one([*zip(keys, values, strict=True)]):
                yield "element dropped", _text(ast.Dict(*map(list, zip(*items, strict=True))))


def _without_one(whole: list[Any]) -> Iterator[list[Any]]:
    for index in range(len(whole)):
        yield whole[:index] + whole[index + 1 :]


def _of_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    for index, keyword in enumerate(node.keywords):
        if keyword.arg not in TEXT_FOR_PEOPLE:
            rest = node.keywords[:index] + node.keywords[index + 1 :]
            yield "keyword dropped", _text(ast.Call(node.func, node.args, rest))
    match node.func:
        case ast.Name(name) if name in OTHER_FUNCTION:
            yield "function", _text(ast.Call(ast.Name(OTHER_FUNCTION[name]), node.args, node.keywords))
        case ast.Name("sorted") | ast.Attribute(_, "sort") if not any(
            keyword.arg == "reverse" for keyword in node.keywords
        ):
            keywords = [*node.keywords, ast.keyword("reverse", ast.Constant(True))]
            yield "order", _text(ast.Call(node.func, node.args, keywords))


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
